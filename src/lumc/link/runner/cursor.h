/* cursor.h - reading a plan file: words, counts and names, each checked. */
#ifndef LUMC_CURSOR_H
#define LUMC_CURSOR_H

#include "internal.h"
#include <stdlib.h>
#include <string.h>

static const uint64_t MAX_BYTES = (uint64_t)1 << 46; /* of a tensor or an arena */

struct cursor {
  const uint8_t *at, *end;
  const char *bad; /* what is wrong; after it every read gives zeros */
  int code;        /* why: the plan's fault, if nothing else is said */
};

static inline uint64_t word(struct cursor *c) {
  uint64_t value = 0;
  if (c->bad) return 0;
  if (c->end - c->at < 8) {
    c->bad = "it is truncated";
    return 0;
  }
  memcpy(&value, c->at, 8);
  c->at += 8;
  return value;
}

static inline uint64_t word_below(struct cursor *c, uint64_t limit, const char *what) {
  uint64_t value = word(c);
  if (!c->bad && value >= limit) c->bad = what;
  return c->bad ? 0 : value;
}

/* The number of records that follow, each of at least `words` words. */
static inline size_t count(struct cursor *c, size_t words) {
  uint64_t n = word(c), left = (uint64_t)(c->end - c->at) / 8 / words;
  if (!c->bad && n > left) c->bad = "a count exceeds the file";
  return c->bad ? 0 : (size_t)n;
}

static inline void *table(struct cursor *c, size_t n, size_t size) {
  void *memory = c->bad ? NULL : calloc(n + 1, size);
  if (!memory && !c->bad) c->bad = "out of memory", c->code = LUMC_FAILED;
  return memory;
}

/* A length, the bytes, a NUL, zeros up to the next word: used where it lies. */
static inline const char *string(struct cursor *c) {
  size_t n = (size_t)word_below(c, MAX_NAME, "a name is too long"), room = (n + 8) / 8 * 8;
  const char *text = (const char *)c->at;
  if (c->bad) return "";
  if ((size_t)(c->end - c->at) < room) {
    c->bad = "it is truncated";
    return "";
  }
  for (size_t i = 0; i < room; ++i)
    if (i < n ? (unsigned char)text[i] < 0x20 || text[i] == 0x7f : text[i] != 0) {
      c->bad = "a name holds a control character";
      return "";
    }
  c->at += room;
  return text;
}

/* Does a place of these bytes, which begins at a line of memory, lie in so many? */
static inline int inside(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset % 64 == 0 && bytes <= size && offset <= size - bytes;
}

#pragma GCC visibility push(hidden)
/* ---- plan_ranks.c: what plans for a mesh have more */
void plan_mesh(struct cursor *, struct plan *, int is_long);
/* Which launches of a list each micro-batch has, and in which order a stage goes through them. */
void plan_turns(struct cursor *, const struct plan *, struct list *);
/* Which ranks: 0 for all, or 1 + a stage; only plans with stages have a word for it. */
uint64_t plan_who(struct cursor *, const struct plan *);
void plan_exchanges(struct cursor *, struct plan *); /* weights and states are known now */
/* A launch of a collective, whose arguments lie inside of their places. */
void plan_exchange(struct cursor *, const struct plan *, const struct launch *);
#pragma GCC visibility pop

#endif
