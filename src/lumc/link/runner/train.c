/* train.c - a loop of steps: batches in, losses out, states to a file on the way. What is saved says
 * how many steps were done, so a loop that was stopped or killed goes on where it was. */
#include "ranks.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEP, FEED, NOTES };

static volatile sig_atomic_t stopped;

static void stop(int sig) { stopped = sig; }

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- losses: the outputs that are one number */

static int is_loss(const lumc_tensor *t) {
  int is_float = t->dtype <= LUMC_F64;
  return is_float && t->bytes == dtype_bytes(t->dtype);
}

static double half(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double sign = bits >> 15 ? -1 : 1, value = mantissa / 1024.0;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (!exponent) return sign * value / 16384;
  for (value += 1; exponent > 15; --exponent) value *= 2;
  for (; exponent < 15; ++exponent) value /= 2;
  return sign * value;
}

static double value_of(const lumc_tensor *t, const void *data) {
  double wide;
  float narrow;
  uint16_t bits;
  uint32_t word;
  switch (t->dtype) {
  case LUMC_F64: return memcpy(&wide, data, 8), wide;
  case LUMC_F32: return memcpy(&narrow, data, 4), (double)narrow;
  default: memcpy(&bits, data, 2);
  }
  if (t->dtype == LUMC_F16) return half(bits);
  word = (uint32_t)bits << 16;
  return memcpy(&narrow, &word, 4), (double)narrow;
}

/* Named ones are for people. */
static int print_losses(FILE *f, const struct loop *l, int named) {
  int n = lumc_outputs(l->model, l->entry), good = 1;
  for (int i = 0; i < n && good; ++i) {
    const lumc_tensor *t = lumc_output(l->model, l->entry, i);
    if (!is_loss(t)) continue;
    double value = value_of(t, l->outputs[i]);
    if (named)
      good = fprintf(f, "  %s %.6g", t->name, value) > 0;
    else
      good = fprintf(f, ",%.*g", t->dtype == LUMC_F64 ? 17 : 9, value) > 0;
  }
  return good;
}

static int csv_failed(const struct loop *l) {
  return lumc_fail(LUMC_FAILED, "cannot write %s: %s", l->losses, strerror(errno));
}

/* "step,loss\n" from malloc, NULL where there is no memory. */
static char *heading(const struct loop *l) {
  size_t size = 8;
  int n = lumc_outputs(l->model, l->entry);
  for (int i = 0; i < n; ++i) size += strlen(lumc_output(l->model, l->entry, i)->name) + 1;
  char *text = malloc(size);
  if (!text) return NULL;
  size_t at = (size_t)snprintf(text, size, "step");
  for (int i = 0; i < n; ++i) {
    const lumc_tensor *t = lumc_output(l->model, l->entry, i);
    if (is_loss(t)) at += (size_t)snprintf(text + at, size - at, ",%s", t->name);
  }
  snprintf(text + at, size - at, "\n");
  return text;
}

/* Where the rows of the first steps end in a file of losses, whose other rows were not saved; 0 when
 * it has no whole heading, and -1 when it is something else. */
static long end_of(FILE *f, const char *head, uint64_t steps) {
  char *line = NULL, *rest;
  size_t room = 0, length = strlen(head);
  long end = 0;
  for (ssize_t n; end >= 0 && (n = getline(&line, &room, f)) > 0;) {
    int whole = line[n - 1] == '\n';
    if (!end) { /* the heading, or a part of it */
      if ((size_t)n > length || memcmp(line, head, (size_t)n)) end = -1;
      if (end || !whole) break;
    } else {
      unsigned long long step = strtoull(line, &rest, 10);
      if (whole && (rest == line || *rest != ',')) end = -1;
      if (!whole || step > steps || end < 0) break;
    }
    end = ftell(f);
  }
  free(line);
  return end;
}

static int open_losses(struct loop *l, uint64_t steps) {
  if (!l->losses) return LUMC_OK;
  char *head = heading(l);
  long end = 0;
  int code = head ? LUMC_OK : lumc_fail(LUMC_FAILED, "out of memory");
  l->csv = !code && steps ? fopen(l->losses, "r+") : NULL;
  if (l->csv && (end = end_of(l->csv, head, steps)) < 0)
    code = lumc_fail(LUMC_USAGE, "%s is no file of these losses", l->losses);
  else if (l->csv && (fseek(l->csv, end, SEEK_SET) || ftruncate(fileno(l->csv), end)))
    code = csv_failed(l);
  if (!code && !l->csv && !(l->csv = fopen(l->losses, "w"))) code = csv_failed(l);
  if (!code && !end && fputs(head, l->csv) < 0) code = csv_failed(l);
  free(head);
  return code;
}

static int write_losses(struct loop *l, uint64_t step) {
  if (!l->csv) return LUMC_OK;
  int good = fprintf(l->csv, "%" PRIu64, step) > 0 && print_losses(l->csv, l, 0);
  return good && fputc('\n', l->csv) >= 0 ? LUMC_OK : csv_failed(l);
}

/* On the disk: a state that is saved has the losses of all its steps. A pipe has no disk. */
static int flush_losses(struct loop *l) {
  if (!l->csv) return LUMC_OK;
  if (fflush(l->csv) || (fsync(fileno(l->csv)) && errno != EINVAL && errno != EROFS))
    return csv_failed(l);
  return LUMC_OK;
}

/* ---- progress */

static void show(struct loop *l, uint64_t step, const char *end) {
  uint64_t done = step - l->first;
  double each = done ? (now() - l->start) / (double)done : 0;
  if (l->quiet) return;
  fprintf(stderr, "%sstep %" PRIu64 "/%ld", l->terminal ? "\r" : "", step, l->feed.steps);
  print_losses(stderr, l, 1);
  fprintf(stderr, "  %.4g ms a step  %.0f s left%s%s", each * 1e3,
          each * (double)((uint64_t)l->feed.steps - step), l->terminal ? "\033[K" : "", end);
  l->shown = now();
}

/* ---- the loop */

static int save(struct loop *l, uint64_t step) {
  int code = flush_losses(l);
  if (code || !l->save) return code;
  struct note notes[NOTES] = {{"lumc.step", ""}, {"lumc.feed", ""}};
  snprintf(notes[STEP].value, sizeof notes[STEP].value, "%" PRIu64, step);
  memcpy(notes[FEED].value, l->said, sizeof l->said);
  return states_save(l->model, l->save, notes, NOTES);
}

/* The states to begin with; how many steps they have behind them. */
static int begin(struct loop *l, uint64_t *step) {
  struct note notes[NOTES] = {{"lumc.step", ""}, {"lumc.feed", ""}};
  const struct feed *f = &l->feed;
  *step = 0;
  snprintf(l->said, sizeof l->said, "rows %lld batch %lld %s %llu", (long long)f->rows,
           (long long)f->batch, f->list.view ? "listed" : f->shuffled ? "seed" : "in order",
           (unsigned long long)(f->shuffled ? f->seed : 0));
  if (!l->state) return LUMC_OK;
  int code = states_load(l->model, l->state, notes, NOTES);
  if (code || !*notes[STEP].value) return code;
  char *end;
  unsigned long long number = strtoull(notes[STEP].value, &end, 10);
  if (*end || number > (unsigned long long)f->steps)
    return lumc_fail(LUMC_USAGE, "%s has %.20s steps behind it; --steps %ld counts these too",
                     l->state, notes[STEP].value, f->steps);
  if (strcmp(notes[FEED].value, l->said))
    return lumc_fail(LUMC_USAGE, "%s was made with other batches: %s; these are: %s", l->state,
                     notes[FEED].value, l->said);
  *step = number;
  return LUMC_OK;
}

static int run_step(struct loop *l, uint64_t step) {
  int code = feed_step(&l->feed, step, l->inputs);
  if (!code)
    code = lumc_run(l->model, l->entry, (const void *const *)l->inputs, l->outputs);
  return code ? code : write_losses(l, step + 1);
}

static int loop(struct loop *l, uint64_t step) {
  uint64_t last = (uint64_t)l->feed.steps, saved = UINT64_MAX;
  int code = LUMC_OK;
  l->start = now(), l->first = step;
  while (step < last && !stopped && !code) {
    if ((code = run_step(l, step))) return code;
    ++step;
    int due = l->every && step % (uint64_t)l->every == 0;
    if (due) code = save(l, step), saved = step;
    if (!code && step < last && (l->terminal ? now() - l->shown > 0.1 : due))
      show(l, step, l->terminal ? "" : "\n");
  }
  if (!code && saved != step) code = save(l, step);
  if (!code && step > l->first) show(l, step, "\n");
  return code;
}

static int check(const struct loop *l) {
  if (l->every && !l->save) return lumc_fail(LUMC_USAGE, "--every says how often to --save");
  if ((l->state || l->save) && !lumc_states(l->model))
    return lumc_fail(LUMC_USAGE, "this bundle has no states");
  if (l->order && l->feed.shuffled)
    return lumc_fail(LUMC_USAGE, "--order lists the rows, --seed shuffles them: give one");
  return LUMC_OK;
}

int train(struct loop *l) {
  struct sigaction action = {.sa_handler = stop}, before[2];
  const int signals[] = {SIGINT, SIGTERM};
  uint64_t step = 0;
  int code = check(l), n = lumc_inputs(l->model, l->entry), alone = !l->model->mesh;
  if (mesh_rank(l->model->mesh)) l->losses = NULL, l->quiet = 1; /* the first one tells */
  l->terminal = isatty(STDERR_FILENO);
  l->feed.model = l->model, l->feed.entry = l->entry, l->feed.given = l->inputs;
  if (!code) code = feed_open(&l->feed, l->feeds, l->n_feeds);
  if (!code && l->order && !l->feed.batch)
    code = lumc_fail(LUMC_USAGE, "--order lists rows, and no input is fed by rows");
  if (!code && l->order) code = feed_listed(&l->feed, l->order);
  for (int i = 0; i < n && !code; ++i)
    if (!l->inputs[i]) l->inputs[i] = zeros(lumc_input(l->model, l->entry, i)->bytes, 1, &code);
  if (!code) code = begin(l, &step);
  if (!code && step == (uint64_t)l->feed.steps && l->has_outputs)
    code = lumc_fail(LUMC_USAGE, "all %ld steps are done: there are no outputs", l->feed.steps);
  if (!code) code = open_losses(l, step);
  for (int i = 0; i < 2 && alone; ++i) /* ranks would stop at different steps */
    if (!sigaction(signals[i], &action, &before[i]) && before[i].sa_handler == SIG_IGN)
      sigaction(signals[i], &before[i], NULL); /* as nohup has it */
  if (!code) code = loop(l, step);
  for (int i = 0; i < 2 && alone; ++i) sigaction(signals[i], &before[i], NULL);
  if (l->csv && fclose(l->csv) && !code) code = csv_failed(l);
  feed_close(&l->feed);
  if (!code && stopped) raise((int)stopped); /* what was done is saved */
  return code;
}
