/* ranks_who.c - which rank this is, as launchers tell it by variables of the environment. */
#include "ranks.h"
#include <stdlib.h>

const char *const of_rank[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};

long from_environment(const char *const *names) {
  for (; *names; ++names) {
    const char *text = getenv(*names);
    char *end;
    if (!text || !*text) continue;
    long value = strtol(text, &end, 10);
    return *end || value < 0 || value > 1 << 20 ? -2 : value;
  }
  return -1;
}

const char *text_of(const char *name, const char *otherwise) {
  const char *text = getenv(name);
  return text && *text ? text : otherwise;
}

int local_rank(void) {
  static const char *const names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                      "SLURM_LOCALID", NULL};
  long rank = from_environment(names);
  if (rank == -1) rank = from_environment(of_rank);
  return rank < 0 ? -1 : (int)rank;
}

int local_ranks(void) {
  static const char *const names[] = {"LOCAL_WORLD_SIZE", NULL};
  long ranks = from_environment(names);
  return ranks < 0 ? -1 : (int)ranks;
}
