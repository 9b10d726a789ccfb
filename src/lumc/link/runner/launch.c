/* launch.c - lumc-run --mesh: the same program once for each rank, on this machine. */
#include "internal.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

enum { GRACE_S = 10 }; /* that ranks have to end when one of them failed */

static pid_t *children;
static int n_children;
static volatile sig_atomic_t caught;

static void pass_on(int signal) {
  if (signal != SIGKILL) caught = signal;
  for (int i = 0; i < n_children; ++i)
    if (children[i] > 0) kill(children[i], signal);
}

FILE *launched(void) {
  const char *file = getenv("LUMC_MESH_ERRORS");
  FILE *to = file ? fdopen(atoi(file), "w") : NULL;
  return to ? to : stderr;
}

static int set_number(const char *name, long value) {
  char text[32];
  snprintf(text, sizeof text, "%ld", value);
  return setenv(name, text, 1);
}

/* A socket of rank 0, which nobody outside of this machine reaches, and a key that nobody knows. */
static int prepare(int ranks) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof at;
  uint8_t random[24];
  char key[2 * sizeof random + 1];
  int file = socket(AF_INET, SOCK_STREAM, 0), source = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  int good = file >= 0 && source >= 0 && !bind(file, (struct sockaddr *)&at, size) && !listen(file, 1024) &&
             !getsockname(file, (struct sockaddr *)&at, &size) &&
             read(source, random, sizeof random) == (ssize_t)sizeof random;
  if (source >= 0) close(source);
  for (size_t i = 0; i < sizeof random && good; ++i) sprintf(key + 2 * i, "%02x", random[i]);
  good = good && !setenv("LUMC_MESH_KEY", key, 1) && !setenv("MASTER_ADDR", "127.0.0.1", 1) &&
         !setenv("LUMC_TRANSPORT", "tcp", 1) && !set_number("MASTER_PORT", ntohs(at.sin_port)) &&
         !set_number("WORLD_SIZE", ranks) && !set_number("LOCAL_WORLD_SIZE", ranks);
  if (good) return file;
  lumc_fail(LUMC_FAILED, "cannot start ranks: %s", strerror(errno));
  if (file >= 0) close(file);
  return -1;
}

static void become(int rank, int file, FILE *errors, char **argv) {
#if defined(__linux__)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (rank)
    close(file), unsetenv("LUMC_MESH_FD");
  else
    set_number("LUMC_MESH_FD", file);
  set_number("RANK", rank), set_number("LOCAL_RANK", rank);
  set_number("LUMC_MESH_ERRORS", fileno(errors));
  execv("/proc/self/exe", argv);
  execvp(argv[0], argv);
  _exit(LUMC_FAILED);
}

/* How much an end says of why: nothing, that another rank is gone, what is wrong here, a signal. */
static int weight(int status) {
  if (!status) return 0;
  if (WIFSIGNALED(status)) return 3;
  return WEXITSTATUS(status) == RANK_LOST ? 1 : 2;
}

/* What a rank that failed says; how it ended, if by a signal. */
static int tell(int rank, int status, FILE *errors) {
  char line[4096];
  size_t n;
  if (WIFSIGNALED(status)) {
    fprintf(stderr, "lumc-run: rank %d was ended by signal %d (%s)\n", rank, WTERMSIG(status),
            strsignal(WTERMSIG(status)));
    return LUMC_FAILED;
  }
  rewind(errors);
  while ((n = fread(line, 1, sizeof line, errors)) > 0) fwrite(line, 1, n, stderr);
  return WEXITSTATUS(status) == RANK_LOST ? LUMC_FAILED : WEXITSTATUS(status);
}

/* Wait for all; when one failed the others have a while to see it. Which one says best why, and how it
 * ended. */
static int await(int *rank) {
  int left = n_children, status, why = 0, killed = 0;
  time_t end = 0;
  while (left) {
    pid_t pid = waitpid(-1, &status, end ? WNOHANG : 0);
    if (pid < 0 && errno != EINTR) break;
    if (pid <= 0) {
      if (end && time(NULL) > end) pass_on(SIGKILL), killed = 1, end = time(NULL) + GRACE_S;
      if (end) nanosleep(&(struct timespec){0, 10000000}, NULL);
      continue;
    }
    for (int i = 0; i < n_children; ++i)
      if (children[i] == pid) {
        children[i] = 0, --left;
        if (!killed && weight(status) > weight(why)) why = status, *rank = i;
        if (status && !end) end = time(NULL) + GRACE_S;
      }
  }
  return why;
}

static int run_ranks(int ranks, char **argv) {
  int code = LUMC_OK, file = prepare(ranks);
  if (file < 0) return LUMC_FAILED;
  children = zeros((size_t)ranks, sizeof *children, &code);
  FILE **errors = zeros((size_t)ranks, sizeof *errors, &code);
  const int signals[] = {SIGINT, SIGTERM};
  for (int i = 0; i < 2; ++i)
    if (signal(signals[i], pass_on) == SIG_IGN) signal(signals[i], SIG_IGN); /* as nohup has it */
  for (int i = 0; i < ranks && !code; ++i) {
    if (!(errors[i] = tmpfile())) {
      code = lumc_fail(LUMC_FAILED, "cannot start ranks: %s", strerror(errno));
      break;
    }
    pid_t pid = fork();
    if (!pid) become(i, file, errors[i], argv);
    if (pid < 0) code = lumc_fail(LUMC_FAILED, "cannot start ranks: %s", strerror(errno));
    if (pid > 0) children[i] = pid, n_children = i + 1;
  }
  close(file);
  if (code) pass_on(SIGKILL), fprintf(stderr, "lumc-run: %s\n", lumc_error());
  int rank = 0, why = await(&rank);
  if (why && !caught && !code) code = tell(rank, why, errors[rank]);
  for (int i = 0; errors && i < ranks; ++i)
    if (errors[i]) fclose(errors[i]);
  free(errors);
  free(children);
  if (caught) signal((int)caught, SIG_DFL), raise((int)caught);
  return code;
}

int launch(const char *bundle, int argc, char **argv) {
  int ranks = 0, n = 0, code = ranks_of(bundle, &ranks);
  char **given = zeros((size_t)argc, sizeof *given, &code);
  if (!code && !ranks) code = lumc_fail(LUMC_USAGE, "this bundle is for one process: leave --mesh out");
  if (code) fprintf(stderr, "lumc-run: %s\n", lumc_error());
  for (int i = 0; i < argc && !code; ++i)
    if (!i || strcmp(argv[i], "--mesh")) given[n++] = argv[i];
  if (!code) code = run_ranks(ranks, given);
  free(given);
  return code;
}
