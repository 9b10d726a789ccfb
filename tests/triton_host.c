/* triton_host.c - the part of Triton Inference Server that libtriton_lumc.so calls, for tests.
 *
 *   triton_host LIBRARY MODEL_FOLDER CONFIG_JSON KIND SCRIPT..
 *
 * Loads the library as the server does, and a model with an instance for every script, each in a
 * thread of its own. A script says what requests there are, a word at a time:
 *   batch | request | param NAME int|string VALUE | input NAME TYPE RANK EXTENT.. PIECES SIZE.. |
 *   gpu (the input before lies there) | says BYTES (of all its pieces) | want NAME | refuse (the next buffer of an output) | run
 * The bytes of inputs lie one behind the other in SCRIPT.in. SCRIPT.out has what is answered, a line
 * each, and SCRIPT.data the bytes of outputs. What a backend may not do ends the program by abort:
 * a request that is released twice or not at all, a response that is sent twice, an error or a
 * message that nobody deletes. */
#include "triton.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16 };
typedef TRITONSERVER_Error *fault;

#define MUST(condition)                                                                           \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "triton_host.c:%d: %s\n", __LINE__, #condition);                            \
      abort();                                                                                    \
    }                                                                                             \
  } while (0)

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  char *text;
};
struct TRITONSERVER_Message {
  const char *text;
};
struct TRITONBACKEND_Model {
  const char *folder, *config;
  void *state;
};
struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model *model;
  TRITONSERVER_InstanceGroupKind kind;
  void *state;
  int reports, successes, runs;
};
struct TRITONBACKEND_Input {
  char name[64];
  TRITONSERVER_DataType type;
  int64_t shape[32];
  uint32_t rank, pieces;
  uint64_t sizes[MOST], bytes;
  uint8_t *data[MOST];
  int on_gpu;
};
struct TRITONBACKEND_Output {
  char name[64];
  TRITONSERVER_DataType type;
  int64_t shape[32];
  uint32_t rank;
  uint64_t bytes;
  uint8_t *data;
  int refuses;
};
struct parameter {
  char name[64], text[64];
  TRITONSERVER_ParameterType type;
  int64_t value;
};
struct TRITONBACKEND_Request {
  TRITONBACKEND_ModelInstance *of;
  FILE *out, *data;
  int number, sent, refuses;
  uint32_t n_inputs, n_wanted, n_parameters;
  struct TRITONBACKEND_Input inputs[MOST];
  char wanted[MOST][64];
  struct parameter parameters[MOST];
};
struct TRITONBACKEND_Response {
  TRITONBACKEND_Request *request;
  uint32_t n_outputs;
  struct TRITONBACKEND_Output outputs[MOST];
};

static long errors, messages, requests, responses; /* that are there */

#define CHANGE(counter, by) __atomic_add_fetch(&counter, by, __ATOMIC_SEQ_CST)

/* ---- what the library calls */

fault TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *text) {
  fault e = malloc(sizeof *e);
  CHANGE(errors, 1);
  e->code = code;
  e->text = strdup(text);
  return e;
}
void TRITONSERVER_ErrorDelete(fault e) {
  CHANGE(errors, -1);
  free(e->text);
  free(e);
}
const char *TRITONSERVER_ErrorMessage(fault e) { return e->text; }
fault TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char *file, const int line,
                              const char *text) {
  (void)level;
  fprintf(stderr, "log: %s:%d: %s\n", file, line, text);
  return NULL;
}
fault TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *m, const char **text,
                                          size_t *size) {
  *text = m->text;
  *size = strlen(m->text);
  return NULL;
}
fault TRITONSERVER_MessageDelete(TRITONSERVER_Message *m) {
  CHANGE(messages, -1);
  free(m);
  return NULL;
}
fault TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
  const char *own = getenv("TRITON_API");
  *major = 1, *minor = 19;
  if (own) MUST(sscanf(own, "%u.%u", major, minor) == 2);
  return NULL;
}
fault TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *m, TRITONBACKEND_ArtifactType *kind,
                                    const char **where) {
  *kind = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *where = m->folder;
  return NULL;
}
fault TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *m, uint64_t *version) {
  (void)m;
  *version = 1;
  return NULL;
}
fault TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *m, const uint32_t version,
                                TRITONSERVER_Message **message) {
  MUST(version == 1);
  CHANGE(messages, 1);
  *message = malloc(sizeof **message);
  (*message)->text = m->config;
  return NULL;
}
fault TRITONBACKEND_ModelState(TRITONBACKEND_Model *m, void **state) {
  *state = m->state;
  return NULL;
}
fault TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *m, void *state) {
  m->state = state;
  return NULL;
}
fault TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *i, TRITONBACKEND_Model **m) {
  *m = i->model;
  return NULL;
}
fault TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *i,
                                      TRITONSERVER_InstanceGroupKind *kind) {
  *kind = i->kind;
  return NULL;
}
fault TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *i, int32_t *id) {
  (void)i;
  *id = getenv("TRITON_GPU") ? atoi(getenv("TRITON_GPU")) : 0;
  return NULL;
}
fault TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *i, void **state) {
  *state = i->state;
  return NULL;
}
fault TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *i, void *state) {
  i->state = state;
  return NULL;
}
fault TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *i,
                                                  TRITONBACKEND_Request *r, const bool success,
                                                  const uint64_t start, const uint64_t began,
                                                  const uint64_t ended, const uint64_t end) {
  MUST(r->of == i && r->sent && start <= began && began <= ended && ended <= end && start);
  ++i->reports;
  i->successes += success;
  return NULL;
}
fault TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *i,
                                                       const uint64_t size, const uint64_t start,
                                                       const uint64_t began, const uint64_t ended,
                                                       const uint64_t end) {
  MUST(size == 1 && start <= began && began <= ended && ended <= end);
  ++i->runs;
  return NULL;
}
#ifndef OLD_TRITON
fault TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *r, uint32_t *n) {
  *n = r->n_parameters;
  return NULL;
}
fault TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *r, const uint32_t i, const char **name,
                                     TRITONSERVER_ParameterType *type, const void **value) {
  struct parameter *p = &r->parameters[i];
  MUST(i < r->n_parameters);
  *name = p->name;
  *type = p->type;
  *value = p->type == TRITONSERVER_PARAMETER_INT ? (void *)&p->value : (void *)p->text;
  return NULL;
}
#endif
fault TRITONBACKEND_RequestInput(TRITONBACKEND_Request *r, const char *name,
                                 TRITONBACKEND_Input **input) {
  char text[200];
  for (uint32_t i = 0; i < r->n_inputs; ++i)
    if (!strcmp(r->inputs[i].name, name)) return *input = &r->inputs[i], NULL;
  snprintf(text, sizeof text, "unknown request input name %s", name);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, text);
}
fault TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *r, uint32_t *n) {
  *n = r->n_wanted;
  return NULL;
}
fault TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *r, const uint32_t i,
                                      const char **name) {
  MUST(i < r->n_wanted);
  *name = r->wanted[i];
  return NULL;
}
fault TRITONBACKEND_InputProperties(TRITONBACKEND_Input *i, const char **name,
                                    TRITONSERVER_DataType *type, const int64_t **shape,
                                    uint32_t *rank, uint64_t *bytes, uint32_t *pieces) {
  if (name) *name = i->name;
  *type = i->type, *shape = i->shape, *rank = i->rank, *bytes = i->bytes, *pieces = i->pieces;
  return NULL;
}
fault TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *i, const uint32_t piece, const void **data,
                                uint64_t *bytes, TRITONSERVER_MemoryType *place, int64_t *id) {
  MUST(piece < i->pieces && *place == TRITONSERVER_MEMORY_CPU);
  *data = i->data[piece];
  *bytes = i->sizes[piece];
  *place = i->on_gpu ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU_PINNED;
  *id = 0;
  return NULL;
}
fault TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **p, TRITONBACKEND_Request *r) {
  CHANGE(responses, 1);
  *p = calloc(1, sizeof **p);
  (*p)->request = r;
  return NULL;
}
fault TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *p, TRITONBACKEND_Output **output,
                                   const char *name, const TRITONSERVER_DataType type,
                                   const int64_t *shape, const uint32_t rank) {
  MUST(p->n_outputs < MOST && rank <= 32);
  TRITONBACKEND_Output *o = *output = &p->outputs[p->n_outputs++];
  snprintf(o->name, sizeof o->name, "%s", name);
  o->type = type, o->rank = rank;
  o->refuses = p->request->refuses;
  memcpy(o->shape, shape, rank * sizeof *shape);
  return NULL;
}
fault TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *o, void **data, const uint64_t bytes,
                                 TRITONSERVER_MemoryType *place, int64_t *id) {
  MUST(!o->data);
  if (o->refuses) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no such memory");
  *data = o->data = malloc(bytes + !bytes); /* exactly: sanitizers see what lies beyond */
  o->bytes = bytes;
  *place = TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return NULL;
}
fault TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *p, const uint32_t flags, fault e) {
  TRITONBACKEND_Request *r = p->request;
  MUST(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL && !r->sent);
  r->sent = 1;
  if (e) fprintf(r->out, "%d error %d %s\n", r->number, (int)e->code, e->text);
  for (uint32_t i = 0; i < p->n_outputs; ++i) {
    TRITONBACKEND_Output *o = &p->outputs[i];
    if (!e) {
      fprintf(r->out, "%d output %s %d", r->number, o->name, (int)o->type);
      for (uint32_t k = 0; k < o->rank; ++k) fprintf(r->out, " %lld", (long long)o->shape[k]);
      fprintf(r->out, "\n");
      MUST(fwrite(o->data, 1, o->bytes, r->data) == o->bytes);
    }
    free(o->data);
  }
  free(p);
  CHANGE(responses, -1);
  return NULL;
}
fault TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *r, uint32_t flags) {
  MUST(flags == TRITONSERVER_REQUEST_RELEASE_ALL && r->sent);
  for (uint32_t i = 0; i < r->n_inputs; ++i)
    for (uint32_t k = 0; k < r->inputs[i].pieces; ++k) free(r->inputs[i].data[k]);
  free(r);
  CHANGE(requests, -1);
  return NULL;
}

/* ---- the server */

static fault (*on_model)(TRITONBACKEND_Model *), (*off_model)(TRITONBACKEND_Model *);
static fault (*on)(TRITONBACKEND_ModelInstance *), (*off)(TRITONBACKEND_ModelInstance *);
static fault (*execute)(TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request **, const uint32_t);

struct worker {
  const char *script;
  TRITONBACKEND_ModelInstance self;
  pthread_t thread;
};

static FILE *opened(const char *script, const char *end, const char *how) {
  char path[4096];
  snprintf(path, sizeof path, "%s%s", script, end);
  FILE *f = fopen(path, how);
  MUST(f);
  return f;
}

/* An input as the script goes on, its pieces each in a block of its own. */
static void read_input(FILE *script, FILE *bytes, TRITONBACKEND_Input *i) {
  int type;
  MUST(fscanf(script, "%63s %d %u", i->name, &type, &i->rank) == 3 && i->rank <= 32);
  i->type = (TRITONSERVER_DataType)type;
  for (uint32_t k = 0; k < i->rank; ++k) {
    long long extent;
    MUST(fscanf(script, "%lld", &extent) == 1);
    i->shape[k] = extent;
  }
  MUST(fscanf(script, "%u", &i->pieces) == 1 && i->pieces <= MOST);
  for (uint32_t k = 0; k < i->pieces; ++k) {
    unsigned long long size;
    MUST(fscanf(script, "%llu", &size) == 1);
    i->data[k] = malloc(size + !size);
    i->bytes += i->sizes[k] = size;
    MUST(fread(i->data[k], 1, size, bytes) == size);
  }
}

static void read_parameter(FILE *script, struct parameter *p) {
  char type[8];
  MUST(fscanf(script, "%63s %7s %63s", p->name, type, p->text) == 3);
  p->type = strcmp(type, "int") ? TRITONSERVER_PARAMETER_STRING : TRITONSERVER_PARAMETER_INT;
  p->value = atoll(p->text);
}

static void *work(void *argument) {
  struct worker *w = argument;
  FILE *script = opened(w->script, "", "r"), *bytes = opened(w->script, ".in", "r");
  FILE *out = opened(w->script, ".out", "w"), *data = opened(w->script, ".data", "w");
  TRITONBACKEND_Request *batch[64], *r = NULL;
  char word[16];
  uint32_t n = 0;
  int number = 0;
  fault e = on(&w->self);
  if (e) {
    fprintf(out, "instance error %d %s\n", (int)e->code, e->text);
    TRITONSERVER_ErrorDelete(e);
  }
  while (!e && fscanf(script, "%15s", word) == 1) {
    if (!strcmp(word, "request")) {
      MUST(n < 64 && (r = calloc(1, sizeof *r)));
      CHANGE(requests, 1);
      r->of = &w->self, r->out = out, r->data = data, r->number = number++;
      batch[n++] = r;
    } else if (!strcmp(word, "input")) {
      MUST(r->n_inputs < MOST);
      read_input(script, bytes, &r->inputs[r->n_inputs++]);
    } else if (!strcmp(word, "gpu")) {
      r->inputs[r->n_inputs - 1].on_gpu = 1;
    } else if (!strcmp(word, "says")) {
      unsigned long long said;
      MUST(fscanf(script, "%llu", &said) == 1);
      r->inputs[r->n_inputs - 1].bytes = said;
    } else if (!strcmp(word, "param")) {
      read_parameter(script, &r->parameters[r->n_parameters++]);
    } else if (!strcmp(word, "want")) {
      MUST(fscanf(script, "%63s", r->wanted[r->n_wanted++]) == 1);
    } else if (!strcmp(word, "refuse")) {
      r->refuses = 1;
    } else {
      MUST(!strcmp(word, "run") && !execute(&w->self, batch, n));
      n = 0;
    }
  }
  fprintf(out, "reports %d %d %d\n", w->self.reports, w->self.successes, w->self.runs);
  if (!e) MUST(!off(&w->self));
  MUST(!fclose(out) && !fclose(data));
  fclose(script), fclose(bytes);
  return NULL;
}

static void *function(void *library, const char *name) {
  void *found = dlsym(library, name);
  MUST(found);
  return found;
}

static int failed(fault e, const char *what) {
  if (!e) return 0;
  printf("%s error %d %s\n", what, (int)e->code, e->text);
  TRITONSERVER_ErrorDelete(e);
  return 1;
}

int main(int argc, char **argv) {
  MUST(argc >= 6 && argc < 6 + MOST);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return puts(dlerror()), 1;
  fault (*begin)(TRITONBACKEND_Backend *);
  *(void **)&begin = function(library, "TRITONBACKEND_Initialize");
  *(void **)&on_model = function(library, "TRITONBACKEND_ModelInitialize");
  *(void **)&off_model = function(library, "TRITONBACKEND_ModelFinalize");
  *(void **)&on = function(library, "TRITONBACKEND_ModelInstanceInitialize");
  *(void **)&off = function(library, "TRITONBACKEND_ModelInstanceFinalize");
  *(void **)&execute = function(library, "TRITONBACKEND_ModelInstanceExecute");
  TRITONBACKEND_Model model = {argv[2], argv[3], NULL};
  struct worker workers[MOST] = {{0}};
  int n = argc - 5, code = failed(begin(NULL), "backend") || failed(on_model(&model), "model");
  for (int i = 0; i < n && !code; ++i) {
    workers[i].script = argv[5 + i];
    workers[i].self.model = &model;
    workers[i].self.kind = (TRITONSERVER_InstanceGroupKind)atoi(argv[4]);
    MUST(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
  }
  for (int i = 0; i < n && !code; ++i) MUST(!pthread_join(workers[i].thread, NULL));
  if (!code) MUST(!off_model(&model));
  MUST(!errors && !messages && !requests && !responses);
  MUST(!dlclose(library));
  return code;
}
