/* plan_ranks.c - reads what plans for a mesh have more: axes, where weights are from, collectives. */
#include "cursor.h"
#include "ranks.h"

enum { MAX_AXES = 8, MAX_RANKS = 1 << 16 };

static void axes(struct cursor *c, struct plan *p) {
  uint64_t ranks = 1;
  p->n_axes = count(c, 3);
  if (!c->bad && (p->n_axes < 1 || p->n_axes > MAX_AXES)) c->bad = "a mesh has no axes, or too many";
  p->axes = table(c, p->n_axes, sizeof *p->axes);
  for (size_t i = 0; i < p->n_axes && !c->bad; ++i) {
    p->axes[i].name = string(c);
    p->axes[i].ranks = word_below(c, MAX_RANKS + 1, "a mesh has too many ranks");
    if (!c->bad && p->axes[i].ranks < 2) c->bad = "an axis of a mesh has one rank";
    for (size_t k = 0; k < i && !c->bad; ++k)
      if (!strcmp(p->axes[k].name, p->axes[i].name)) c->bad = "two axes of a mesh have one name";
    ranks *= p->axes[i].ranks;
    if (!c->bad && ranks > MAX_RANKS) c->bad = "a mesh has too many ranks";
  }
}

uint64_t plan_who(struct cursor *c, const struct plan *p) {
  uint64_t stages = p->stages ? p->axes[p->stages - 1].ranks : 0;
  return p->is_long ? word_below(c, 1 + stages, "a stage that there is not") : 0;
}

/* The greatest number of a part that a rank has is that of the last. */
static void segment(struct cursor *c, const struct plan *p, struct segment *s) {
  s->from = word_below(c, MAX_BYTES, "the weights are too large");
  s->to = word_below(c, MAX_BYTES, "the weights are too large");
  s->bytes = word_below(c, MAX_BYTES, "the weights are too large");
  s->parts = word_below(c, MAX_RANKS + 1, "a weight has too many parts");
  s->who = plan_who(c, p);
  s->steps = (const uint64_t *)(const void *)c->at;
  uint64_t last = 0;
  for (size_t i = 0; i < p->n_axes && !c->bad; ++i) {
    uint64_t step = word_below(c, MAX_RANKS, "a weight has too many parts");
    last += step * (p->axes[i].ranks - 1);
    if (step && i + 1 == p->time) c->bad = "a weight is in parts of micro-batches";
  }
  if (!c->bad && last + 1 != s->parts) c->bad = "ranks have other parts of a weight than there are";
}

/* The turns of a stage: each micro-batch forward and then back, in order, and few at a time. */
static void turns(struct cursor *c, uint64_t batches, uint64_t most) {
  uint64_t done[2] = {0, 0};
  for (uint64_t i = 0; i < 2 * batches && !c->bad; ++i) {
    uint64_t turn = word(c), back = turn & 1;
    if (!c->bad && (turn >> 1 != done[back]++ || done[back] > batches || done[1] > done[0] || done[0] - done[1] > most))
      c->bad = "a stage has its micro-batches in another order";
  }
}

/* Where each stage begins to go back, how many micro-batches it has under way, and its turns. */
static void ways(struct cursor *c, const struct plan *p, struct list *l) {
  if (!word_below(c, 2, "micro-batches that go another way") || c->bad) return;
  l->waiting = word_below(c, MAX_BYTES, "an arena is too large");
  l->stride = word_below(c, MAX_BYTES, "an arena is too large");
  l->ways = (const uint64_t *)(const void *)c->at;
  if (!c->bad && (!p->stages || !p->time)) c->bad = "micro-batches that go another way";
  uint64_t stages = c->bad ? 0 : p->axes[p->stages - 1].ranks, batches = c->bad ? 0 : p->axes[p->time - 1].ranks;
  for (uint64_t s = 0; s < stages && !c->bad; ++s) {
    uint64_t middle = word(c), open = word(c);
    if (c->bad) return;
    if (middle < l->first || middle > l->last)
      c->bad = "micro-batches of other launches than there are";
    else if (open < 1 || open > stages - s || open > batches)
      c->bad = "a stage has too many micro-batches open";
    else if ((l->waiting | l->stride) % 64 || l->waiting + l->stride * open > l->entry->arena)
      c->bad = "what waits lies outside of its place";
    turns(c, batches, open);
  }
}

void plan_turns(struct cursor *c, const struct plan *p, struct list *l) {
  if (!p->is_long) return;
  l->first = (size_t)word(c), l->last = (size_t)word(c);
  if (!c->bad && (l->first > l->last || (l->last && !p->time)))
    c->bad = "micro-batches of other launches than there are";
  if (p->is_long > 1) ways(c, p, l);
}

void plan_mesh(struct cursor *c, struct plan *p, int is_long) {
  static const char odd[] = "stages along an axis that there is not";
  uint64_t end = 0;
  axes(c, p);
  p->is_long = is_long;
  if (is_long) p->stages = word_below(c, p->n_axes + 1, odd);
  if (is_long) p->time = word_below(c, p->n_axes + 1, odd);
  if (p->stages && p->stages == p->time) c->bad = odd;
  p->n_segments = count(c, 4 + p->n_axes);
  p->segments = table(c, p->n_segments, sizeof *p->segments);
  for (size_t i = 0; i < p->n_segments && !c->bad; ++i) {
    struct segment *s = &p->segments[i];
    segment(c, p, s);
    if (!c->bad && (s->from != end || s->from % 64)) c->bad = "weights are not side by side";
    end += s->bytes * s->parts;
    if (!c->bad && end > MAX_BYTES) c->bad = "the weights are too large";
  }
  p->n_parts = count(c, 1);
  p->parts = table(c, p->n_parts, sizeof *p->parts);
  for (size_t i = 0; i < p->n_parts && !c->bad; ++i) {
    p->parts[i].who = plan_who(c, p);
    p->parts[i].n = count(c, 2);
    p->parts[i].cuts = (const struct cut *)(const void *)c->at;
    if (!c->bad) c->at += p->parts[i].n * sizeof *p->parts[i].cuts;
  }
  p->n_packed = is_long ? count(c, 1) : 0;
  p->packed = (const uint64_t *)(const void *)c->at;
  for (size_t i = 0; i < p->n_packed && !c->bad; ++i) plan_who(c, p);
}

static void check_parts(struct cursor *c, const struct plan *p) {
  if (!c->bad && p->n_parts != p->n_states) c->bad = "parts of other states than there are";
  if (!c->bad && p->is_long && p->n_packed != p->n_packings) c->bad = "stages of other weights than are packed";
  for (size_t i = 0; i < p->n_parts && !c->bad; ++i) {
    uint64_t seen = 0, bytes = p->states[i].bytes;
    for (size_t k = 0; k < p->parts[i].n && !c->bad; ++k) {
      const struct cut *cut = &p->parts[i].cuts[k];
      if (cut->axis >= p->n_axes || cut->axis + 1 == p->time || cut->dim >= (uint64_t)p->states[i].rank || seen >> cut->axis & 1)
        c->bad = "a state is in parts that there are not";
      else if ((bytes *= p->axes[cut->axis].ranks) > MAX_BYTES)
        c->bad = "a tensor is too large";
      else
        seen |= (uint64_t)1 << cut->axis;
    }
  }
}

static const char *problem(const struct plan *p, const struct exchange *e) {
  int reduces = e->kind == ALL_REDUCE || e->kind == REDUCE_SCATTER;
  int splits = e->kind == REDUCE_SCATTER || e->kind == ALL_TO_ALL || e->kind == ALL_SLICE;
  int joins = e->kind == ALL_GATHER || e->kind == ALL_TO_ALL;
  if (e->kind >= EXCHANGES || e->axis >= p->n_axes || e->op >= EXCHANGE_OPS || e->dtype > LUMC_U64)
    return "an unknown collective";
  if (e->elements >= MAX_BYTES || e->outer >= MAX_BYTES || e->joined >= MAX_BYTES)
    return "a collective is too large";
  uint64_t ranks = p->axes[e->axis].ranks;
  if (e->elements * dtype_bytes((int)e->dtype) > MAX_BYTES / ranks) return "a collective is too large";
  if (reduces != (e->op != NO_OP) || !e->outer || !e->joined) return "an unknown collective";
  if (e->op == SUM_OP && (e->dtype == LUMC_F16 || e->dtype == LUMC_BF16 || e->dtype == LUMC_BOOL))
    return "ranks do not sum such elements";
  if (splits ? e->elements % e->outer || e->elements / e->outer % ranks : e->outer != 1)
    return "a collective splits what does not divide";
  uint64_t made = splits ? e->elements / ranks : e->elements; /* of each rank in the result */
  if (joins ? made % e->joined : e->joined != 1) return "a collective joins what does not divide";
  int leaves = e->kind == SEND || e->kind == BROADCAST;
  if (leaves && !p->stages) return "an unknown collective";
  if (e->axis + 1 == p->time && e->kind != ALL_REDUCE && e->kind != ALL_SLICE && e->kind != ALL_GATHER)
    return "a collective that is not in time";
  if (leaves != (e->axis + 1 == p->stages)) return "a collective between stages, or none";
  if (!leaves) ranks = 1;
  if (e->source >= ranks || e->target >= ranks) return "a stage that there is not";
  if (e->kind == SEND ? e->source == e->target : e->target != 0) return "a stage that there is not";
  return NULL;
}

void plan_exchanges(struct cursor *c, struct plan *p) {
  check_parts(c, p);
  for (size_t i = 0; i < p->n_segments && !c->bad; ++i)
    if (!inside(p->segments[i].to, p->segments[i].bytes, p->weights_bytes))
      c->bad = "a weight lies outside of its place";
  size_t words = sizeof *p->exchanges / 8 - (p->is_long ? 0 : 2);
  p->n_exchanges = count(c, words);
  p->exchanges = table(c, p->n_exchanges, sizeof *p->exchanges);
  for (size_t i = 0; i < p->n_exchanges && !c->bad; ++i) {
    memcpy(&p->exchanges[i], c->at, words * 8);
    c->bad = problem(p, &p->exchanges[i]);
    c->at += words * 8;
  }
}

static int is_memory(const struct arg *a, int written) {
  if (a->place == ARENA || a->place == OUTPUT) return 1;
  return !written && (a->place == INPUT || a->place == WEIGHT || a->place == STATE);
}

void plan_exchange(struct cursor *c, const struct plan *p, const struct launch *l) {
  const struct exchange *e = &p->exchanges[l->kernel - p->n_kernels];
  uint64_t ranks = p->axes[e->axis].ranks, bytes = e->elements * dtype_bytes((int)e->dtype);
  uint64_t made = e->kind == ALL_GATHER ? bytes * ranks
                  : e->kind == REDUCE_SCATTER || e->kind == ALL_SLICE ? bytes / ranks : bytes;
  if (l->n_args != 2 || !is_memory(&l->args[0], 0) || !is_memory(&l->args[1], 1)) {
    c->bad = "a collective is of no two values";
    return;
  }
  const struct arg *from = &l->args[0], *to = &l->args[1];
  if (from->bytes != bytes || to->bytes != made) {
    c->bad = "a collective has values of other sizes";
    return;
  }
  if (e->kind == SEND) return; /* one stage reads it, and another one writes it */
  if (from->place != to->place || (from->place == OUTPUT && from->index != to->index)) return;
  int same = from->offset == to->offset || from->place == OUTPUT;
  int apart = from->offset + bytes <= to->offset || to->offset + made <= from->offset;
  if (same ? e->kind != ALL_REDUCE : !apart) c->bad = "a collective writes what it reads";
}
