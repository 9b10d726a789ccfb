/* triton.c - a bundle as a model of Triton Inference Server, for libtriton_lumc.so.
 *
 * An instance is an open bundle, MODEL/VERSION/model.lb, with memory for its inputs and outputs;
 * triton_requests.c answers what it is asked. */
#include "triton_served.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct served { /* a model */
  char *bundle;
  int threads; /* of each instance */
};

/* ---- errors */

fault refuse(TRITONSERVER_Error_Code code, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return TRITONSERVER_ErrorNew(code, text);
}

fault checked(int code) {
  static const TRITONSERVER_Error_Code codes[] = {
      [LUMC_USAGE] = TRITONSERVER_ERROR_INVALID_ARG,
      [LUMC_CORRUPT] = TRITONSERVER_ERROR_UNAVAILABLE,
      [LUMC_DEVICE] = TRITONSERVER_ERROR_UNAVAILABLE,
  };
  if (!code) return NULL;
  int known = code > 0 && code < (int)(sizeof codes / sizeof *codes) && codes[code];
  return refuse(known ? codes[code] : TRITONSERVER_ERROR_INTERNAL, "%s", lumc_error());
}

void note(fault f) {
  if (!f) return;
  fault again = TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "triton.c", __LINE__,
                                        TRITONSERVER_ErrorMessage(f));
  if (again) TRITONSERVER_ErrorDelete(again);
  TRITONSERVER_ErrorDelete(f);
}

/* ---- models */

/* A number among the parameters of a model's configuration, unless it has none of this name. In JSON
 * a quotation mark inside of a string has a backslash before it, so what is looked for is no part
 * of one. */
static fault setting(const char *config, const char *name, int most, int *value) {
  char start[64], *end;
  int n = snprintf(start, sizeof start, "\"%s\":{\"string_value\":\"", name);
  const char *at = strstr(config, start);
  if (!at) return NULL;
  long found = strtol(at + n, &end, 10);
  if (end == at + n || *end != '"' || found < 1 || found > most)
    return refuse(TRITONSERVER_ERROR_INVALID_ARG, "parameter '%s' is no number from 1 to %d", name,
                  most);
  *value = (int)found;
  return NULL;
}

static fault settings(TRITONBACKEND_Model *model, struct served *m) {
  TRITONSERVER_Message *message;
  const char *json;
  size_t size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  fault f = TRITONSERVER_MessageSerializeToJson(message, &json, &size);
  char *text = f ? NULL : strndup(json, size);
  if (!f && !text) f = refuse(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  if (!f) f = setting(text, "threads", MAX_THREADS, &m->threads);
  free(text);
  note(TRITONSERVER_MessageDelete(message));
  return f;
}

static fault bundle_of(TRITONBACKEND_Model *model, struct served *m) {
  TRITONBACKEND_ArtifactType kind;
  const char *folder;
  uint64_t version;
  TRY(TRITONBACKEND_ModelRepository(model, &kind, &folder));
  TRY(TRITONBACKEND_ModelVersion(model, &version));
  if (kind != TRITONBACKEND_ARTIFACT_FILESYSTEM)
    return refuse(TRITONSERVER_ERROR_UNSUPPORTED, "the model does not lie in a file system");
  if (asprintf(&m->bundle, "%s/%llu/model.lb", folder, (unsigned long long)version) >= 0)
    return NULL;
  m->bundle = NULL;
  return refuse(TRITONSERVER_ERROR_INTERNAL, "out of memory");
}

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend) {
  uint32_t major, minor;
  (void)backend;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major == TRITONBACKEND_API_VERSION_MAJOR) return NULL;
  return refuse(TRITONSERVER_ERROR_UNSUPPORTED, "lumc knows version %d of the backend API, not %u.%u",
                TRITONBACKEND_API_VERSION_MAJOR, major, minor);
}

static void free_model(struct served *m) {
  if (m) free(m->bundle);
  free(m);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model) {
  struct served *m = calloc(1, sizeof *m);
  if (!m) return refuse(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  m->threads = 1;
  fault f = bundle_of(model, m);
  if (!f) f = settings(model, m);
  if (!f) f = TRITONBACKEND_ModelSetState(model, m);
  if (f) free_model(m);
  return f;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model) {
  void *state = NULL;
  TRY(TRITONBACKEND_ModelState(model, &state));
  free_model(state);
  return NULL;
}

/* ---- instances */

static void close_instance(struct instance *m) {
  if (!m) return;
  for (int i = 0; m->inputs && i < m->n_inputs; ++i) free(m->inputs[i]);
  for (int i = 0; m->outputs && i < m->n_outputs; ++i) free(m->outputs[i]);
  free(m->inputs);
  free(m->outputs);
  lumc_close(m->model);
  free(m);
}

/* The device of an instance, as lumc_open_on calls it; NULL for the best there is. */
static fault device_of(TRITONBACKEND_ModelInstance *self, const char **device) {
  TRITONSERVER_InstanceGroupKind kind;
  int32_t id;
  TRY(TRITONBACKEND_ModelInstanceKind(self, &kind));
  TRY(TRITONBACKEND_ModelInstanceDeviceId(self, &id));
  *device = kind == TRITONSERVER_INSTANCEGROUPKIND_CPU   ? "cpu"
            : kind == TRITONSERVER_INSTANCEGROUPKIND_GPU ? "cuda"
                                                         : NULL;
  if (kind != TRITONSERVER_INSTANCEGROUPKIND_GPU || !id) return NULL;
  return refuse(TRITONSERVER_ERROR_UNSUPPORTED,
                "lumc runs on GPU 0, not on GPU %d: set 'gpus: [ 0 ]' in instance_group", (int)id);
}

/* Memory for tensors of the greatest dims, which are those of a bundle that was just opened. */
static fault reserve_all(struct instance *m) {
  int code = LUMC_OK;
  m->n_inputs = lumc_inputs(m->model, ENTRY), m->n_outputs = lumc_outputs(m->model, ENTRY);
  m->inputs = zeros((size_t)m->n_inputs, sizeof *m->inputs, &code);
  m->outputs = zeros((size_t)m->n_outputs, sizeof *m->outputs, &code);
  for (int i = 0; !code && i < m->n_inputs; ++i)
    m->inputs[i] = zeros(lumc_input(m->model, ENTRY, i)->bytes, 1, &code);
  for (int i = 0; !code && i < m->n_outputs; ++i)
    m->outputs[i] = zeros(lumc_output(m->model, ENTRY, i)->bytes, 1, &code);
  return checked(code);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *self) {
  TRITONBACKEND_Model *model;
  const char *device;
  void *state;
  TRY(TRITONBACKEND_ModelInstanceModel(self, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  TRY(device_of(self, &device));
  const struct served *of = state;
  struct instance *m = calloc(1, sizeof *m);
  if (!m) return refuse(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  fault f = checked(lumc_open_on(of->bundle, device, of->threads, &m->model));
  if (!f) f = reserve_all(m);
  if (!f) f = TRITONBACKEND_ModelInstanceSetState(self, m);
  if (f) close_instance(m);
  return f;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *self) {
  void *state = NULL;
  TRY(TRITONBACKEND_ModelInstanceState(self, &state));
  close_instance(state);
  return NULL;
}
