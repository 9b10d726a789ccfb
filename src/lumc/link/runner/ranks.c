/* ranks.c - this process among those that run a bundle together, and the collectives.
 *
 * What is reduced is added in the order of the ranks, and every element by one of them: all have the
 * same bits of it. */
#include "ranks.h"
#include <stdlib.h>
#include <string.h>

struct mesh {
  const struct transport *transport;
  void *self; /* of the transport */
  int rank, ranks, broken;
  double patience;
  size_t n_axes;
  struct seat { /* along an axis: where this rank is, of how many, and how far the next one is */
    int at, ranks, step;
  } seats[8];
  int ahead; /* what is sent waits for nobody: so many of one exchange may be on their way, 0: it does */
  const struct exchange *exchanges; /* of the plan; they are numbered on the way */
  struct block memory; /* parts on their way */
  struct packet *packets;
};

/* ---- who this is */

/* What all ranks have in common, and who does not belong to them has not. */
static void token_of(const char digest[64], char token[65]) {
  const char *key = text_of("LUMC_MESH_KEY", "");
  struct sha256 hash;
  sha256_start(&hash);
  sha256_add(&hash, digest, 64);
  sha256_add(&hash, key, strlen(key));
  sha256_hex(&hash, token);
}

static int said(const struct plan *p, char *to, size_t size) {
  uint64_t ranks = 1;
  size_t n = 0;
  for (size_t i = 0; i < p->n_axes && n < size; ++i) {
    if (i + 1 == p->time) continue;
    ranks *= p->axes[i].ranks;
    n += (size_t)snprintf(to + n, size - n, "%s%.40s %d", n ? ", " : "", p->axes[i].name,
                          (int)p->axes[i].ranks);
  }
  return (int)ranks;
}

static int meet(struct mesh *m, const struct plan *p, const char digest[64]) {
  static const char *const of_size[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};
  static const char *const of_file[] = {"LUMC_MESH_FD", NULL};
  char text[512], token[65];
  int wanted = said(p, text, sizeof text);
  long rank = from_environment(of_rank), ranks = from_environment(of_size);
  if (rank == -1)
    return lumc_fail(LUMC_USAGE, "this bundle is for %d ranks (%s): start it with --mesh, or by mpiexec, "
                     "torchrun or srun", wanted, text);
  if (rank < 0 || rank >= ranks || ranks != wanted)
    return lumc_fail(LUMC_USAGE, "this bundle is for %d ranks (%s), and this is rank %ld of %ld", wanted,
                     text, rank, ranks);
  m->rank = (int)rank, m->ranks = (int)ranks;
  token_of(digest, token);
  struct meeting where = {.rank = m->rank, .ranks = m->ranks, .token = token};
  where.address = text_of("MASTER_ADDR", "127.0.0.1");
  where.port = text_of("MASTER_PORT", NULL);
  where.file = (int)from_environment(of_file);
  where.patience = atof(text_of("LUMC_MESH_TIMEOUT", "300"));
  if (!(where.patience > 0)) return lumc_fail(LUMC_USAGE, "LUMC_MESH_TIMEOUT is no number of seconds");
  m->patience = where.patience;
  const char *kind = text_of("LUMC_TRANSPORT", where.port ? "tcp" : "mpi");
  if (strcmp(kind, "tcp") && strcmp(kind, "mpi"))
    return lumc_fail(LUMC_USAGE, "LUMC_TRANSPORT is tcp or mpi, not '%.40s'", kind);
  if (!strcmp(kind, "tcp") && !where.port)
    return lumc_fail(LUMC_USAGE, "MASTER_PORT says no port where ranks meet");
  m->transport = strcmp(kind, "tcp") ? &mpi_transport : &tcp_transport;
  return m->transport->open(&where, &m->self);
}

int mesh_open(struct mesh **mesh, const struct plan *p, const char digest[64]) {
  int code = LUMC_OK, step = 1;
  size_t most = 0;
  struct mesh *m = *mesh = zeros(1, sizeof *m, &code);
  if (code || (code = meet(m, p, digest))) return code;
  m->n_axes = p->n_axes, m->exchanges = p->exchanges;
  for (size_t i = p->n_axes; i-- > 0;) {
    int n = (int)p->axes[i].ranks;
    m->seats[i] = i + 1 == p->time ? (struct seat){0, n, 0} : (struct seat){m->rank / step % n, n, step};
    if (i + 1 != p->time) step *= n;
  }
  for (size_t i = 0; i < p->n_exchanges; ++i) {
    const struct exchange *e = &p->exchanges[i];
    if (e->axis + 1 == p->time) continue;
    size_t ranks = (size_t)m->seats[e->axis].ranks, element = dtype_bytes((int)e->dtype);
    size_t own = (size_t)e->elements * element, all = own + (ranks + 1) * element;
    if (e->kind == ALL_GATHER) all = own * ranks;
    if (own + all > most) most = own + all;
  }
  m->packets = zeros((size_t)m->ranks, sizeof *m->packets, &code);
  return code ? code : reserve(&m->memory, most);
}

void mesh_close(struct mesh *m) {
  if (!m) return;
  if (m->self) m->transport->close(m->self, m->broken);
  release(&m->memory);
  free(m->packets);
  free(m);
}

int mesh_lost(const struct mesh *m) { return m && m->broken; }

void mesh_give_up(struct mesh *m, int code) {
  if (m && !m->broken) m->broken = code;
}

int mesh_rank(const struct mesh *m) { return m ? m->rank : 0; }
int mesh_ranks(const struct mesh *m) { return m->ranks; }

double mesh_patience(const struct mesh *m) { return m->patience; }

int mesh_seat(const struct mesh *m, size_t axis, int *at) {
  *at = m->seats[axis].at;
  return m->seats[axis].ranks;
}

int mesh_look(struct mesh *m) {
  int code = m->broken || !m->transport->look ? m->broken : m->transport->look(m->self);
  if (code) m->broken = code;
  return code;
}

int mesh_has(const struct mesh *m, const struct plan *p, uint64_t who) {
  return !who || !m || m->seats[p->stages - 1].at == (int)who - 1;
}

int mesh_has_state(const struct mesh *m, const struct plan *p, size_t state) {
  return !p->n_axes || mesh_has(m, p, p->parts[state].who);
}

/* Of a list that goes both ways what is for this rank's stage. */
static void take_turns(const struct mesh *m, const struct plan *p, struct list *l) {
  if (!l->ways) return;
  uint64_t own = (uint64_t)m->seats[p->stages - 1].at, turns = 2 * p->axes[p->time - 1].ranks;
  const uint64_t *way = l->ways + own * (WAY_WORDS + turns);
  l->middle = (size_t)way[0], l->open = (size_t)way[1], l->turns = way + WAY_WORDS;
}

void mesh_keep(const struct mesh *m, struct plan *p) {
  for (struct list *l = p->lists; l < p->lists + p->n_lists; ++l) {
    take_turns(m, p, l);
    size_t n = 0, first = l->first, last = l->last, middle = l->middle;
    for (size_t i = 0; i < l->n_launches; ++i) {
      int own = mesh_has(m, p, l->launches[i].who);
      if (!own && i < first) --l->first;
      if (!own && i < last) --l->last;
      if (!own && i < middle) --l->middle;
      if (own) l->launches[n++] = l->launches[i];
    }
    l->n_launches = n;
  }
}

int mesh_turns(const struct mesh *m, const struct plan *p) {
  return m && p->time ? m->seats[p->time - 1].ranks : 1;
}

void mesh_turn(struct mesh *m, const struct plan *p, int turn) {
  if (m && p->time) m->seats[p->time - 1].at = turn;
}

int mesh_ahead(struct mesh *m, int most) {
  int code = m->broken || most ? m->broken : m->transport->move(m->self, 1);
  m->ahead = most;
  return m->broken = code;
}

int mesh_busy(const struct mesh *m) { return m && m->ahead && m->transport->busy(m->self); }

int mesh_move(struct mesh *m) {
  int code = m->broken ? m->broken : m->transport->move(m->self, 0);
  return m->broken = code;
}

uint64_t mesh_part(const struct mesh *m, const struct plan *p, const struct segment *s) {
  uint64_t part = 0;
  for (size_t i = 0; i < p->n_axes; ++i) part += s->steps[i] * (uint64_t)m->seats[i].at;
  return part;
}

/* ---- collectives */

/* Which rank has this place along an axis, and the others as this one. */
static int peer_at(const struct mesh *m, const struct seat *s, int at) {
  return m->rank + (at - s->at) * s->step;
}

static int swap(struct mesh *m, size_t n) {
  int code = m->broken ? lumc_fail(LUMC_FAILED, "an exchange between ranks failed before")
                       : m->transport->swap(m->self, m->packets, n);
  if (code) m->broken = code;
  return code;
}

/* Every rank along an axis has blocks for all of them; `in` has room for as many. Its own is copied.
 * Blocks end where `ends` says, which counts elements: of `element` bytes. */
static int swap_blocks(struct mesh *m, const struct seat *s, const uint8_t *out, const size_t *ends,
                       size_t element, uint8_t *in) {
  size_t n = 0, own = (ends[s->at + 1] - ends[s->at]) * element;
  for (int i = 0; i < s->ranks; ++i) {
    const uint8_t *block = out + ends[i] * element;
    if (i == s->at)
      memcpy(in + (size_t)i * own, block, own);
    else
      m->packets[n++] = (struct packet){peer_at(m, s, i), block, in + (size_t)i * own,
                                        (ends[i + 1] - ends[i]) * element, own};
  }
  return swap(m, n);
}

/* What this rank has to all along an axis; theirs into blocks that end so. */
static int swap_all(struct mesh *m, const struct seat *s, const uint8_t *own, const size_t *ends,
                    size_t element, uint8_t *to) {
  size_t n = 0, bytes = (ends[s->at + 1] - ends[s->at]) * element;
  for (int i = 0; i < s->ranks; ++i)
    if (i == s->at)
      memmove(to + ends[i] * element, own, bytes);
    else
      m->packets[n++] = (struct packet){peer_at(m, s, i), own, to + ends[i] * element, bytes,
                                        (ends[i + 1] - ends[i]) * element};
  return swap(m, n);
}

/* What a micro-batch adds to what those before it made: its own part, or itself to their sum. */
static int add(const struct seat *s, const struct exchange *e, const uint8_t *from, uint8_t *to, size_t element) {
  size_t n = (size_t)e->elements, bytes = n * element, outer = (size_t)e->outer, joined = (size_t)e->joined;
  int of = s->ranks, at = s->at;
  if (e->kind == ALL_SLICE) take_rows(from, outer, of, at, bytes / (size_t)of / outer, to);
  else if (e->kind == ALL_GATHER) put_rows(from, joined, of, at, bytes / joined, to);
  else if (!at) memcpy(to, from, bytes);
  else reduce_rows((int)e->dtype, e->op, to, from, n);
  return LUMC_OK;
}

/* What one stage has to another one, which takes it when it comes to it. */
static int post(struct mesh *m, const struct seat *s, const struct exchange *e, const uint8_t *from, uint8_t *to,
                size_t bytes) {
  int code = m->broken, source = (int)e->source, target = (int)e->target;
  uint64_t tag = (uint64_t)(e - m->exchanges);
  if (s->at != source && s->at != target) return code;
  if (code) return lumc_fail(LUMC_FAILED, "an exchange between ranks failed before");
  code = s->at == source ? m->transport->post(m->self, peer_at(m, s, target), from, bytes, tag, m->ahead)
                         : m->transport->take(m->self, peer_at(m, s, source), to, bytes, tag);
  return m->broken = code;
}

/* What one stage has to another one, or to all. */
static int pass(struct mesh *m, const struct seat *s, const struct exchange *e, const uint8_t *from,
                uint8_t *to, size_t bytes) {
  size_t n = 0;
  int source = (int)e->source;
  for (int i = 0; i < s->ranks; ++i) {
    if (i == source || (e->kind == SEND && i != (int)e->target)) continue;
    if (s->at == source)
      m->packets[n++] = (struct packet){peer_at(m, s, i), from, NULL, bytes, 0};
    else if (s->at == i)
      m->packets[n++] = (struct packet){peer_at(m, s, source), NULL, to, 0, bytes};
  }
  if (s->at == source && e->kind == BROADCAST) memcpy(to, from, bytes);
  return n ? swap(m, n) : LUMC_OK;
}

int mesh_run(struct mesh *m, const struct exchange *e, const void *source, void *result) {
  const struct seat *s = &m->seats[e->axis];
  const uint8_t *from = source;
  uint8_t *to = result, *parts = m->memory.data;
  size_t element = dtype_bytes((int)e->dtype), n = (size_t)e->elements, P = (size_t)s->ranks;
  if (!s->step) return add(s, e, from, to, element);
  if (m->ahead && e->kind == SEND) return post(m, s, e, from, to, n * element);
  size_t bytes = n * element, outer = (size_t)e->outer, joined = (size_t)e->joined;
  size_t row = bytes / P / outer, block = bytes / P; /* of what is split */
  size_t *ends = malloc((P + 1) * sizeof *ends);
  int code = ends ? LUMC_OK : lumc_fail(LUMC_FAILED, "out of memory");
  if (code) return code;
  int even = e->kind == REDUCE_SCATTER || e->kind == ALL_TO_ALL;
  for (size_t i = 0; i <= P; ++i) ends[i] = even ? n / P * i : e->kind == ALL_GATHER ? n * i : n * i / P;
  if (even && outer > 1) { /* blocks without gaps, behind those that come */
    uint8_t *packed = parts + bytes;
    for (size_t i = 0; i < P; ++i) take_rows(from, outer, (int)P, (int)i, row, packed + i * block);
    from = packed;
  }
  switch (e->kind) {
  case SEND:
  case BROADCAST: code = pass(m, s, e, from, to, bytes); break;
  case ALL_SLICE: take_rows(from, outer, (int)P, s->at, row, to); break;
  case ALL_GATHER:
    code = swap_all(m, s, from, ends, element, joined > 1 ? parts : to);
    for (size_t i = 0; joined > 1 && !code && i < P; ++i)
      put_rows(parts + i * bytes, joined, (int)P, (int)i, bytes / joined, to);
    break;
  case ALL_TO_ALL:
    code = swap_blocks(m, s, from, ends, element, parts);
    for (size_t i = 0; !code && i < P; ++i)
      put_rows(parts + i * block, joined, (int)P, (int)i, block / joined, to);
    break;
  default: { /* reduced: a rank does it for its own block */
    size_t own = ends[s->at + 1] - ends[s->at];
    code = swap_blocks(m, s, from, ends, element, parts);
    for (size_t i = 1; !code && i < P; ++i)
      reduce_rows((int)e->dtype, e->op, parts, parts + i * own * element, own);
    if (code) break;
    if (e->kind == ALL_REDUCE)
      code = swap_all(m, s, parts, ends, element, to);
    else
      memcpy(to, parts, own * element);
  }
  }
  free(ends);
  return code;
}

/* ---- states */

int mesh_whole(const struct plan *p, size_t state, lumc_tensor *t, int64_t shape[MAX_RANK]) {
  *t = p->states[state];
  memcpy(shape, t->shape, (size_t)t->rank * sizeof *shape);
  t->shape = shape;
  for (size_t k = 0; p->n_axes && k < p->parts[state].n; ++k) {
    const struct cut *cut = &p->parts[state].cuts[k];
    shape[cut->dim] *= (int64_t)p->axes[cut->axis].ranks;
    t->bytes *= (size_t)p->axes[cut->axis].ranks;
  }
  return LUMC_OK;
}

/* The elements of a shape outside of a dim. */
static uint64_t outside(const int64_t *shape, uint64_t dim) {
  uint64_t n = 1;
  for (uint64_t i = 0; i < dim; ++i) n *= (uint64_t)shape[i];
  return n;
}

/* One collective on memory that is made for it, which takes the place of the one before. */
static int step(struct mesh *m, const struct exchange *e, void **data, size_t bytes) {
  int code = LUMC_OK;
  struct block before = m->memory;
  void *to = zeros(bytes, 1, &code);
  m->memory = (struct block){NULL, 0};
  if (!code) code = reserve(&m->memory, bytes);
  if (!code) code = mesh_run(m, e, *data, to);
  release(&m->memory);
  m->memory = before;
  free(*data);
  *data = to;
  return code;
}

int mesh_join(struct mesh *m, const struct plan *p, size_t state, const void *part, void **whole) {
  const lumc_tensor *t = &p->states[state];
  int64_t shape[MAX_RANK];
  int code = LUMC_OK;
  memcpy(shape, t->shape, (size_t)t->rank * sizeof *shape);
  size_t bytes = t->bytes, element = dtype_bytes(t->dtype);
  *whole = zeros(bytes, 1, &code);
  if (!code) memcpy(*whole, part, bytes);
  for (size_t k = p->parts[state].n; k-- > 0 && !code;) {
    const struct cut *cut = &p->parts[state].cuts[k];
    struct exchange e = {ALL_GATHER, cut->axis, NO_OP, (uint64_t)t->dtype, bytes / element, 1,
                         outside(shape, cut->dim), 0, 0};
    shape[cut->dim] *= (int64_t)p->axes[cut->axis].ranks;
    bytes *= (size_t)p->axes[cut->axis].ranks;
    code = step(m, &e, whole, bytes);
  }
  if (p->parts[state].who && !code) {
    struct exchange e = {BROADCAST, p->stages - 1, NO_OP, (uint64_t)t->dtype, bytes / element, 1, 1,
                         p->parts[state].who - 1, 0};
    code = step(m, &e, whole, bytes);
  }
  return code;
}

int mesh_cut(struct mesh *m, const struct plan *p, size_t state, const void *whole, void *part) {
  int64_t shape[MAX_RANK];
  lumc_tensor t;
  if (!mesh_has_state(m, p, state)) return LUMC_OK;
  int code = mesh_whole(p, state, &t, shape);
  size_t bytes = t.bytes;
  void *data = zeros(bytes, 1, &code);
  if (!code) memcpy(data, whole, bytes);
  for (size_t k = 0; k < p->parts[state].n && !code; ++k) {
    const struct cut *cut = &p->parts[state].cuts[k];
    struct exchange e = {ALL_SLICE, cut->axis, NO_OP, (uint64_t)t.dtype,
                         bytes / dtype_bytes(t.dtype), outside(shape, cut->dim), 1, 0, 0};
    shape[cut->dim] /= (int64_t)p->axes[cut->axis].ranks;
    bytes /= (size_t)p->axes[cut->axis].ranks;
    code = step(m, &e, &data, bytes);
  }
  if (!code) memcpy(part, data, bytes);
  free(data);
  return code;
}
