/* metal.c - runs plans on the GPU of a Mac.
 *
 * CPU and GPU share the memory: the kernels read the weights where they were loaded. The kernels
 * are text, which the GPU's own compiler translates when a bundle is opened. The launches of an
 * entry are one command buffer with one encoder. Dims lie in a buffer of their own. */
#include "metal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  MAX_TEXT = 1 << 28,
  MOST_LAUNCHES = 1 << 14, /* of a command buffer */
  STATUS_ERROR = 5 /* MTLCommandBufferStatusError */
};

/* ---- what is on the device */

struct program { /* an entry: where its inputs and outputs lie in `memory` */
  size_t *inputs, *outputs;
};

struct metal {
  const struct plan *plan;
  id queue, library, *pipelines;
  struct block block; /* the weights */
  id weights, memory; /* memory: arena, inputs and outputs of the entry that runs */
  id dims;            /* where kernels read them, each where a buffer of constants may begin */
  id *states;
  uint8_t *base; /* of memory */
  struct program *programs;
};

static uint8_t *contents(id buffer) { return SEND(void *)(buffer, metal.contents); }

/* A buffer that CPU and GPU share (options 0). */
static int allocate(id *to, uint64_t bytes, const char *what) {
  *to = SEND(id, uint64_t, uint64_t)(metal.device, metal.allocate, bytes + ALIGN, 0);
  if (*to) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "Metal has no %.1f MB for %s", (double)bytes / 1e6, what);
}

/* ---- loading */

/* What the compiler said first, with the line of our text that it is about. */
static int refused(const char *name, const char *text, const char *message) {
  const char *at = strstr(message, ": error:"), *mark = NULL;
  for (const char *p = message; (p = strstr(p, "program_source:")) && (!at || p < at); ++p)
    mark = p;
  if (!mark) return lumc_fail(LUMC_DEVICE, "Metal refuses %s: %.600s", name, message);
  int line = atoi(mark + strlen("program_source:"));
  const char *what = at ? at + 2 : mark;
  for (int i = 1; i < line && text; ++i)
    if ((text = strchr(text, '\n'))) ++text;
  text = text ? text + strspn(text, " ") : "";
  return lumc_fail(LUMC_DEVICE, "Metal refuses %s, line %d: %.*s: %.*s", name, line,
                   (int)strcspn(what, "\n"), what, (int)strcspn(text, "\n"), text);
}

static int load_library(struct metal *m, const struct source *s) {
  char name[1200], *text;
  size_t size;
  snprintf(name, sizeof name, "kernels/%s/kernels.metal", m->plan->target);
  int code = read_checked(s, name, MAX_TEXT, &text, &size);
  if (code) return code;
  id error = NULL, options = SEND(id)(metal.objc_getClass("MTLCompileOptions"), metal.new_object);
  uint64_t version = 3 << 16 | (strstr(text, "bfloat") != NULL); /* 3.0 or 3.1 */
  SEND(void, bool)(options, metal.fast_math, false);
  SEND(void, uint64_t)(options, metal.language, version);
  id source = metal_string(text);
  m->library = SEND(id, id, id, id *)(metal.device, metal.library, source, options, &error);
  if (!m->library) code = refused(name, text, metal_said(error));
  SEND(void)(options, metal.release);
  free(text);
  return code;
}

static int make_pipeline(struct metal *m, const struct kernel *k, id *pipeline) {
  id error = NULL, function;
  if (!k->blocks || !k->threads)
    return lumc_fail(LUMC_CORRUPT, "corrupt plan: kernel '%s' has no grid", k->symbol);
  function = SEND(id, id)(m->library, metal.function, metal_string(k->symbol));
  if (!function)
    return lumc_fail(LUMC_CORRUPT, "the compiled kernels have no '%s'", k->symbol);
  *pipeline = SEND(id, id, id *)(metal.device, metal.pipeline, function, &error);
  SEND(void)(function, metal.release);
  if (!*pipeline)
    return lumc_fail(LUMC_DEVICE, "Metal refuses kernel '%s': %.600s", k->symbol,
                     metal_said(error));
  uint64_t most = SEND(uint64_t)(*pipeline, metal.most_threads);
  if (k->threads <= most) return LUMC_OK;
  return lumc_fail(LUMC_DEVICE, "kernel '%s' has %d threads, this GPU runs at most %d of them",
                   k->symbol, (int)k->threads, (int)most);
}

static int load_weights(struct metal *m, const struct source *s) {
  int code = read_weights(s, m->plan, &m->block);
  if (code) return code;
  m->weights = SEND(id, void *, uint64_t, uint64_t, id)(metal.device, metal.wrap, m->block.data,
                                                        m->block.bytes, 0, NULL);
  if (m->weights) return LUMC_OK;
  return lumc_fail(LUMC_FAILED, "Metal takes no %.1f MB of weights in one buffer",
                   (double)m->block.bytes / 1e6);
}

static int place_states(struct metal *m) {
  int code = LUMC_OK;
  m->states = zeros(m->plan->n_states, sizeof *m->states, &code);
  for (size_t i = 0; i < m->plan->n_states && !code; ++i) {
    size_t bytes = m->plan->states[i].bytes;
    code = allocate(&m->states[i], bytes, "a state");
    if (!code) memset(contents(m->states[i]), 0, bytes);
  }
  return code;
}

/* Arena, inputs and outputs one after another; entries share the memory. */
static int place_values(struct metal *m) {
  size_t most = 0;
  int code = LUMC_OK;
  m->programs = zeros(m->plan->n_lists, sizeof *m->programs, &code);
  for (size_t e = 0; e < m->plan->n_lists && !code; ++e) {
    const struct entry *entry = m->plan->lists[e].entry;
    struct program *p = &m->programs[e];
    size_t at = aligned(entry->arena);
    p->inputs = zeros(entry->n_inputs, sizeof *p->inputs, &code);
    p->outputs = zeros(entry->n_outputs, sizeof *p->outputs, &code);
    for (size_t i = 0; i < entry->n_inputs && !code; at += aligned(entry->inputs[i++].bytes))
      p->inputs[i] = at;
    for (size_t i = 0; i < entry->n_outputs && !code; at += aligned(entry->outputs[i++].bytes))
      p->outputs[i] = at;
    if (at > most) most = at;
  }
  if (!code) code = allocate(&m->memory, most, "the values between kernels");
  if (!code) m->base = contents(m->memory);
  return code ? code : allocate(&m->dims, m->plan->n_dims * ALIGN, "the dims");
}

static int load(struct metal *m, const struct source *s) {
  int code = load_library(m, s);
  m->queue = SEND(id)(metal.device, metal.queue);
  if (!code && !m->queue) code = lumc_fail(LUMC_FAILED, "Metal gives no command queue");
  m->pipelines = zeros(m->plan->n_kernels, sizeof *m->pipelines, &code);
  for (size_t i = 0; i < m->plan->n_kernels && !code; ++i)
    code = make_pipeline(m, &m->plan->kernels[i], &m->pipelines[i]);
  if (!code) code = load_weights(m, s);
  if (!code) code = place_states(m);
  return code ? code : place_values(m);
}

/* ---- launching */

static void set_argument(const struct metal *m, id encoder, size_t list, const struct arg *a,
                         uint64_t turn, uint64_t i) {
  const struct program *p = &m->programs[list];
  const struct entry *e = m->plan->lists[list].entry;
  id buffer = m->memory;
  uint64_t offset = a->offset;
  switch (a->place) {
  case INPUT: offset += p->inputs[a->index]; break;
  case OUTPUT: offset += p->outputs[a->index]; break;
  case ARENA: break;
  case WEIGHT: buffer = m->weights; break;
  case STATE: buffer = m->states[a->index]; break;
  case DIM:
    if (&m->plan->dims[a->index] == e->counter) { /* copied into the command */
      int64_t value = counted(e, turn);
      SEND(void, const void *, uint64_t, uint64_t)(encoder, metal.set_bytes, &value, sizeof value, i);
      return;
    }
    buffer = m->dims;
    offset = a->index * ALIGN;
    break;
  default: return; /* the kernel has no such buffer, or never touches it */
  }
  SEND(void, id, uint64_t, uint64_t)(encoder, metal.set_buffer, buffer, offset, i);
}

struct part { /* some launches of a list, in some of its repetitions; the ends are not in it */
  size_t first, last;
  uint64_t turn, end;
};

static void encode(const struct metal *m, id encoder, size_t list, const struct part *part,
                   uint64_t turn) {
  for (size_t n = part->first; n < part->last; ++n) {
    const struct launch *l = &m->plan->lists[list].launches[n];
    const struct kernel *k = &m->plan->kernels[l->kernel];
    SEND(void, id)(encoder, metal.set_pipeline, m->pipelines[l->kernel]);
    for (size_t i = 0; i < l->n_args; ++i) set_argument(m, encoder, list, &l->args[i], turn, i);
    SEND(void, struct size, struct size)
    (encoder, metal.dispatch, (struct size){k->blocks, 1, 1}, (struct size){k->threads, 1, 1});
  }
}

/* A part as one command buffer; the launches of an encoder run in order. */
static id submit(const struct metal *m, size_t list, struct part part) {
  id commands = SEND(id)(m->queue, metal.commands);
  id encoder = commands ? SEND(id)(commands, metal.encoder) : NULL;
  if (!encoder) return NULL;
  for (uint64_t k = part.turn; k < part.end; ++k) encode(m, encoder, list, &part, k);
  SEND(void)(encoder, metal.end);
  SEND(void)(commands, metal.commit);
  return commands;
}

static int wait_for(id commands) {
  if (!commands) return lumc_fail(LUMC_FAILED, "Metal gives no command buffer");
  SEND(void)(commands, metal.wait);
  if (SEND(uint64_t)(commands, metal.status) != STATUS_ERROR) return LUMC_OK;
  const char *why = metal_said(SEND(id)(commands, metal.error));
  return lumc_fail(LUMC_FAILED, "the GPU failed: %.600s", why);
}

/* ---- the device */

static int open_metal(const struct source *s, const struct plan *plan, int threads, void **self) {
  struct metal *m = *self = calloc(1, sizeof *m);
  (void)threads;
  if (!m) return lumc_fail(LUMC_FAILED, "out of memory");
  m->plan = plan;
  void *pool = metal.objc_autoreleasePoolPush();
  int code = load(m, s);
  metal.objc_autoreleasePoolPop(pool);
  return code;
}

static void drop(id object) {
  if (object) SEND(void)(object, metal.release);
}

static void close_metal(void *self) {
  struct metal *m = self;
  for (size_t i = 0; m->pipelines && i < m->plan->n_kernels; ++i) drop(m->pipelines[i]);
  for (size_t i = 0; m->states && i < m->plan->n_states; ++i) drop(m->states[i]);
  for (size_t i = 0; m->programs && i < m->plan->n_lists; ++i) {
    free(m->programs[i].inputs);
    free(m->programs[i].outputs);
  }
  drop(m->memory);
  drop(m->dims);
  drop(m->weights);
  drop(m->library);
  drop(m->queue);
  release(&m->block);
  free(m->programs);
  free(m->states);
  free(m->pipelines);
  free(m);
}

static int set_threads(void *self, int threads) {
  (void)self, (void)threads;
  return LUMC_OK;
}

static int state(void *self, size_t i, void **data) {
  struct metal *m = self;
  *data = contents(m->states[i]);
  return LUMC_OK;
}

static int begin(void *self, size_t list, const void *const *inputs, void *const *outputs,
                 const size_t *bytes) {
  struct metal *m = self;
  const struct entry *e = m->plan->lists[list].entry;
  (void)outputs;
  for (size_t i = 0; i < m->plan->n_dims; ++i)
    memcpy(contents(m->dims) + i * ALIGN, &m->plan->dims[i].value, sizeof m->plan->dims->value);
  for (size_t i = 0; i < e->n_inputs; ++i)
    if (bytes[i]) memcpy(m->base + m->programs[list].inputs[i], inputs[i], bytes[i]);
  return LUMC_OK;
}

/* Whole repetitions, some in a command buffer each; the last of these buffers. */
static id submit_turns(const struct metal *m, size_t list, uint64_t turns) {
  size_t launches = m->plan->lists[list].n_launches;
  uint64_t most = launches < MOST_LAUNCHES ? MOST_LAUNCHES / launches : 1;
  id commands = NULL;
  for (uint64_t k = 0; k < turns; k += most) {
    struct part part = {0, launches, k, turns - k > most ? k + most : turns};
    if (!(commands = submit(m, list, part))) break;
  }
  return commands;
}

static int repeat(void *self, size_t list, long n) {
  struct metal *m = self;
  const struct list *l = &m->plan->lists[list];
  void *pool = metal.objc_autoreleasePoolPush();
  id commands = NULL;
  for (long i = 0; i < n && l->n_launches; ++i)
    if (!(commands = submit_turns(m, list, l->entry->repeats))) break;
  int code = l->n_launches && n > 0 ? wait_for(commands) : LUMC_OK;
  metal.objc_autoreleasePoolPop(pool);
  return code;
}

static int finish(void *self, size_t list, void *const *outputs, const size_t *bytes) {
  struct metal *m = self;
  const struct entry *e = m->plan->lists[list].entry;
  for (size_t i = 0; i < e->n_outputs; ++i)
    if (bytes[i]) memcpy(outputs[i], m->base + m->programs[list].outputs[i], bytes[i]);
  return LUMC_OK;
}

/* A command buffer for every launch, timed by the GPU: the gaps are longer than in a run. */
static int trace(void *self, size_t list, int threads, int64_t *times) {
  struct metal *m = self;
  const struct list *l = &m->plan->lists[list];
  uint64_t last = l->entry->repeats - 1;
  void *pool = metal.objc_autoreleasePoolPush();
  int code = l->n_launches && last ? wait_for(submit_turns(m, list, last)) : LUMC_OK;
  for (size_t i = 0; i < l->n_launches && !code; ++i) {
    id commands = submit(m, list, (struct part){i, i + 1, last, last + 1});
    if ((code = wait_for(commands))) break;
    times[i * (size_t)threads * 2] = (int64_t)(SEND(double)(commands, metal.started) * 1e9);
    times[i * (size_t)threads * 2 + 1] = (int64_t)(SEND(double)(commands, metal.ended) * 1e9);
  }
  metal.objc_autoreleasePoolPop(pool);
  return code;
}

const struct device metal_device = {"metal", metal_suits, open_metal, set_threads, state,
                                    begin,   repeat, finish,     trace,       close_metal};
