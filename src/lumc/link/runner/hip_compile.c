/* hip_compile.c - hipRTC, libhiprtc of ROCm: makes code objects of text where a bundle has none. */
#include "gpu.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS_OF_RTC(X)                                                                       \
  X(hiprtcCreateProgram,                                                                          \
    (handle *, const char *, const char *, int, const char *const *, const char *const *))        \
  X(hiprtcCompileProgram, (handle, int, const char *const *))                                     \
  X(hiprtcGetProgramLogSize, (handle, size_t *))                                                  \
  X(hiprtcGetProgramLog, (handle, char *))                                                        \
  X(hiprtcGetCodeSize, (handle, size_t *))                                                        \
  X(hiprtcGetCode, (handle, char *))                                                              \
  X(hiprtcDestroyProgram, (handle *))

struct rtc {
#define X(name, parameters) int(*name) parameters;
  FUNCTIONS_OF_RTC(X)
#undef X
};

static int find(struct rtc *rtc, const char *arch) {
  void *library = hip_library("libhiprtc");
  if (!library)
    return lumc_fail(LUMC_DEVICE, "the bundle has no kernels for %s, and there is no hipRTC: %s", arch,
                     dlerror());
#define X(name, parameters)                                                                       \
  *(void **)&rtc->name = dlsym(library, #name);                                                   \
  if (!rtc->name) return lumc_fail(LUMC_DEVICE, "hipRTC is too old: it has no %s", #name);
  FUNCTIONS_OF_RTC(X)
#undef X
  return LUMC_OK;
}

/* The first line of what it says that speaks of an error. */
static int refused(const struct rtc *rtc, handle program, const char *arch) {
  size_t size = 0;
  int code = LUMC_OK;
  if (rtc->hiprtcGetProgramLogSize(program, &size)) size = 0;
  char *log = zeros(size + 1, 1, &code);
  if (code) return code;
  if (size && rtc->hiprtcGetProgramLog(program, log)) *log = 0;
  char *line = strstr(log, "error");
  while (line && line > log && line[-1] != '\n') --line;
  if (line) line[strcspn(line, "\n")] = 0;
  code = lumc_fail(LUMC_DEVICE, "hipRTC refuses the kernels for %s: %s", arch, line ? line : log);
  free(log);
  return code;
}

int hip_compile(const char *text, const char *header, const char *arch, char **image) {
  static const char *const name = "lumc_hip.h";
  char wanted[96];
  const char *const flags[] = {"-std=c++17", "-O3", "-ffp-contract=fast-honor-pragmas",
                               "-fno-unroll-loops", wanted};
  struct rtc rtc;
  handle program = NULL;
  size_t size = 0;
  int code = find(&rtc, arch);
  if (code) return code;
  snprintf(wanted, sizeof wanted, "--offload-arch=%s", arch);
  if (rtc.hiprtcCreateProgram(&program, text, "kernels.hip", 1, &header, &name))
    return lumc_fail(LUMC_DEVICE, "hipRTC does not start");
  if (rtc.hiprtcCompileProgram(program, 5, flags) || rtc.hiprtcGetCodeSize(program, &size))
    code = refused(&rtc, program, arch);
  if (!code) *image = zeros(size, 1, &code);
  if (!code && rtc.hiprtcGetCode(program, *image)) code = refused(&rtc, program, arch);
  rtc.hiprtcDestroyProgram(&program);
  return code;
}
