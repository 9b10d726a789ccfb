/* triton.c - a bundle as a model of Triton Inference Server, for libtriton_lumc.so.
 *
 * An instance is an open bundle, MODEL/VERSION/model.lb, with memory for its inputs and outputs. The
 * first entry answers requests one by one, each with an error of its own; of a model with states
 * each begins anew. Clients are not trusted: names, types, shapes and sizes are checked, and what
 * they send is copied first, as they may go on to write where it lies. */
#include "internal.h" /* first: it asks for all that the C library has */
#include "triton.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY = 0 };
typedef TRITONSERVER_Error *fault;

struct served { /* a model */
  char *bundle;
  int threads; /* of each instance */
};
struct instance {
  lumc *model;
  int n_inputs, n_outputs;
  void **inputs, **outputs; /* room for the greatest dims */
};

#define TRY(call)                                                                                 \
  do {                                                                                            \
    fault failed = (call);                                                                        \
    if (failed) return failed;                                                                    \
  } while (0)

/* ---- errors */

__attribute__((format(printf, 2, 3))) static fault refuse(TRITONSERVER_Error_Code code,
                                                          const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return TRITONSERVER_ErrorNew(code, text);
}

/* What a call of lumc.h gave. */
static fault checked(int code) {
  static const TRITONSERVER_Error_Code codes[] = {
      [LUMC_USAGE] = TRITONSERVER_ERROR_INVALID_ARG,
      [LUMC_CORRUPT] = TRITONSERVER_ERROR_UNAVAILABLE,
      [LUMC_DEVICE] = TRITONSERVER_ERROR_UNAVAILABLE,
  };
  if (!code) return NULL;
  int known = code > 0 && code < (int)(sizeof codes / sizeof *codes) && codes[code];
  return refuse(known ? codes[code] : TRITONSERVER_ERROR_INTERNAL, "%s", lumc_error());
}

/* What nobody can be told but the log. */
static void note(fault f) {
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

/* ---- what a request brings */

static const TRITONSERVER_DataType types[] = {
    [LUMC_F32] = TRITONSERVER_TYPE_FP32,   [LUMC_F16] = TRITONSERVER_TYPE_FP16,
    [LUMC_BF16] = TRITONSERVER_TYPE_BF16,  [LUMC_F64] = TRITONSERVER_TYPE_FP64,
    [LUMC_I64] = TRITONSERVER_TYPE_INT64,  [LUMC_I32] = TRITONSERVER_TYPE_INT32,
    [LUMC_I8] = TRITONSERVER_TYPE_INT8,    [LUMC_U8] = TRITONSERVER_TYPE_UINT8,
    [LUMC_BOOL] = TRITONSERVER_TYPE_BOOL,  [LUMC_I16] = TRITONSERVER_TYPE_INT16,
    [LUMC_U16] = TRITONSERVER_TYPE_UINT16, [LUMC_U32] = TRITONSERVER_TYPE_UINT32,
    [LUMC_U64] = TRITONSERVER_TYPE_UINT64,
};

/* A tensor as clients see it: Triton has no numbers, they are vectors of one. */
static lumc_tensor seen(const lumc_tensor *t) {
  static const int64_t one[] = {1};
  lumc_tensor as = *t;
  if (!t->rank) as.rank = 1, as.shape = one;
  return as;
}

/* The value of a dim that no shape tells: the parameter of its name. */
static fault set_dim(struct instance *m, TRITONBACKEND_Request *request, const char *dim) {
  uint32_t n;
  if (!TRITONBACKEND_RequestParameterCount || !TRITONBACKEND_RequestParameter)
    return refuse(TRITONSERVER_ERROR_UNSUPPORTED,
                  "dim '%s' is a parameter of requests, which this server does not pass on", dim);
  TRY(TRITONBACKEND_RequestParameterCount(request, &n));
  for (uint32_t i = 0; i < n; ++i) {
    const char *name;
    TRITONSERVER_ParameterType type;
    const void *value;
    TRY(TRITONBACKEND_RequestParameter(request, i, &name, &type, &value));
    if (strcmp(name, dim)) continue;
    if (type == TRITONSERVER_PARAMETER_INT)
      return checked(lumc_set_dim(m->model, dim, *(const int64_t *)value));
    return refuse(TRITONSERVER_ERROR_INVALID_ARG, "parameter '%s' is no whole number", dim);
  }
  return refuse(TRITONSERVER_ERROR_INVALID_ARG, "no parameter '%s': it is a dim of the model", dim);
}

static fault set_dims(struct instance *m, TRITONBACKEND_Request *request) {
  for (int i = 0; i < lumc_dims(m->model); ++i)
    if (lumc_dim_source(m->model, ENTRY, i) == LUMC_BY_NAME)
      TRY(set_dim(m, request, lumc_dim_at(m->model, i)->name));
  return NULL;
}

/* [2, 3], as much of it as there is room for. */
static const char *said(char text[128], const int64_t *shape, int rank) {
  int at = snprintf(text, 128, "[");
  for (int i = 0; i < rank && at < 100; ++i)
    at += snprintf(text + at, 128 - (size_t)at, "%s%lld", i ? ", " : "", (long long)shape[i]);
  snprintf(text + at, 128 - (size_t)at, "]");
  return text;
}

struct given { /* an input of a request */
  TRITONBACKEND_Input *self;
  const int64_t *shape;
  uint32_t rank, pieces;
  uint64_t bytes;
};

/* An input by its name, of the type that the bundle has. */
static fault find(TRITONBACKEND_Request *request, const lumc_tensor *t, struct given *g) {
  TRITONSERVER_DataType type;
  TRY(TRITONBACKEND_RequestInput(request, t->name, &g->self));
  TRY(TRITONBACKEND_InputProperties(g->self, NULL, &type, &g->shape, &g->rank, &g->bytes,
                                    &g->pieces));
  if (type != types[t->dtype])
    return refuse(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' is %s in this model, not of type %d",
                  t->name, dtype_name(t->dtype), (int)type);
  return NULL;
}

/* Is an input as the dims make it? They are known now. */
static fault compare(const struct given *g, const lumc_tensor *t) {
  char got[128], fits[128];
  int same = (int64_t)g->rank == t->rank;
  for (int i = 0; same && i < t->rank; ++i) same = g->shape[i] == t->shape[i];
  if (!same)
    return refuse(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' has the shape %s, where %s fits",
                  t->name, said(got, g->shape, (int)g->rank), said(fits, t->shape, t->rank));
  if (g->bytes == t->bytes) return NULL;
  return refuse(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' has %llu bytes, not %zu", t->name,
                (unsigned long long)g->bytes, t->bytes);
}

/* All pieces of an input, one behind the other. */
static fault gather(const struct given *g, const lumc_tensor *t, uint8_t *to) {
  size_t left = t->bytes;
  for (uint32_t i = 0; i < g->pieces; ++i) {
    const void *data;
    uint64_t n;
    TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    TRY(TRITONBACKEND_InputBuffer(g->self, i, &data, &n, &place, &id));
    if (place == TRITONSERVER_MEMORY_GPU)
      return refuse(TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' lies in the memory of a GPU",
                    t->name);
    if (n > left)
      return refuse(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' has too many bytes", t->name);
    if (n) memcpy(to + (t->bytes - left), data, (size_t)n);
    left -= (size_t)n;
  }
  if (left) return refuse(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' is not whole", t->name);
  for (size_t i = 0; t->dtype == LUMC_BOOL && i < t->bytes; ++i)
    if (to[i] > 1)
      return refuse(TRITONSERVER_ERROR_INVALID_ARG, "input '%s': a BOOL is a byte of 0 or 1",
                    t->name);
  return NULL;
}

/* The dims and inputs of a request. Every shape is compared when all dims are set: two inputs may
 * tell one dim, and differ. */
static fault take(struct instance *m, TRITONBACKEND_Request *request) {
  struct given g;
  TRY(set_dims(m, request));
  for (int i = 0; i < m->n_inputs; ++i) {
    const lumc_tensor *t = lumc_input(m->model, ENTRY, i);
    TRY(find(request, t, &g));
    if (t->rank && g.rank <= MAX_RANK)
      TRY(checked(lumc_set_shape(m->model, ENTRY, i, g.shape, (int)g.rank)));
  }
  for (int i = 0; i < m->n_inputs; ++i) {
    const lumc_tensor t = seen(lumc_input(m->model, ENTRY, i));
    TRY(find(request, &t, &g));
    TRY(compare(&g, &t));
    TRY(gather(&g, &t, m->inputs[i]));
  }
  return NULL;
}

/* ---- and what it gets */

static fault run(struct instance *m) {
  if (lumc_states(m->model)) TRY(checked(lumc_reset(m->model)));
  return checked(lumc_run(m->model, ENTRY, (const void *const *)m->inputs, m->outputs));
}

static fault is_wanted(TRITONBACKEND_Request *request, const char *output, int *wanted) {
  uint32_t n;
  *wanted = 0;
  TRY(TRITONBACKEND_RequestOutputCount(request, &n));
  for (uint32_t i = 0; i < n && !*wanted; ++i) {
    const char *name;
    TRY(TRITONBACKEND_RequestOutputName(request, i, &name));
    *wanted = !strcmp(name, output);
  }
  return NULL;
}

static fault put(TRITONBACKEND_Response *response, const lumc_tensor *t, const void *data) {
  TRITONBACKEND_Output *output;
  TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  void *to;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, t->name, types[t->dtype], t->shape,
                                   (uint32_t)t->rank));
  TRY(TRITONBACKEND_OutputBuffer(output, &to, t->bytes, &place, &id));
  if (place == TRITONSERVER_MEMORY_GPU)
    return refuse(TRITONSERVER_ERROR_UNSUPPORTED, "output '%s' shall lie in the memory of a GPU",
                  t->name);
  if (t->bytes) memcpy(to, data, t->bytes);
  return NULL;
}

static fault give(struct instance *m, TRITONBACKEND_Request *request,
                  TRITONBACKEND_Response *response) {
  for (int i = 0; i < m->n_outputs; ++i) {
    const lumc_tensor t = seen(lumc_output(m->model, ENTRY, i));
    int wanted;
    TRY(is_wanted(request, t.name, &wanted));
    if (wanted) TRY(put(response, &t, m->outputs[i]));
  }
  return NULL;
}

/* A request from its arrival to its release, whatever fails. */
static void answer(TRITONBACKEND_ModelInstance *self, struct instance *m,
                   TRITONBACKEND_Request *request) {
  TRITONBACKEND_Response *response = NULL;
  uint64_t start = (uint64_t)now_ns(), began, ended, end;
  fault f = TRITONBACKEND_ResponseNew(&response, request);
  if (!f) f = take(m, request);
  began = (uint64_t)now_ns();
  int was_taken = !f;
  if (!f) f = run(m);
  ended = (uint64_t)now_ns();
  if (!f) f = give(m, request, response);
  end = (uint64_t)now_ns();
  bool success = !f;
  if (response) {
    note(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, f));
    if (f) TRITONSERVER_ErrorDelete(f);
  } else {
    note(f);
  }
  note(TRITONBACKEND_ModelInstanceReportStatistics(self, request, success, start, began, ended,
                                                   end));
  if (was_taken)
    note(TRITONBACKEND_ModelInstanceReportBatchStatistics(self, 1, start, began, ended, end));
  note(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *self,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t count) {
  void *state;
  TRY(TRITONBACKEND_ModelInstanceState(self, &state)); /* the requests stay the server's then */
  for (uint32_t i = 0; i < count; ++i) answer(self, state, requests[i]);
  return NULL;
}
