/* native.c - coverage-guided faults in what the native runner reads, in one process:
 *
 *     native TARGET CORPUS CURRENT SEED RUNS SECONDS LEFT BUNDLE
 *
 * TARGET: plan (plan_read, pack_weights), npy (npy_read), manifest (lumc_open), bundle (lumc_open on
 * mutated plans, hashed anew). CORPUS is a folder that grows; CURRENT holds the input of the run that
 * is going on: when a sanitizer ends the process, it is the finding. It ends after RUNS, SECONDS of
 * the processor, or LEFT seconds. Prints the number of runs, of inputs in the corpus, of edges seen,
 * and how many runs were accepted.
 *
 * Compile the runner with -fsanitize-coverage=trace-pc, and this file without it. */
#include "internal.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1 << 16, EDGES = 1 << 16, INPUTS = 1 << 14, SLOW_MS = 2000, RSS_MB = 256 };

/* ---- coverage: pairs of places that followed each other, and about how often */
static uint8_t hit[EDGES], seen[EDGES];
static uintptr_t last;
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
  uintptr_t here = (uintptr_t)__builtin_return_address(0);
  uint32_t edge = (uint32_t)((here * 0x9e3779b1u) ^ last) % EDGES;
  if (hit[edge] < 255) ++hit[edge];
  last = here * 0x85ebca6bu >> 1;
}

static uint8_t bucket(uint8_t n) { /* 1, 2, 3, 4-7, 8-15, 16-31, 32-127, more: a bit each */
  return n < 4 ? (uint8_t)(1 << n >> 1) : n < 8 ? 8 : n < 16 ? 16 : n < 32 ? 32 : n < 128 ? 64 : 128;
}

static int is_new(void) {
  int fresh = 0;
  for (int i = 0; i < EDGES; ++i)
    if (hit[i] && (bucket(hit[i]) & ~seen[i])) seen[i] |= bucket(hit[i]), fresh = 1;
  return fresh;
}

/* ---- random numbers, and inputs */
static uint64_t draw_state;
static uint64_t draw(uint64_t below) {
  draw_state ^= draw_state << 13, draw_state ^= draw_state >> 7, draw_state ^= draw_state << 17;
  return below ? (draw_state * 0x2545f4914f6cdd1d >> 16) % below : 0;
}

struct input {
  uint8_t *data;
  size_t size;
};
static struct input corpus[INPUTS];
static size_t inputs;

static void keep(const uint8_t *data, size_t size) {
  if (inputs == INPUTS) return;
  uint8_t *copy = malloc(size + 1);
  if (!copy) abort();
  memcpy(copy, data, size);
  corpus[inputs++] = (struct input){copy, size};
}

static uint8_t *whole(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  uint8_t *data = malloc(1 << 20);
  if (!f || !data) exit(3);
  *size = fread(data, 1, 1 << 20, f);
  fclose(f);
  return data;
}

static void load(const char *folder) {
  DIR *d = opendir(folder);
  struct dirent *e;
  char path[4096];
  while (d && (e = readdir(d)))
    if (e->d_name[0] != '.') {
      size_t size;
      snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
      uint8_t *data = whole(path, &size);
      if (size <= MOST) keep(data, size);
      free(data);
    }
  if (d) closedir(d);
  if (!inputs) exit(3);
}

static void save(const char *folder, const uint8_t *data, size_t size) {
  char path[4096];
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i < size; ++i) h = (h ^ data[i]) * 1099511628211u;
  snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)h);
  FILE *f = fopen(path, "wb");
  if (f) fwrite(data, 1, size, f), fclose(f);
}

/* ---- mutations: of bits, bytes, words, digits and blocks; several at once, seldom many */
static const uint64_t odd[] = {0,          1,         2,          7,          16,       63,      64,
                               65,         255,       1u << 31,   1ull << 32, 1ull << 36,
                               1ull << 45, 1ull << 46, 1ull << 61, 1ull << 63, ~0ull,    ~0ull - 7,
                               ~0ull / 8};
enum { ODD = sizeof odd / sizeof *odd };

static size_t mutate(uint8_t *data, size_t size) {
  if (!size) return data[0] = (uint8_t)draw(256), 1;
  size_t at = draw(size), n = 1 + draw(size - at < 64 ? size - at : 64), to = draw(size);
  uint64_t word = odd[draw(ODD)];
  const struct input *other = &corpus[draw(inputs)];
  switch (draw(10)) {
  case 0: data[at] ^= (uint8_t)(1 << draw(8)); break;
  case 1: data[at] = (uint8_t)draw(256); break;
  case 2:
  case 3: /* a word of a plan */
    if (size >= 8) memcpy(data + draw(size / 8) * 8, &word, 8);
    break;
  case 4: /* the next or previous number */
    if (size >= 8) data[draw(size / 8) * 8] += (uint8_t)(draw(2) ? 1 : 255);
    break;
  case 5: /* a digit, a sign or a quote of a text */
    data[at] = (uint8_t)"0123456789-,()[]{}'\":. \\\n"[draw(25)];
    break;
  case 6: return at;                                     /* cut */
  case 7: memmove(data + to, data + at, n < size - to ? n : size - to); break;
  case 8: /* a block once more, in between */
    if (size + n > MOST) break;
    memmove(data + at + n, data + at, size - at);
    return size + n;
  case 9: /* what another input has there */
    if (at < other->size) memcpy(data + at, other->data + at, n < other->size - at ? n : other->size - at);
    break;
  }
  return size;
}

/* ---- the targets: 1 when an input was accepted, 0 when it was refused with a word */
static const char *bundle_folder;
static uint8_t *manifest_text;
static size_t manifest_size;
static char plan_name[128];

static int refused(int code) {
  if (code && !*lumc_error()) abort(); /* a refusal without a word */
  return code == 0;
}

static int try_plan(const uint8_t *data, size_t size) {
  static const uint8_t weights[1 << 12];
  struct plan p;
  struct block packed = {0};
  uint8_t *copy = malloc(size + !size);
  memcpy(copy, data, size);
  int good = refused(plan_read(&p, copy, size));
  if (good && p.weights_bytes <= sizeof weights && p.packed_bytes <= 1 << 20) {
    uint8_t *exact = malloc(p.weights_bytes + 1); /* what follows is seen by the sanitizer */
    memcpy(exact, weights, p.weights_bytes);
    pack_weights(&p, exact, &packed);
    release(&packed);
    free(exact);
  }
  plan_free(&p);
  return good;
}

static int rewrite(int file, const uint8_t *data, size_t size) {
  return ftruncate(file, 0) || pwrite(file, data, size, 0) != (ssize_t)size;
}

static int try_npy(const uint8_t *data, size_t size) {
  static int file = -1;
  static char path[64];
  struct npy t;
  if (file < 0) {
    file = memfd_create("npy", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  if (rewrite(file, data, size)) exit(3);
  int good = refused(npy_read(path, draw(8) ? 1 << 20 : 64, &t));
  for (size_t i = 0; good && t.data && i < t.bytes; i += 61) last ^= ((uint8_t *)t.data)[i];
  if (good) free(t.data);
  return good;
}

static int try_states(const uint8_t *data, size_t size) {
  static const int64_t box[] = {3, 5}, row[] = {4};
  static const lumc_tensor wanted[] = {{"f", LUMC_F32, 2, box, 60}, {"t", LUMC_BOOL, 1, row, 4},
                                       {"n", LUMC_I64, 0, NULL, 8}};
  static int file = -1;
  static char path[64];
  struct note notes[] = {{"a", ""}, {"b", ""}};
  struct npy t;
  uint8_t *out, *exact = malloc(size + !size); /* what follows is seen by the sanitizer */
  if (file < 0) {
    file = memfd_create("states", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  if (rewrite(file, data, size)) exit(3);
  int good = refused(tensors_read(path, wanted, 3, notes, 2, &out));
  for (size_t i = 0; good && i < 72; ++i) last ^= out[i];
  last ^= (uintptr_t)strlen(notes[0].value) + strlen(notes[1].value);
  free(out);
  memcpy(exact, data, size);
  if (refused(tensor_view(path, exact, size, "f", &t)) && t.view)
    for (size_t i = 0; i < t.bytes; i += 61) last ^= t.view[i];
  if (refused(npy_view(path, exact, size, &t)))
    for (size_t i = 0; i < t.bytes; i += 61) last ^= t.view[i];
  free(exact);
  return good;
}

/* A file of the bundle, replaced. */
static void put(const char *name, const uint8_t *data, size_t size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", bundle_folder, name);
  int file = open(path, O_WRONLY | O_CREAT, 0600); /* cut to nothing it has to reach the disk */
  if (file < 0 || write(file, data, size) != (ssize_t)size || ftruncate(file, (off_t)size)) exit(3);
  close(file);
}

/* The hash in its first line made right. */
static void put_manifest(uint8_t *text, size_t size) {
  enum { AT = 38 };
  char hex[65];
  struct sha256 hash;
  if (size > AT + 67) {
    sha256_start(&hash);
    sha256_add(&hash, text + AT + 67, size - AT - 67);
    sha256_hex(&hash, hex);
    memcpy(text + AT, hex, 64);
  }
  put("manifest.json", text, size);
}

enum { FEW = 1 << 20 }; /* bytes that are worth the time */

static int open_it(void) {
  lumc *m;
  size_t all = 0;
  int good = refused(lumc_open_on(bundle_folder, draw(4) ? "cpu" : NULL, 1, &m));
  if (!good) return 0;
  for (int e = 0; e < lumc_entries(m); ++e) {
    if (lumc_entry(m, lumc_entry_name(m, e)) < 0) abort();
    for (int i = 0; i < lumc_inputs(m, e); ++i) last ^= (uintptr_t)lumc_input(m, e, i)->shape;
    for (int i = 0; i < lumc_launches(m, e); ++i) last ^= (uintptr_t)lumc_launch(m, e, i)[0];
  }
  for (int i = 0; i < lumc_states(m); ++i) {
    uint8_t *data = lumc_state_data(m, i);
    size_t bytes = lumc_state(m, i)->bytes;
    if (data && bytes) data[0] = data[bytes - 1] = 1;
    const lumc_tensor *t = lumc_state(m, i);
    all += bytes;
    if (all >= FEW) continue;
    int64_t from[MAX_RANK] = {0}, to[MAX_RANK] = {0}, shape[MAX_RANK];
    for (int a = 0; a < t->rank; ++a) {
      shape[a] = t->shape[a] - (draw(2) && t->shape[a]);
      from[a] = (int64_t)draw(3) - !draw(8);
      to[a] = (int64_t)draw(3);
    }
    last ^= (uintptr_t)lumc_copy_state(m, i, from, to, shape);
  }
  if (all < FEW && lumc_reset(m)) abort();
  lumc_close(m);
  return 1;
}

static int try_manifest(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size + 1);
  memcpy(copy, data, size);
  put_manifest(copy, size);
  free(copy);
  return open_it();
}

static int try_bundle(const uint8_t *data, size_t size) {
  char hex[65], line[256];
  struct sha256 hash;
  sha256_start(&hash);
  sha256_add(&hash, data, size);
  sha256_hex(&hash, hex);
  uint8_t *copy = malloc(manifest_size + 1);
  memcpy(copy, manifest_text, manifest_size + 1);
  int n = snprintf(line, sizeof line, "\"%s\":\"", plan_name);
  char *at = strstr((char *)copy, line);
  if (!at) exit(3);
  memcpy(at + n, hex, 64);
  put(plan_name, data, size);
  put_manifest(copy, manifest_size);
  free(copy);
  return open_it();
}

static int (*target(const char *name))(const uint8_t *, size_t) {
  static const char *const names[] = {"plan", "npy", "states", "manifest", "bundle"};
  static int (*const all[])(const uint8_t *, size_t) = {try_plan, try_npy, try_states, try_manifest,
                                                         try_bundle};
  for (int i = 0; i < 5; ++i)
    if (!strcmp(names[i], name)) return all[i];
  exit(3);
}

/* ---- the loop */
static double now_ms(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Not ru_maxrss, which is that of the program before this one, if it was larger. */
static long peak_mb(void) {
  char line[256];
  long kb = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmHWM: %ld", &kb) == 1) break;
  if (f) fclose(f);
  return kb >> 10;
}

static void read_bundle(const char *folder) {
  char path[4096];
  bundle_folder = folder;
  snprintf(path, sizeof path, "%s/manifest.json", folder);
  manifest_text = whole(path, &manifest_size);
  manifest_text[manifest_size] = 0;
  char *at = strstr((char *)manifest_text, "\"plan/cpu-");
  size_t n = at ? strcspn(at + 1, "\"") : sizeof plan_name;
  if (n >= sizeof plan_name) exit(3);
  memcpy(plan_name, at + 1, n);
}

int main(int argc, char **argv) {
  if (argc != 9) return 3;
  int (*run)(const uint8_t *, size_t) = target(argv[1]);
  load(argv[2]);
  int file = open(argv[3], O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, MOST + 8)) return 3;
  uint8_t *current = mmap(NULL, MOST + 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (current == MAP_FAILED) return 3;
  draw_state = strtoull(argv[4], NULL, 10) * 0x9e3779b97f4a7c15 + 1;
  long runs = atol(argv[5]), done = 0, good = 0;
  double spent = atof(argv[6]) * 1e3, end = now_ms(CLOCK_MONOTONIC) + atof(argv[7]) * 1e3;
  read_bundle(argv[8]);
  size_t first = inputs;
  for (; done < runs; ++done) {
    if (now_ms(CLOCK_PROCESS_CPUTIME_ID) > spent || now_ms(CLOCK_MONOTONIC) > end) break;
    static uint8_t data[MOST];
    const struct input *from = &corpus[done < (long)first ? (size_t)done : draw(inputs)];
    uint64_t size = from->size;
    memcpy(data, from->data, size);
    for (uint64_t k = done < (long)first ? 0 : 1 + draw(draw(8) ? 3 : 16); k; --k)
      size = mutate(data, size);
    memcpy(current, &size, 8), memcpy(current + 8, data, size);
    memset(hit, 0, sizeof hit), last = 0;
    double start = now_ms(CLOCK_PROCESS_CPUTIME_ID); /* others may keep the processor */
    good += run(data, size);
    double took = now_ms(CLOCK_PROCESS_CPUTIME_ID) - start;
    if (took > SLOW_MS) return fprintf(stderr, "slow: %.0f ms\n", took), 4;
    if (is_new() && done >= (long)first) keep(data, size), save(argv[2], data, size);
  }
  if (peak_mb() > 4 * RSS_MB) /* ASan's shadow too */
    return fprintf(stderr, "large: %ld MB\n", peak_mb()), 4;
  int edges = 0;
  for (int i = 0; i < EDGES; ++i) edges += seen[i] != 0;
  printf("%ld %zu %d %ld\n", done, inputs, edges, good);
  for (size_t i = 0; i < inputs; ++i) free(corpus[i].data);
  free(manifest_text);
  return 0;
}
