/* main.c - lumc-run: run a bundle from the command line, without Python. */
#include "internal.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: lumc-run BUNDLE [--input NAME=x.npy].. [-o out.npz | -o NAME=y.npy].. [--entry NAME]\n"
    "                [--device cuda|metal|cpu] [--threads N] [--repeat N] [--list] [--check]\n"
    "  --input   an input; plain x.npy when there is only one\n"
    "  -o        all outputs as .npz, or one of them as .npy; plain y.npy when there is only one\n"
    "  --entry   which entry to run (the first)\n"
    "  --device  what to run on (the first of these that works here)\n"
    "  --threads threads of a CPU (1)\n"
    "  --repeat  run N times and print the minimum and the median time\n"
    "  --list    print inputs, outputs and states, and run nothing\n"
    "  --check   run every entry once, on zeros\n"
    "  --version print the version\n"
    "exit codes: 0 ok, 1 failed, 2 usage, 5 corrupt bundle, 7 this machine cannot run it\n";

struct options {
  const char *bundle, *entry, *device;
  char **inputs, **outputs; /* as written on the command line */
  int n_inputs, n_outputs, threads, repeat, list, check;
};

static void shape_text(const lumc_tensor *t, char *out, size_t size) {
  size_t n = (size_t)snprintf(out, size, "%s[", dtype_name(t->dtype));
  for (int i = 0; i < t->rank && n < size; ++i)
    n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? "," : "", (long long)t->shape[i]);
  if (n < size) snprintf(out + n, size - n, "]");
}

static int number(const char *text, int *value) {
  char *end;
  long n = strtol(text, &end, 10);
  if (*end || end == text || n < 1 || n > 1000000000)
    return lumc_fail(LUMC_USAGE, "'%s' is not a positive number", text);
  *value = (int)n;
  return LUMC_OK;
}

static int parse(int argc, char **argv, struct options *o) {
  for (int i = 1; i < argc; ++i) {
    const char *arg = argv[i];
    int takes = !strcmp(arg, "--input") || !strcmp(arg, "-i") || !strcmp(arg, "-o") ||
                !strcmp(arg, "--entry") || !strcmp(arg, "--device") ||
                !strcmp(arg, "--threads") || !strcmp(arg, "--repeat");
    if (takes && i + 1 == argc) return lumc_fail(LUMC_USAGE, "%s needs a value", arg);
    int code = LUMC_OK;
    if (!strcmp(arg, "--list"))
      o->list = 1;
    else if (!strcmp(arg, "--check"))
      o->check = 1;
    else if (!strcmp(arg, "--input") || !strcmp(arg, "-i"))
      o->inputs[o->n_inputs++] = argv[++i];
    else if (!strcmp(arg, "-o"))
      o->outputs[o->n_outputs++] = argv[++i];
    else if (!strcmp(arg, "--entry"))
      o->entry = argv[++i];
    else if (!strcmp(arg, "--device"))
      o->device = argv[++i];
    else if (!strcmp(arg, "--threads"))
      code = number(argv[++i], &o->threads);
    else if (!strcmp(arg, "--repeat"))
      code = number(argv[++i], &o->repeat);
    else if (arg[0] == '-' || o->bundle)
      return lumc_fail(LUMC_USAGE, "unexpected argument '%s'; see lumc-run --help", arg);
    else
      o->bundle = arg;
    if (code) return code;
  }
  return o->bundle ? LUMC_OK : lumc_fail(LUMC_USAGE, "no bundle given; see lumc-run --help");
}

/* ---- one run: the tensors of an entry and their memory */
struct job {
  lumc *model;
  int entry, n_inputs, n_outputs;
  void **inputs, **outputs;
};

static int matches(const char *name, const char *spec, size_t n) {
  return strlen(name) == n && !strncmp(name, spec, n);
}

/* Which tensor `NAME=file` or a plain file means, and where the file name starts. */
static int find(const lumc_tensor *(*get)(const lumc *, int, int), const struct job *j, int n,
                const char *spec, const char *what, const char **file) {
  const char *equals = strchr(spec, '=');
  *file = equals ? equals + 1 : spec;
  for (int i = 0; equals && i < n; ++i)
    if (matches(get(j->model, j->entry, i)->name, spec, (size_t)(equals - spec))) return i;
  if (!equals && n == 1) return 0;
  if (equals)
    lumc_fail(LUMC_USAGE, "no %s '%.*s'; see lumc-run BUNDLE --list", what, (int)(equals - spec),
              spec);
  else
    lumc_fail(LUMC_USAGE, "there are %d %ss: write NAME=%s", n, what, spec);
  return -1;
}

static int read_input(struct job *j, const char *spec) {
  const char *file;
  struct npy got;
  char want[256], have[256];
  int i = find(lumc_input, j, j->n_inputs, spec, "input", &file);
  if (i < 0) return LUMC_USAGE;
  if (j->inputs[i]) return lumc_fail(LUMC_USAGE, "input '%s' is given twice", spec);
  const lumc_tensor *t = lumc_input(j->model, j->entry, i);
  int code = npy_read(file, t->bytes, &got);
  if (code) return code;
  /* uint16 files hold bf16 patterns; there is no such tensor type otherwise */
  int same = got.dtype == t->dtype && got.rank == t->rank;
  for (int k = 0; same && k < t->rank; ++k) same = got.shape[k] == t->shape[k];
  if (same) {
    j->inputs[i] = got.data ? got.data : malloc(1);
    return LUMC_OK;
  }
  lumc_tensor shown = {"", got.dtype, got.rank, got.shape, got.bytes};
  shape_text(t, want, sizeof want);
  shape_text(&shown, have, sizeof have);
  free(got.data);
  return lumc_fail(LUMC_USAGE, "input '%s' must be %s; %s is %s", t->name, want, file, have);
}

static int check_inputs(const struct job *j) {
  for (int i = 0; i < j->n_inputs; ++i)
    if (!j->inputs[i]) {
      char want[256];
      shape_text(lumc_input(j->model, j->entry, i), want, sizeof want);
      const char *name = lumc_input(j->model, j->entry, i)->name;
      return lumc_fail(LUMC_USAGE, "input '%s' %s is missing: --input %s=x.npy", name, want, name);
    }
  return LUMC_OK;
}

static int ends_with(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n >= k && !strcmp(text + n - k, end);
}

static int write_output(const struct job *j, const char *spec) {
  const char *file;
  if (ends_with(spec, ".npz") && !strchr(spec, '='))
    return npz_write(spec, lumc_output(j->model, j->entry, 0), j->outputs, (size_t)j->n_outputs);
  int i = find(lumc_output, j, j->n_outputs, spec, "output", &file);
  return i < 0 ? LUMC_USAGE : npy_write(file, lumc_output(j->model, j->entry, i), j->outputs[i]);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int repeat(const struct job *j, int n, int threads) {
  double *us = malloc((size_t)n * sizeof *us);
  int code = us ? LUMC_OK : lumc_fail(LUMC_FAILED, "out of memory");
  for (int i = 0; i < n && !code; ++i) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    code = lumc_run(j->model, j->entry, (const void *const *)j->inputs, j->outputs);
    clock_gettime(CLOCK_MONOTONIC, &b);
    us[i] = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
  }
  if (!code && n > 1) {
    qsort(us, (size_t)n, sizeof *us, by_value);
    printf("min %.1f us, median %.1f us (%d runs, ", us[0], us[n / 2], n);
    if (strcmp(lumc_device(j->model), "cpu"))
      printf("%s)\n", lumc_device(j->model));
    else
      printf("%d threads)\n", threads);
  }
  free(us);
  return code;
}

static void list_one(const char *what, const lumc_tensor *t) {
  char shape[256];
  shape_text(t, shape, sizeof shape);
  printf("  %-6s %s %s\n", what, t->name, shape);
}

static void list(const lumc *m) {
  printf("device %s\n", lumc_device(m));
  for (int e = 0; e < lumc_entries(m); ++e) {
    printf("entry %s\n", lumc_entry_name(m, e));
    for (int i = 0; i < lumc_inputs(m, e); ++i) list_one("input", lumc_input(m, e, i));
    for (int i = 0; i < lumc_outputs(m, e); ++i) list_one("output", lumc_output(m, e, i));
  }
  for (int i = 0; i < lumc_states(m); ++i) list_one("state", lumc_state(m, i));
}

static int start(struct job *j, int entry) {
  j->entry = entry;
  j->n_inputs = lumc_inputs(j->model, entry);
  j->n_outputs = lumc_outputs(j->model, entry);
  j->inputs = calloc((size_t)j->n_inputs + 1, sizeof *j->inputs);
  j->outputs = calloc((size_t)j->n_outputs + 1, sizeof *j->outputs);
  if (!j->inputs || !j->outputs) return lumc_fail(LUMC_FAILED, "out of memory");
  for (int i = 0; i < j->n_outputs; ++i)
    if (!(j->outputs[i] = malloc(lumc_output(j->model, entry, i)->bytes + 1)))
      return lumc_fail(LUMC_FAILED, "out of memory");
  return LUMC_OK;
}

static void end(struct job *j) {
  for (int i = 0; j->inputs && i < j->n_inputs; ++i) free(j->inputs[i]);
  for (int i = 0; j->outputs && i < j->n_outputs; ++i) free(j->outputs[i]);
  free(j->inputs);
  free(j->outputs);
  j->inputs = j->outputs = NULL;
}

static int check(struct job *j) {
  int code = LUMC_OK;
  for (int e = 0; e < lumc_entries(j->model) && !code; ++e) {
    code = start(j, e);
    for (int i = 0; i < j->n_inputs && !code; ++i)
      if (!(j->inputs[i] = calloc(1, lumc_input(j->model, e, i)->bytes + 1)))
        code = lumc_fail(LUMC_FAILED, "out of memory");
    if (!code)
      code = lumc_run(j->model, e, (const void *const *)j->inputs, j->outputs);
    end(j);
  }
  return code;
}

static int run(const struct options *o, struct job *j) {
  int entry = o->entry ? lumc_entry(j->model, o->entry) : 0;
  if (entry < 0)
    return lumc_fail(LUMC_USAGE, "no entry '%s'; see lumc-run BUNDLE --list", o->entry);
  int code = start(j, entry);
  for (int i = 0; i < o->n_inputs && !code; ++i) code = read_input(j, o->inputs[i]);
  if (!code) code = check_inputs(j);
  if (!code) code = repeat(j, o->repeat, o->threads);
  for (int i = 0; i < o->n_outputs && !code; ++i) code = write_output(j, o->outputs[i]);
  return code;
}

#if defined(LUMC_OLD_GLIBC) && defined(__GLIBC__)
/* What start files call, under its first version; with new ones init and fini are NULL. */
typedef int start_fn(int (*)(int, char **), int, char **, void (*)(void), void (*)(void),
                     void (*)(void), void *);
start_fn lumc_start, __wrap___libc_start_main;
LUMC_OLD(lumc_start, __libc_start_main, LUMC_FIRST);
int __wrap___libc_start_main(int (*program)(int, char **), int argc, char **argv,
                             void (*init)(void), void (*fini)(void), void (*end)(void),
                             void *stack) {
  return lumc_start(program, argc, argv, init, fini, end, stack);
}
#endif

int main(int argc, char **argv) {
  struct options o = {.threads = 1, .repeat = 1};
  struct job j = {0};
  signal(SIGXFSZ, SIG_IGN); /* a file that may grow no more is an error of the one who writes it */
  for (int i = 1; i < argc; ++i)
    if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
      return fputs(usage, stdout) < 0;
    else if (!strcmp(argv[i], "--version"))
      return printf("lumc-run %s\n", lumc_version()) < 0;
  o.inputs = calloc((size_t)argc + 1, sizeof *o.inputs);
  o.outputs = calloc((size_t)argc + 1, sizeof *o.outputs);
  int code =
      o.inputs && o.outputs ? parse(argc, argv, &o) : lumc_fail(LUMC_FAILED, "out of memory");
  if (!code) code = lumc_open_on(o.bundle, o.device, o.threads, &j.model);
  if (!code && o.list) list(j.model);
  if (!code && o.check) code = check(&j);
  if (!code && !o.list && !o.check) code = run(&o, &j);
  if (code) fprintf(stderr, "lumc-run: %s\n", lumc_error());
  end(&j);
  lumc_close(j.model);
  free(o.inputs);
  free(o.outputs);
  return code;
}
