/* listing.c - what lumc-run --list prints. */
#include "internal.h"
#include <stdio.h>

int dims_to_ends(lumc *m, int greatest) {
  int code = LUMC_OK;
  for (int i = 0; i < lumc_dims(m) && !code; ++i) {
    const lumc_dim *d = lumc_dim_at(m, i);
    int64_t least = d->lo + (d->multiple - d->lo % d->multiple) % d->multiple;
    code = lumc_set_dim(m, d->name, greatest ? d->hi - d->hi % d->multiple : least);
  }
  return code;
}

/* An extent that depends on dims as LEAST..GREATEST. */
static void list_one(lumc *m, const char *what, const lumc_tensor *t) {
  int64_t least[MAX_RANK];
  printf("  %-6s %s %s[", what, t->name, dtype_name(t->dtype));
  dims_to_ends(m, 0);
  for (int i = 0; i < t->rank; ++i) least[i] = t->shape[i];
  dims_to_ends(m, 1);
  for (int i = 0; i < t->rank; ++i) {
    long long a = least[i], b = t->shape[i];
    if (i) printf(",");
    if (a != b) printf("%lld..", a < b ? a : b);
    printf("%lld", a < b ? b : a);
  }
  puts("]");
}

static void list_bucket(lumc *m, int entry, int bucket) {
  printf("  tuned ");
  for (int k = 0; k < lumc_dims(m); ++k)
    if (lumc_dim_source(m, entry, k) != LUMC_UNUSED)
      printf(" %s=%lld", lumc_dim_at(m, k)->name, (long long)lumc_bucket_end(m, entry, bucket, k));
  puts("");
}

void list_bundle(lumc *m) {
  printf("device %s\n", lumc_device(m));
  for (int i = 0; i < lumc_dims(m); ++i) {
    const lumc_dim *d = lumc_dim_at(m, i);
    printf("dim %s in %lld..%lld", d->name, (long long)d->lo, (long long)d->hi);
    if (d->multiple > 1) printf(" multiple %lld", (long long)d->multiple);
    puts("");
  }
  for (int e = 0; e < lumc_entries(m); ++e) {
    printf("entry %s", lumc_entry_name(m, e));
    for (int k = 0; k < lumc_dims(m); ++k)
      if (lumc_dim_source(m, e, k) == LUMC_COUNTED) printf(" repeat %s", lumc_dim_at(m, k)->name);
    puts("");
    for (int b = 0; b < lumc_buckets(m, e) && lumc_buckets(m, e) > 1; ++b) list_bucket(m, e, b);
    for (int i = 0; i < lumc_inputs(m, e); ++i) list_one(m, "input", lumc_input(m, e, i));
    for (int i = 0; i < lumc_outputs(m, e); ++i) list_one(m, "output", lumc_output(m, e, i));
  }
  for (int i = 0; i < lumc_states(m); ++i) list_one(m, "state", lumc_state(m, i));
}
