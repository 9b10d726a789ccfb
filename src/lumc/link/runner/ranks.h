/* ranks.h - the processes that run a bundle for a mesh together, and what they exchange. */
#ifndef LUMC_RANKS_H
#define LUMC_RANKS_H

#include "internal.h"
#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* ---- plan_ranks.c: what a plan says of them */
struct mesh_axis {
  const char *name;
  uint64_t ranks;
};
struct segment { /* of weights: a rank has one of `parts`, which lie side by side in the file */
  uint64_t from, to, bytes, parts; /* where the first of them is, where this goes, the size of one */
  uint64_t who; /* which ranks have it; see mesh_has */
  const uint64_t *steps; /* by how many the next rank is further, along each axis of the mesh */
};
struct cut { /* a dim of a state is in blocks along an axis of the mesh; later cuts cut blocks */
  uint64_t dim, axis;
};
struct parts {
  uint64_t who; /* which ranks have the state */
  size_t n;
  const struct cut *cuts;
};
enum exchange_kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, ALL_SLICE, SEND, BROADCAST, EXCHANGES };
enum exchange_op { NO_OP, SUM_OP, MAX_OP, EXCHANGE_OPS };
struct exchange { /* as it lies in the plan; without stages without the last two */
  uint64_t kind, axis, op, dtype;
  uint64_t elements; /* of what each rank has */
  uint64_t outer;    /* of these, how many outside of the axis that is split */
  uint64_t joined;   /* of the result, how many outside of the axis that is put together */
  uint64_t source, target; /* the stage that has the value, and the one that gets it if it is sent */
};

/* ---- ranks_who.c */
extern const char *const of_rank[]; /* the variables that say which rank this is */
/* Of the variables that launchers set the first that is there; -1: none, -2: it is no number. */
long from_environment(const char *const *names);
const char *text_of(const char *name, const char *otherwise);

/* ---- ranks.c */
struct mesh;
/* Meet the other ranks, which run the bundle with this digest; environment variables say who they
 * are and where. */
int mesh_open(struct mesh **, const struct plan *, const char digest[64]);
void mesh_close(struct mesh *);
int mesh_lost(const struct mesh *); /* did an exchange fail? */
/* This rank ends with a code, and the others shall too. */
void mesh_give_up(struct mesh *, int code);
int mesh_rank(const struct mesh *);
int mesh_ranks(const struct mesh *);
/* Which of the ranks of this machine this is, as launchers say; else as if it were the only one; -1: it
 * is no rank. How many there are, by the launchers that say so; else -1. */
int local_rank(void), local_ranks(void);
/* Is this rank one of these: 0 for all, else those of stage who - 1? */
int mesh_has(const struct mesh *, const struct plan *, uint64_t who);
int mesh_has_state(const struct mesh *, const struct plan *, size_t state);
/* Forget the launches of other stages. */
void mesh_keep(const struct mesh *, struct plan *);
/* Which part of a segment this rank has. */
uint64_t mesh_part(const struct mesh *, const struct plan *, const struct segment *);
/* Of a list that goes both ways, for each stage: where its way back begins, how many micro-batches it
 * has under way, and its turns, two for each micro-batch. */
enum { WAY_WORDS = 2 };
/* What is sent from now on waits for nobody, up to so many of each collective; 0: as before, once all has
 * gone. */
int mesh_ahead(struct mesh *, int most);
/* Is something on its way? Help it on. */
int mesh_busy(const struct mesh *);
int mesh_move(struct mesh *);
/* How many micro-batches there are, and which one comes: collectives in time are of that one. */
int mesh_turns(const struct mesh *, const struct plan *);
void mesh_turn(struct mesh *, const struct plan *, int turn);
/* A collective; only that of all ranks to be reduced may have its result where it is read. After a
 * failure all others fail too. */
int mesh_run(struct mesh *, const struct exchange *, const void *from, void *to);
/* Where this rank is along an axis, and of how many. */
int mesh_seat(const struct mesh *, size_t axis, int *at);
/* Without waiting: is another rank gone? Seconds after which one is given up. */
int mesh_look(struct mesh *);
double mesh_patience(const struct mesh *);
/* A state, whole: of all ranks' parts, into memory from malloc. And back: what this rank has of it. */
int mesh_join(struct mesh *, const struct plan *, size_t state, const void *part, void **whole);
int mesh_cut(struct mesh *, const struct plan *, size_t state, const void *whole, void *part);
/* As it is when it is whole. */
int mesh_whole(const struct plan *, size_t state, lumc_tensor *, int64_t shape[MAX_RANK]);

/* ---- rows.c: blocks of values. A row of a block is one of `of` side by side. */
void take_rows(const uint8_t *from, size_t outer, int of, int block, size_t row, uint8_t *to);
void put_rows(const uint8_t *from, size_t outer, int of, int block, size_t row, uint8_t *to);
/* n elements and others into the first; whole numbers wrap, NaN stays. */
void reduce_rows(int dtype, uint64_t op, uint8_t *to, const uint8_t *other, size_t n);

/* ---- how bytes travel: tcp.c, mpi.c */
struct packet { /* to and from another rank; NULL for nothing */
  int peer;
  const void *out;
  void *in;
  size_t n_out, n_in;
};
struct meeting {
  int rank, ranks;
  const char *address; /* of rank 0: host and port */
  const char *port;
  int file; /* of its socket, if it has one already; else -1 */
  double patience;   /* seconds without any answer after which a rank is given up */
  const char *token; /* 64 characters that all ranks have in common, and nobody else */
};
struct transport {
  int (*open)(const struct meeting *, void **self);
  /* Send and receive all of it. */
  int (*swap)(void *self, const struct packet *, size_t n);
  int (*look)(void *self); /* is a connection lost? NULL: the launcher ends all then */
  /* Bytes for another rank, which may be used again at once: they go when there is time. Only where `most`
   * with this tag are on their way to it already, it waits. */
  int (*post)(void *self, int peer, const void *data, size_t bytes, uint64_t tag, int most);
  /* The next bytes with this tag that another rank posted. */
  int (*take)(void *self, int peer, void *to, size_t bytes, uint64_t tag);
  /* Help on what was posted; or until it is all on its way. */
  int (*move)(void *self, int all);
  int (*busy)(const void *self); /* is there something that was posted? */
  void (*close)(void *self, int code); /* why it failed, or LUMC_OK */
};
extern const struct transport tcp_transport, mpi_transport;

/* ---- parcels.c: what goes over sockets when there is time */
struct line_of { /* of a connected rank: what is to go to it, and what came that nobody took yet */
  int file;
  struct parcel *out, **out_end, *in, **in_end;
};
struct post {
  int rank, ranks;
  double patience;
  struct line_of *lines;
};
int parcels_open(struct post *, int rank, int ranks, const int *files, double patience);
void parcels_close(struct post *);
int parcels_post(struct post *, int peer, const void *data, size_t bytes, uint64_t tag, int most);
int parcels_take(struct post *, int peer, void *to, size_t bytes, uint64_t tag);
int parcels_move(struct post *, int all);
int parcels_busy(const struct post *);
/* As many bytes as there is room for now; how many, -1 where the connection is lost. */
ssize_t tcp_some(int file, void *in, const void *out, size_t n);
int tcp_lost(int rank, int peer), tcp_silent(int rank, int peer, double patience);
int tcp_other(int rank, int peer); /* it runs something else */

#pragma GCC visibility pop
#endif
