/* states.c - what a bundle keeps between runs: the functions of lumc.h about states. */
#include "ranks.h"
#include <stdlib.h>
#include <string.h>

int lumc_states(const lumc *m) { return (int)m->plan.n_states; }

const lumc_tensor *lumc_state(const lumc *m, int i) {
  return tensor_at(m->plan.states, m->plan.n_states, i);
}

void *lumc_state_data(lumc *m, int i) {
  void *data = NULL;
  pthread_mutex_lock(&m->running);
  if (lumc_state(m, i) && m->device->state(m->self, (size_t)i, &data)) data = NULL;
  pthread_mutex_unlock(&m->running);
  return data;
}

/* Does a box lie inside of a tensor at this index? */
static int is_inside(const lumc_tensor *t, const int64_t *index, const int64_t *shape) {
  for (int i = 0; i < t->rank; ++i)
    if (shape[i] < 0 || shape[i] > t->shape[i] || index[i] < 0 ||
        index[i] > t->shape[i] - shape[i])
      return 0;
  return 1;
}

int lumc_copy_state(lumc *m, int i, const int64_t *from, const int64_t *to, const int64_t *shape) {
  const lumc_tensor *t = lumc_state(m, i);
  if (!t) return lumc_fail(LUMC_USAGE, "no state %d", i);
  if (!is_inside(t, from, shape) || !is_inside(t, to, shape))
    return lumc_fail(LUMC_USAGE, "not inside of state '%s'", t->name);
  void *data = NULL;
  pthread_mutex_lock(&m->running);
  int code = m->device->state(m->self, (size_t)i, &data);
  if (!code) copy_box(t, data, from, to, shape);
  pthread_mutex_unlock(&m->running);
  return code;
}

int states_begin(lumc *m, int are_zero) {
  const uint8_t *first = m->first.data;
  int code = LUMC_OK;
  for (size_t i = 0; i < m->plan.n_states && !code; ++i) {
    size_t bytes = m->plan.states[i].bytes;
    void *data = NULL;
    if (!bytes || (are_zero && !m->plan.first[i]) || !mesh_has_state(m->mesh, &m->plan, i)) continue;
    code = m->device->state(m->self, i, &data);
    if (!code && m->plan.first[i])
      memcpy(data, first, bytes), first += bytes;
    else if (!code)
      clear(data, bytes);
  }
  return code;
}

int lumc_reset(lumc *m) {
  pthread_mutex_lock(&m->running);
  int code = states_begin(m, 0);
  pthread_mutex_unlock(&m->running);
  return code;
}

/* The states as files have them: of a mesh whole ones. */
struct whole {
  lumc_tensor *tensors;
  int64_t (*shapes)[MAX_RANK];
  void **data; /* of each; what is not the device's is from malloc */
};

static int whole_of(lumc *m, struct whole *w) {
  int code = LUMC_OK;
  w->tensors = zeros(m->plan.n_states, sizeof *w->tensors, &code);
  w->shapes = zeros(m->plan.n_states, sizeof *w->shapes, &code);
  w->data = zeros(m->plan.n_states, sizeof *w->data, &code);
  for (size_t i = 0; i < m->plan.n_states && !code; ++i)
    code = mesh_whole(&m->plan, i, &w->tensors[i], w->shapes[i]);
  return code;
}

static void forget(lumc *m, struct whole *w) {
  for (size_t i = 0; w->data && m->mesh && i < m->plan.n_states; ++i) free(w->data[i]);
  free(w->tensors);
  free(w->shapes);
  free(w->data);
}

int states_save(lumc *m, const char *path, const struct note *notes, size_t n) {
  struct whole w = {0};
  pthread_mutex_lock(&m->running);
  int code = whole_of(m, &w);
  for (size_t i = 0; i < m->plan.n_states && !code; ++i) {
    void *part = NULL;
    code = m->device->state(m->self, i, &part);
    if (!code && m->mesh)
      code = mesh_join(m->mesh, &m->plan, i, part, &w.data[i]);
    else
      w.data[i] = part;
  }
  if (!code && mesh_rank(m->mesh) == 0)
    code = tensors_write(path, w.tensors, w.data, m->plan.n_states, notes, n);
  pthread_mutex_unlock(&m->running);
  forget(m, &w);
  return code;
}

int states_load(lumc *m, const char *path, struct note *notes, size_t n) {
  uint8_t *read = NULL, *from;
  struct whole w = {0};
  pthread_mutex_lock(&m->running);
  int code = whole_of(m, &w);
  if (!code) code = tensors_read(path, w.tensors, m->plan.n_states, notes, n, &read);
  void **data = zeros(m->plan.n_states, sizeof *data, &code);
  for (size_t i = 0; i < m->plan.n_states && !code; ++i)
    code = m->device->state(m->self, i, &data[i]);
  from = read;
  for (size_t i = 0; i < m->plan.n_states && !code; from += w.tensors[i++].bytes)
    if (m->mesh)
      code = mesh_cut(m->mesh, &m->plan, i, from, data[i]);
    else if (w.tensors[i].bytes)
      memcpy(data[i], from, w.tensors[i].bytes);
  pthread_mutex_unlock(&m->running);
  forget(m, &w);
  free(data);
  free(read);
  return code;
}

int lumc_save_states(lumc *m, const char *path) { return states_save(m, path, NULL, 0); }

int lumc_load_states(lumc *m, const char *path) { return states_load(m, path, NULL, 0); }
