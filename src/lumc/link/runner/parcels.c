/* parcels.c - bytes that go to other ranks when there is time: who sends them waits for nobody.
 *
 * They are copied, and go over the rank's socket as far as it takes them, then at every call here. What
 * comes before it is asked for is kept. So ranks that send to each other never wait for each other, however
 * little their sockets hold; how much is kept is what the order of the plan lets be open. */
#include "ranks.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t POSTED = (uint64_t)1 << 63; /* in the number of what is no part of an exchange */

struct top { /* before the bytes, as before those of exchanges in tcp.c */
  uint64_t number, bytes;
};
struct parcel {
  struct parcel *next;
  size_t done; /* bytes that have gone, or come, of all */
  struct top top;
  uint8_t data[];
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t size_of(const struct parcel *p) { return sizeof p->top + (size_t)p->top.bytes; }

int parcels_open(struct post *o, int rank, int ranks, const int *files, double patience) {
  int code = LUMC_OK;
  *o = (struct post){rank, ranks, patience, zeros((size_t)ranks, sizeof *o->lines, &code)};
  for (int i = 0; i < ranks && !code; ++i) {
    struct line_of *l = &o->lines[i];
    *l = (struct line_of){i == rank ? -1 : files[i], NULL, &l->out, NULL, &l->in};
  }
  return code;
}

static void drop(struct parcel *p) {
  for (struct parcel *next; p; p = next) {
    next = p->next;
    free(p);
  }
}

void parcels_close(struct post *o) {
  for (int i = 0; o->lines && i < o->ranks; ++i) {
    drop(o->lines[i].out);
    drop(o->lines[i].in);
  }
  free(o->lines);
  o->lines = NULL;
}

static struct parcel *wrapped(uint64_t number, uint64_t bytes) {
  if (bytes > SIZE_MAX / 2) return NULL;
  struct parcel *p = malloc(sizeof *p + (size_t)bytes);
  if (p) *p = (struct parcel){.top = {number, bytes}};
  return p;
}

static void append(struct parcel ***end, struct parcel *p) {
  **end = p;
  *end = &p->next;
}

/* The list without the one that stands at this place. */
static void unlink_from(struct parcel ***end, struct parcel **at) {
  struct parcel *p = *at;
  *at = p->next;
  if (*end == &p->next) *end = at;
  free(p);
}

/* As far as the socket takes it; how many bytes, -1 where the connection is lost. */
static ssize_t send_all(struct line_of *l) {
  ssize_t n, all = 0;
  while (l->out) {
    struct parcel *p = l->out;
    size_t top = sizeof p->top;
    const uint8_t *from = p->done < top ? (const uint8_t *)&p->top + p->done : p->data + (p->done - top);
    n = tcp_some(l->file, NULL, from, p->done < top ? top - p->done : size_of(p) - p->done);
    if (n < 0) return -1;
    if (!n) break;
    all += n;
    if ((p->done += (size_t)n) == size_of(p)) unlink_from(&l->out_end, &l->out);
  }
  return all;
}

int parcels_busy(const struct post *o) {
  for (int i = 0; o->lines && i < o->ranks; ++i)
    if (o->lines[i].out) return 1;
  return 0;
}

/* To all ranks, what goes now; how many bytes that were, into `moved`. */
static int help(const struct post *o, size_t *moved) {
  for (int i = 0; i < o->ranks; ++i) {
    ssize_t n = send_all(&o->lines[i]);
    if (n < 0) return tcp_lost(o->rank, i);
    *moved += (size_t)n;
  }
  return LUMC_OK;
}

/* Until a socket takes or, of one rank, has something, or a second has passed. */
static int idle(const struct post *o, int peer) {
  struct pollfd *polls = malloc((size_t)o->ranks * sizeof *polls);
  nfds_t n = 0;
  if (!polls) return lumc_fail(LUMC_FAILED, "out of memory");
  for (int i = 0; i < o->ranks; ++i) {
    short events = (short)((i == peer ? POLLIN : 0) | (o->lines[i].out ? POLLOUT : 0));
    if (events) polls[n++] = (struct pollfd){o->lines[i].file, events, 0};
  }
  int bad = poll(polls, n, 1000) < 0 && errno != EINTR;
  free(polls);
  return bad ? lumc_fail(LUMC_FAILED, "rank %d: poll: %s", o->rank, strerror(errno)) : LUMC_OK;
}

/* How many with this number are still to go. */
static int going(const struct line_of *l, uint64_t number) {
  int n = 0;
  for (const struct parcel *p = l->out; p; p = p->next) n += p->top.number == number;
  return n;
}

/* Help on until few enough of a number, or of all, are still to go. */
static int wait_out(struct post *o, int peer, uint64_t number, int most) {
  double heard = now();
  for (;;) {
    size_t moved = 0;
    int code = help(o, &moved);
    if (code) return code;
    if (peer < 0 ? !parcels_busy(o) : going(&o->lines[peer], number) < most) return LUMC_OK;
    if (moved) heard = now();
    int waiting = peer;
    for (int i = 0; waiting < 0; ++i)
      if (o->lines[i].out) waiting = i;
    if (now() - heard > o->patience) return tcp_silent(o->rank, waiting, o->patience);
    if (!moved && (code = idle(o, -1))) return code;
  }
}

int parcels_post(struct post *o, int peer, const void *data, size_t bytes, uint64_t tag, int most) {
  int code = wait_out(o, peer, POSTED | tag, most);
  struct parcel *p = code ? NULL : wrapped(POSTED | tag, bytes);
  size_t moved = 0;
  if (code) return code;
  if (!p) return lumc_fail(LUMC_FAILED, "out of memory");
  memcpy(p->data, data, bytes);
  append(&o->lines[peer].out_end, p);
  return help(o, &moved);
}

int parcels_move(struct post *o, int all) {
  size_t moved = 0;
  return all ? wait_out(o, -1, 0, 1) : help(o, &moved);
}

/* The next parcel of a rank, as far as it has come; 1 when it is whole, -1 lost, -2 no parcel. */
static int receive(struct line_of *l, struct parcel **part, size_t *moved) {
  for (;;) {
    struct parcel *p = *part;
    size_t top = sizeof p->top;
    uint8_t *to = p->done < top ? (uint8_t *)&p->top + p->done : p->data + (p->done - top);
    size_t left = p->done < top ? top - p->done : size_of(p) - p->done;
    ssize_t n = left ? tcp_some(l->file, to, NULL, left) : 0;
    if (n < 0) return -1;
    if (left && !n) return 0;
    *moved += (size_t)n;
    p->done += (size_t)n;
    if (p->done == top) { /* now it is known how large it is */
      if (!(p->top.number & POSTED) || p->top.bytes > SIZE_MAX / 2) return -2;
      struct parcel *whole = realloc(p, sizeof *p + (size_t)p->top.bytes);
      if (!whole) return -2;
      *part = p = whole;
    }
    if (p->done >= top && p->done == size_of(p)) return 1;
  }
}

/* What came with this number, out of what is kept. */
static int given(struct line_of *l, uint64_t number, void *to, size_t bytes) {
  for (struct parcel **at = &l->in; *at; at = &(*at)->next) {
    if ((*at)->top.number != number) continue;
    if ((*at)->top.bytes != bytes) return -2;
    memcpy(to, (*at)->data, bytes);
    unlink_from(&l->in_end, at);
    return 1;
  }
  return 0;
}

int parcels_take(struct post *o, int peer, void *to, size_t bytes, uint64_t tag) {
  struct line_of *l = &o->lines[peer];
  double heard = now();
  int got = given(l, POSTED | tag, to, bytes), code = LUMC_OK;
  struct parcel *part = got ? NULL : wrapped(0, 0);
  if (!got && !part) return lumc_fail(LUMC_FAILED, "out of memory");
  while (!got && !code) {
    size_t moved = 0;
    int whole = receive(l, &part, &moved);
    if (whole < 0) got = whole;
    if (whole == 1) {
      append(&l->in_end, part);
      part = NULL;
      got = given(l, POSTED | tag, to, bytes);
      if (!got && !(part = wrapped(0, 0))) code = lumc_fail(LUMC_FAILED, "out of memory");
    }
    if (got || code) break;
    if ((code = help(o, &moved))) break;
    if (moved) heard = now();
    else if (now() - heard > o->patience) code = tcp_silent(o->rank, peer, o->patience);
    else code = idle(o, peer);
  }
  free(part);
  if (code) return code;
  return got == 1 ? LUMC_OK : got == -1 ? tcp_lost(o->rank, peer) : tcp_other(o->rank, peer);
}
