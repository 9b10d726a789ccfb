/* tcp.c - ranks that exchange bytes over sockets, each with each.
 *
 * They meet at rank 0, which tells all where the others listen. The system closes the sockets of a
 * process that ends, however it ends, so the others learn of it at once; one that is silent for too
 * long, as when a machine is cut off, is given up. */
#include "ranks.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

struct hello { /* what a rank says first */
  char magic[8], token[64];
  uint32_t rank, port; /* port: where it listens, in the order of the network */
};
struct seat { /* where a rank listens, in the order of the network */
  uint32_t address, port;
};
struct head { /* before bytes for another rank: which of all to it, and how many */
  uint64_t number, bytes;
};
struct line { /* what is left to send and to receive */
  struct head out_head, in_head;
  const uint8_t *out;
  uint8_t *in;
  size_t out_left, in_left, out_head_left, in_head_left;
  struct head wanted; /* what is to come */
  int file, peer;
};
struct tcp {
  int rank, ranks, *files;
  double patience;
  struct count { /* of packets so far, to and from each rank */
    uint64_t out, in;
  } *counts;
  struct line *lines;
  struct pollfd *polls;
  struct post post;
};

static const char MAGIC[8] = {'L', 'U', 'M', 'C', 'M', 'E', 'S', 'H'};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int tcp_lost(int rank, int peer) {
  return lumc_fail(LUMC_FAILED, "rank %d: the connection to rank %d is lost", rank, peer);
}

int tcp_silent(int rank, int peer, double patience) {
  return lumc_fail(LUMC_FAILED, "rank %d: rank %d does not answer for %g s", rank, peer, patience);
}

int tcp_other(int rank, int peer) {
  return lumc_fail(LUMC_FAILED, "rank %d: rank %d runs something else: other inputs, dims or entries", rank, peer);
}

static int lost(const struct tcp *t, int peer) { return tcp_lost(t->rank, peer); }

static int silent(const struct tcp *t, int peer) { return tcp_silent(t->rank, peer, t->patience); }

static int refused(const char *what) {
  return lumc_fail(LUMC_FAILED, "ranks cannot meet: %s: %s", what, strerror(errno));
}

/* ---- meeting */

/* All bytes of a message before the deadline; 0: no. */
static int transfer(int file, void *data, size_t n, int in, double deadline) {
  uint8_t *at = data;
  while (n) {
    struct pollfd p = {file, in ? POLLIN : POLLOUT, 0};
    double left = deadline - now();
    if (left <= 0 || poll(&p, 1, left < 1 ? 1 + (int)(left * 1000) : 1000) < 0) {
      if (left > 0 && errno == EINTR) continue;
      return 0;
    }
    if (!p.revents) continue;
    ssize_t got = in ? recv(file, at, n, 0) : send(file, at, n, MSG_NOSIGNAL);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return 0;
    at += got, n -= (size_t)got;
  }
  return 1;
}

/* Nobody who does not belong to the ranks gets one: the first message says so. */
static struct hello hello_of(const struct meeting *w, uint32_t port) {
  struct hello h = {.rank = (uint32_t)w->rank, .port = port};
  memcpy(h.magic, MAGIC, sizeof MAGIC);
  memcpy(h.token, w->token, sizeof h.token);
  return h;
}

static int is_hello(const struct hello *h, const struct meeting *w) {
  unsigned differs = 0; /* takes as long wherever it differs */
  for (size_t i = 0; i < sizeof h->token; ++i) differs |= (unsigned)(h->token[i] ^ w->token[i]);
  return !memcmp(h->magic, MAGIC, sizeof MAGIC) && !differs && h->rank < (uint32_t)w->ranks;
}

static int tuned(int file) {
  int on = 1;
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef SO_NOSIGPIPE
  setsockopt(file, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
  fcntl(file, F_SETFD, FD_CLOEXEC);
  return fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK) < 0 ? -1 : file;
}

static int find(const struct meeting *w, struct sockaddr_in *to) {
  struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
  int code = getaddrinfo(w->address, w->port, &hints, &found);
  if (code)
    return lumc_fail(LUMC_USAGE, "MASTER_ADDR '%.100s' and MASTER_PORT '%.20s' are no address: %s", w->address,
                     w->port, gai_strerror(code));
  memcpy(to, found->ai_addr, sizeof *to);
  freeaddrinfo(found);
  return LUMC_OK;
}

/* A socket that listens at the port that is given, or at any. */
static int listening(const struct sockaddr_in *master, int own_port, uint32_t *port, int *file) {
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t size = sizeof at;
  int on = 1, local = ntohl(master->sin_addr.s_addr) >> 24 == 127;
  at.sin_addr.s_addr = local ? master->sin_addr.s_addr : htonl(INADDR_ANY);
  at.sin_port = own_port ? master->sin_port : 0;
  if (*file < 0) {
    *file = socket(AF_INET, SOCK_STREAM, 0);
    if (*file < 0) return refused("a socket");
    setsockopt(*file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(*file, (struct sockaddr *)&at, sizeof at)) return refused("the port of rank 0");
  }
  if (listen(*file, 1024) || getsockname(*file, (struct sockaddr *)&at, &size) || tuned(*file) < 0)
    return refused("a socket");
  *port = at.sin_port;
  return LUMC_OK;
}

/* A connection to a rank, which may not listen yet. */
static int connected(struct tcp *t, const struct sockaddr_in *to, int peer, struct hello *own,
                     double deadline) {
  while (now() < deadline) {
    int file = socket(AF_INET, SOCK_STREAM, 0);
    if (file < 0) return refused("a socket");
    if (!connect(file, (const struct sockaddr *)to, sizeof *to)) {
      t->files[peer] = tuned(file);
      return transfer(file, own, sizeof *own, 0, deadline) ? LUMC_OK : lost(t, peer);
    }
    close(file);
    if (errno != ECONNREFUSED && errno != EINTR && errno != ETIMEDOUT)
      return lumc_fail(LUMC_FAILED, "rank %d cannot reach rank %d: %s", t->rank, peer, strerror(errno));
    nanosleep(&(struct timespec){0, 20000000}, NULL);
  }
  return silent(t, peer);
}

/* Take so many ranks that come, behind this one, and leave others aside. */
static int accepted(struct tcp *t, const struct meeting *w, int listener, int n, struct seat *seats,
                    double deadline) {
  while (n) {
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    struct hello h;
    struct pollfd p = {listener, POLLIN, 0};
    if (now() >= deadline)
      return lumc_fail(LUMC_FAILED, "rank %d: %d of the other ranks did not come in %g s", t->rank, n,
                       t->patience);
    if (poll(&p, 1, 1000) <= 0) continue;
    int file = accept(listener, (struct sockaddr *)&from, &size);
    if (file < 0) continue;
    double soon = now() + 5 < deadline ? now() + 5 : deadline;
    if (tuned(file) < 0 || !transfer(file, &h, sizeof h, 1, soon) || !is_hello(&h, w) ||
        (int)h.rank <= t->rank || t->files[h.rank] >= 0) {
      close(file);
      continue;
    }
    t->files[h.rank] = file;
    seats[h.rank] = (struct seat){from.sin_addr.s_addr, h.port};
    --n;
  }
  return LUMC_OK;
}

/* Rank 0 hears of all where they listen, and tells them. */
static int meet(struct tcp *t, const struct meeting *w, int *listener, struct seat *seats) {
  struct sockaddr_in to;
  uint32_t port = 0;
  double deadline = now() + w->patience;
  size_t size = (size_t)t->ranks * sizeof *seats;
  int code = find(w, &to);
  *listener = t->rank ? -1 : w->file;
  if (!code) code = listening(&to, !t->rank, &port, listener);
  struct hello own = hello_of(w, port);
  if (!code && t->rank == 0) {
    code = accepted(t, w, *listener, t->ranks - 1, seats, deadline);
    for (int i = 1; i < t->ranks && !code; ++i)
      if (!transfer(t->files[i], seats, size, 0, deadline)) code = lost(t, i);
    return code;
  }
  if (!code) code = connected(t, &to, 0, &own, deadline);
  if (!code && !transfer(t->files[0], seats, size, 1, deadline))
    code = lumc_fail(LUMC_FAILED, "rank %d: rank 0 refuses it, or is gone: all ranks need the same bundle and "
                     "LUMC_MESH_KEY", t->rank);
  for (int i = 1; i < t->rank && !code; ++i) {
    to.sin_addr.s_addr = seats[i].address, to.sin_port = (in_port_t)seats[i].port;
    code = connected(t, &to, i, &own, deadline);
  }
  return code ? code : accepted(t, w, *listener, t->ranks - 1 - t->rank, seats, deadline);
}

static int open_tcp(const struct meeting *w, void **self) {
  int code = LUMC_OK, listener = -1;
  struct tcp *t = *self = zeros(1, sizeof *t, &code);
  if (code) return code;
  t->rank = w->rank, t->ranks = w->ranks, t->patience = w->patience;
  t->files = zeros((size_t)w->ranks, sizeof *t->files, &code);
  for (int i = 0; t->files && i < w->ranks; ++i) t->files[i] = -1;
  t->counts = zeros((size_t)w->ranks, sizeof *t->counts, &code);
  t->lines = zeros((size_t)w->ranks, sizeof *t->lines, &code);
  t->polls = zeros((size_t)w->ranks, sizeof *t->polls, &code);
  struct seat *seats = zeros((size_t)w->ranks, sizeof *seats, &code);
  if (!code) code = meet(t, w, &listener, seats);
  if (listener >= 0) close(listener);
  if (!code) code = parcels_open(&t->post, t->rank, t->ranks, t->files, t->patience);
  free(seats);
  return code;
}

static void close_tcp(void *self, int code) {
  struct tcp *t = self;
  (void)code; /* the others see it by the end of the connection */
  for (int i = 0; t->files && i < t->ranks; ++i)
    if (i != t->rank && t->files[i] >= 0) close(t->files[i]);
  parcels_close(&t->post);
  free(t->files);
  free(t->counts);
  free(t->lines);
  free(t->polls);
  free(t);
}

/* ---- exchanging */

ssize_t tcp_some(int file, void *in, const void *out, size_t n) {
  ssize_t got = in ? recv(file, in, n, 0) : send(file, out, n, MSG_NOSIGNAL);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  return got > 0 ? got : -1;
}

static ssize_t send_some(struct line *l) {
  if (!l->out_head_left && !l->out_left) return 0;
  const uint8_t *head = (const uint8_t *)(&l->out_head + 1) - l->out_head_left;
  ssize_t n = l->out_head_left ? tcp_some(l->file, NULL, head, l->out_head_left)
                               : tcp_some(l->file, NULL, l->out, l->out_left);
  if (n <= 0) return n;
  if (l->out_head_left) return l->out_head_left -= (size_t)n, n;
  return l->out += n, l->out_left -= (size_t)n, n;
}

static ssize_t receive_some(struct line *l) {
  if (!l->in_head_left && !l->in_left) return 0;
  uint8_t *head = (uint8_t *)(&l->in_head + 1) - l->in_head_left;
  ssize_t n = l->in_head_left ? tcp_some(l->file, head, NULL, l->in_head_left)
                              : tcp_some(l->file, l->in, NULL, l->in_left);
  if (n <= 0) return n;
  if (l->in_head_left) return l->in_head_left -= (size_t)n, n;
  return l->in += n, l->in_left -= (size_t)n, n;
}

/* Both ways as far as it goes without waiting; then what there is to wait for: 0 when all is done, -1 when
 * the connection is lost, -2 when the other rank is elsewhere. */
static int advance(struct line *l, size_t *moved) {
  ssize_t n;
  while ((n = send_some(l)) > 0) *moved += (size_t)n;
  if (n < 0) return -1;
  while ((n = receive_some(l)) > 0) {
    *moved += (size_t)n;
    if (!l->in_head_left && (l->in_head.number != l->wanted.number || l->in_head.bytes != l->wanted.bytes))
      return -2;
  }
  if (n < 0) return -1;
  return (l->in_head_left || l->in_left ? POLLIN : 0) | (l->out_head_left || l->out_left ? POLLOUT : 0);
}

static int failed(const struct tcp *t, const struct line *l, int why) {
  return why == -1 ? lost(t, l->peer) : tcp_other(t->rank, l->peer);
}

static int swap_tcp(void *self, const struct packet *packets, size_t n) {
  struct tcp *t = self;
  double heard = now();
  for (size_t i = 0; i < n; ++i) {
    const struct packet *p = &packets[i];
    struct count *k = &t->counts[p->peer];
    struct head out = {p->out ? ++k->out : 0, p->n_out}, in = {p->in ? ++k->in : 0, p->n_in};
    size_t head = sizeof out; /* where nothing travels nobody waits */
    t->lines[i] = (struct line){out, {0, 0}, p->out, p->in, p->n_out, p->n_in, p->out ? head : 0,
                                p->in ? head : 0, in, t->files[p->peer], p->peer};
  }
  for (;;) {
    size_t waiting = 0, moved = 0;
    for (size_t i = 0; i < n; ++i) {
      struct line *l = &t->lines[i];
      int events = advance(l, &moved);
      if (events < 0) return failed(t, l, events);
      if (events) t->polls[waiting++] = (struct pollfd){l->file, (short)events, 0};
    }
    if (!waiting) return LUMC_OK;
    if (moved) heard = now();
    if (now() - heard > t->patience) break;
    if (!moved && poll(t->polls, (nfds_t)waiting, 1000) < 0 && errno != EINTR) break;
  }
  for (size_t i = 0; i < n; ++i)
    if (t->lines[i].in_left || t->lines[i].in_head_left) return silent(t, t->lines[i].peer);
  return silent(t, packets[0].peer);
}

/* A connection that ended, behind all that came by it. */
static int look_tcp(void *self) {
  struct tcp *t = self;
  char byte;
  for (int i = 0; i < t->ranks; ++i) {
    if (i == t->rank) continue;
    ssize_t n = recv(t->files[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (!n || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return lost(t, i);
  }
  return LUMC_OK;
}

static int post_tcp(void *self, int peer, const void *data, size_t bytes, uint64_t tag, int most) {
  return parcels_post(&((struct tcp *)self)->post, peer, data, bytes, tag, most);
}

static int take_tcp(void *self, int peer, void *to, size_t bytes, uint64_t tag) {
  return parcels_take(&((struct tcp *)self)->post, peer, to, bytes, tag);
}

static int move_tcp(void *self, int all) { return parcels_move(&((struct tcp *)self)->post, all); }

static int busy_tcp(const void *self) { return parcels_busy(&((const struct tcp *)self)->post); }

const struct transport tcp_transport = {open_tcp, swap_tcp, look_tcp, post_tcp,
                                        take_tcp, move_tcp, busy_tcp, close_tcp};
