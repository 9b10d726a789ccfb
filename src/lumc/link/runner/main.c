/* main.c - lumc-run: run a bundle from the command line, without Python. */
#include "ranks.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: lumc-run BUNDLE [--input NAME=x.npy].. [-o out.npz | -o NAME=y.npy].. [--entry NAME]\n"
    "                [--dim NAME=N].. [--device cuda|hip|metal|cpu] [--threads N] [--repeat N]\n"
    "                [--state IN] [--save OUT] [--list] [--check] [--mesh]\n"
    "       lumc-run BUNDLE --steps N --feed DATA.. [--order FILE | --seed N] [--losses FILE.csv]\n"
    "                [--state IN] [--save OUT] [--every K] [options as above]\n"
    "  --input   an input; plain x.npy when there is only one\n"
    "  -o        all outputs as .npz, or one of them as .npy; plain y.npy when there is only one\n"
    "  --entry   which entry to run (the first)\n"
    "  --dim     a dim that no shape of an input tells\n"
    "  --device  what to run on (the first of these that works here)\n"
    "  --threads threads of a CPU (1)\n"
    "  --repeat  run N times and print the minimum and the median time\n"
    "  --state   a .safetensors with all states to start from\n"
    "  --save    where to write them after the run\n"
    "  --steps   run until N steps are done, those behind --state counted\n"
    "  --feed    NAME=rows.npy, or an .npz or .safetensors with arrays called as inputs are\n"
    "  --order   an .npy with the rows of all steps; else they are taken in order\n"
    "  --seed    shuffle the rows in every epoch\n"
    "  --losses  outputs that are one number, a row for each step\n"
    "  --every   save after every K steps too\n"
    "  --list    print dims, inputs, outputs and states, and run nothing\n"
    "  --check   run every entry once, on zeros, with the least dims of every bucket\n"
    "  --mesh    start all ranks of a bundle for a mesh, on this machine\n"
    "  --version print the version\n"
    "exit codes: 0 ok, 1 failed, 2 usage, 5 corrupt bundle, 7 this machine cannot run it\n";

struct options {
  const char *bundle, *entry, *device, *state, *save, *losses, *order, *seed;
  char **inputs, **outputs, **dims, **feeds; /* as written on the command line */
  int n_inputs, n_outputs, n_dims, n_feeds, threads, repeat, steps, every, list, check, mesh;
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

/* What takes a value: one text, the last one that is given; several; or a number. */
static const struct {
  const char *name;
  size_t text, list, count, number;
} known[] = {
#define TEXT(field) offsetof(struct options, field), 0, 0, 0
#define LIST(field) 0, offsetof(struct options, field), offsetof(struct options, n_##field), 0
#define NUMBER_OF(field) 0, 0, 0, offsetof(struct options, field)
    {"--entry", TEXT(entry)}, {"--device", TEXT(device)}, {"--state", TEXT(state)},
    {"--save", TEXT(save)}, {"--losses", TEXT(losses)}, {"--order", TEXT(order)},
    {"--seed", TEXT(seed)}, {"--input", LIST(inputs)}, {"-i", LIST(inputs)},
    {"-o", LIST(outputs)}, {"--dim", LIST(dims)}, {"--feed", LIST(feeds)},
    {"--threads", NUMBER_OF(threads)}, {"--repeat", NUMBER_OF(repeat)},
    {"--steps", NUMBER_OF(steps)}, {"--every", NUMBER_OF(every)},
};

static int take(struct options *o, size_t i, char *value) {
  char *at = (char *)o;
  if (known[i].number) return number(value, (int *)(void *)(at + known[i].number));
  if (known[i].list) {
    char ***list = (char ***)(void *)(at + known[i].list);
    (*list)[(*(int *)(void *)(at + known[i].count))++] = value;
  } else {
    *(const char **)(void *)(at + known[i].text) = value;
  }
  return LUMC_OK;
}

static int parse(int argc, char **argv, struct options *o) {
  for (int i = 1; i < argc; ++i) {
    const char *arg = argv[i];
    size_t k = 0, n = sizeof known / sizeof *known;
    int code = LUMC_OK;
    while (k < n && strcmp(arg, known[k].name)) ++k;
    if (k < n && i + 1 == argc) return lumc_fail(LUMC_USAGE, "%s needs a value", arg);
    if (k < n)
      code = take(o, k, argv[++i]);
    else if (!strcmp(arg, "--list"))
      o->list = 1;
    else if (!strcmp(arg, "--check"))
      o->check = 1;
    else if (!strcmp(arg, "--mesh"))
      o->mesh = 1;
    else if (arg[0] == '-' || o->bundle)
      return lumc_fail(LUMC_USAGE, "unexpected argument '%s'; see lumc-run --help", arg);
    else
      o->bundle = arg;
    if (code) return code;
  }
  if (!o->steps && (o->n_feeds || o->order || o->seed || o->losses || o->every))
    return lumc_fail(LUMC_USAGE, "--feed, --order, --seed, --losses and --every go with --steps");
  if (o->steps && o->repeat > 1) return lumc_fail(LUMC_USAGE, "give --steps or --repeat");
  return o->bundle ? LUMC_OK : lumc_fail(LUMC_USAGE, "no bundle given; see lumc-run --help");
}

/* ---- one run: the tensors of an entry and their memory */
struct job {
  lumc *model;
  int entry, n_inputs, n_outputs;
  void **inputs, **outputs;
  struct npy *given; /* what the files of inputs say of themselves */
  const char **files;
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

/* Reads no more than the greatest tensor has; its shape is looked at when all are there. */
static int read_input(struct job *j, const char *spec) {
  const char *file;
  int i = find(lumc_input, j, j->n_inputs, spec, "input", &file);
  if (i < 0) return LUMC_USAGE;
  if (j->inputs[i]) return lumc_fail(LUMC_USAGE, "input '%s' is given twice", spec);
  int code = npy_read(file, lumc_input(j->model, j->entry, i)->bytes, &j->given[i]);
  if (code) return code;
  j->files[i] = file;
  j->inputs[i] = j->given[i].data ? j->given[i].data : malloc(1);
  return LUMC_OK;
}

static int check_input(const struct job *j, int i) {
  const lumc_tensor *t = lumc_input(j->model, j->entry, i);
  const struct npy *got = &j->given[i];
  char want[256], have[256];
  shape_text(t, want, sizeof want);
  if (!j->inputs[i])
    return lumc_fail(LUMC_USAGE, "input '%s' %s is missing: --input %s=x.npy", t->name, want,
                     t->name);
  int same = npy_same(got->dtype, t->dtype) && got->rank == t->rank;
  for (int k = 0; same && k < t->rank; ++k) same = got->shape[k] == t->shape[k];
  if (same) return LUMC_OK;
  lumc_tensor shown = {"", got->dtype, got->rank, got->shape, got->bytes};
  shape_text(&shown, have, sizeof have);
  return lumc_fail(LUMC_USAGE, "input '%s' must be %s; %s is %s", t->name, want, j->files[i], have);
}

static int set_dim(struct job *j, const char *spec, int *named) {
  const char *equals = strchr(spec, '=');
  char *end = NULL;
  long long value = equals ? strtoll(equals + 1, &end, 10) : 0;
  if (!equals || end == equals + 1 || *end)
    return lumc_fail(LUMC_USAGE, "'%s' is not NAME=NUMBER", spec);
  for (int i = 0; i < lumc_dims(j->model); ++i)
    if (matches(lumc_dim_at(j->model, i)->name, spec, (size_t)(equals - spec))) {
      named[i] = 1;
      if (lumc_dim_source(j->model, j->entry, i) == LUMC_COUNTED)
        return lumc_fail(LUMC_USAGE, "dim '%s' counts how often the entry is run through: leave it out",
                         lumc_dim_at(j->model, i)->name);
      return lumc_set_dim(j->model, lumc_dim_at(j->model, i)->name, value);
    }
  return lumc_fail(LUMC_USAGE, "no dim '%.*s'; see lumc-run BUNDLE --list", (int)(equals - spec),
                   spec);
}

/* From the shapes of the inputs, and from --dim; a dim of both must be the same in both. */
static int set_dims(struct job *j, const struct options *o) {
  int named[MAX_DIMS] = {0}, code = LUMC_OK;
  for (int i = 0; i < j->n_inputs && !code; ++i)
    if (j->inputs[i] && j->given[i].rank == lumc_input(j->model, j->entry, i)->rank)
      code = lumc_set_shape(j->model, j->entry, i, j->given[i].shape, j->given[i].rank);
  for (int i = 0; i < o->n_dims && !code; ++i) code = set_dim(j, o->dims[i], named);
  for (int i = 0; i < lumc_dims(j->model) && !code; ++i)
    if (!named[i] && lumc_dim_source(j->model, j->entry, i) == LUMC_BY_NAME) {
      const char *name = lumc_dim_at(j->model, i)->name;
      code = lumc_fail(LUMC_USAGE, "dim '%s' is missing, which no input tells: --dim %s=N", name,
                       name);
    }
  for (int i = 0; i < j->n_inputs && !code; ++i)
    if (j->inputs[i] || !o->steps) code = check_input(j, i); /* others are fed */
  return code;
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
  if (!code && n > 1 && mesh_rank(j->model->mesh) == 0) {
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

static int start(struct job *j, int entry) {
  j->entry = entry;
  j->n_inputs = lumc_inputs(j->model, entry);
  j->n_outputs = lumc_outputs(j->model, entry);
  j->inputs = calloc((size_t)j->n_inputs + 1, sizeof *j->inputs);
  j->outputs = calloc((size_t)j->n_outputs + 1, sizeof *j->outputs);
  j->given = calloc((size_t)j->n_inputs + 1, sizeof *j->given);
  j->files = calloc((size_t)j->n_inputs + 1, sizeof *j->files);
  if (!j->inputs || !j->outputs || !j->given || !j->files)
    return lumc_fail(LUMC_FAILED, "out of memory");
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
  free(j->given);
  free(j->files);
  j->inputs = j->outputs = NULL;
  j->given = NULL;
  j->files = NULL;
}

/* The least values of dims that are in no bucket before one in which a dim ends lower. */
static int set_bucket(lumc *m, int entry, int bucket) {
  int code = dims_to_ends(m, 0);
  for (int k = 0; k < lumc_dims(m) && !code; ++k) {
    const lumc_dim *d = lumc_dim_at(m, k);
    int64_t end = lumc_bucket_end(m, entry, bucket, k), value = d->value;
    for (int i = 0; i < lumc_buckets(m, entry); ++i) {
      int64_t other = lumc_bucket_end(m, entry, i, k), above = other - other % d->multiple + d->multiple;
      if (other < end && above > value) value = above;
    }
    code = lumc_set_dim(m, d->name, value);
  }
  return code;
}

static int check(lumc *m, struct job *j) {
  int code = LUMC_OK;
  for (int e = 0, b = 0; e < lumc_entries(m) && !code; b = ++b < lumc_buckets(m, e) ? b : (++e, 0)) {
    code = set_bucket(m, e, b);
    if (!code) code = start(j, e);
    for (int i = 0; i < j->n_inputs && !code; ++i)
      if (!(j->inputs[i] = calloc(1, lumc_input(m, e, i)->bytes + 1)))
        code = lumc_fail(LUMC_FAILED, "out of memory");
    if (!code) code = lumc_run(m, e, (const void *const *)j->inputs, j->outputs);
    end(j);
  }
  return code;
}

/* Many runs, on other inputs each. */
static int run_steps(const struct options *o, struct job *j) {
  struct loop l = {.model = j->model, .entry = j->entry, .inputs = j->inputs};
  char *end = NULL;
  l.outputs = j->outputs, l.has_outputs = o->n_outputs > 0;
  l.feeds = o->feeds, l.n_feeds = o->n_feeds;
  l.state = o->state, l.save = o->save, l.losses = o->losses, l.order = o->order;
  l.every = o->every, l.feed.steps = o->steps;
  l.feed.shuffled = o->seed != NULL;
  if (o->seed) l.feed.seed = strtoull(o->seed, &end, 10);
  if (o->seed && (*o->seed < '0' || *o->seed > '9' || *end))
    return lumc_fail(LUMC_USAGE, "--seed %s is no number", o->seed);
  return train(&l);
}

static int run_once(const struct options *o, struct job *j) {
  int code = LUMC_OK;
  if ((o->state || o->save) && !lumc_states(j->model))
    code = lumc_fail(LUMC_USAGE, "this bundle has no states");
  if (!code && o->state) code = lumc_load_states(j->model, o->state);
  if (!code) code = repeat(j, o->repeat, o->threads);
  return code;
}

static int run(const struct options *o, struct job *j) {
  int entry = o->entry ? lumc_entry(j->model, o->entry) : 0;
  if (entry < 0)
    return lumc_fail(LUMC_USAGE, "no entry '%s'; see lumc-run BUNDLE --list", o->entry);
  int code = start(j, entry);
  for (int i = 0; i < o->n_inputs && !code; ++i) code = read_input(j, o->inputs[i]);
  if (!code) code = set_dims(j, o);
  if (!code) code = o->steps ? run_steps(o, j) : run_once(o, j);
  int first = mesh_rank(j->model->mesh) == 0; /* all ranks have the same outputs */
  for (int i = 0; i < o->n_outputs && first && !code; ++i) code = write_output(j, o->outputs[i]);
  if (!code && o->save && !o->steps) code = lumc_save_states(j->model, o->save);
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
  o.dims = calloc((size_t)argc + 1, sizeof *o.dims);
  o.feeds = calloc((size_t)argc + 1, sizeof *o.feeds);
  int code = LUMC_OK;
  if (!o.inputs || !o.outputs || !o.dims || !o.feeds) code = lumc_fail(LUMC_FAILED, "out of memory");
  if (!code) code = parse(argc, argv, &o);
  if (!code && o.mesh) return launch(o.bundle, argc, argv);
  if (!code) code = lumc_open_on(o.bundle, o.device, o.threads, &j.model);
  if (!code && o.list && mesh_rank(j.model->mesh) == 0) list_bundle(j.model);
  if (!code && o.check) code = check(j.model, &j);
  if (!code && !o.list && !o.check) code = run(&o, &j);
  if (code) {
    FILE *to = launched();
    fprintf(to, "lumc-run: %s\n", lumc_error());
    fflush(to);
    if (to != stderr && j.model && mesh_lost(j.model->mesh)) code = RANK_LOST;
    if (j.model) mesh_give_up(j.model->mesh, code);
  }
  end(&j);
  lumc_close(j.model);
  free(o.inputs);
  free(o.outputs);
  free(o.dims);
  free(o.feeds);
  return code;
}
