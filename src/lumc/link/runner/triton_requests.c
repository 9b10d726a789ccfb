/* triton_requests.c - requests of Triton Inference Server, from their arrival to their release.
 *
 * The first entry answers them one by one, each with an error of its own; of a model with states
 * each begins anew. Clients are not trusted: names, types, shapes and sizes are checked, and what
 * they send is copied first, as they may go on to write where it lies. */
#include "triton_served.h"
#include <string.h>

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
