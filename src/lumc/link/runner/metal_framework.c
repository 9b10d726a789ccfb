/* metal_framework.c - Metal and the Objective-C runtime, both loaded when a plan asks for them. */
#include "metal.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef METAL_OBJC
#define METAL_OBJC "/usr/lib/libobjc.A.dylib"
#define METAL_FRAMEWORK "/System/Library/Frameworks/Metal.framework/Metal"
#endif
/* without it a program on the command line has no default device */
#define METAL_GRAPHICS "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics"

enum {
  FAMILY = 1000, /* MTLGPUFamilyApple1 is 1001 */
  MAX_FAMILY = 20
};

struct framework metal;
static pthread_once_t started = PTHREAD_ONCE_INIT;

static const char *text_of(id string) {
  const char *text = string ? SEND(const char *)(string, metal.text) : NULL;
  return text ? text : "unknown error";
}

const char *metal_said(id error) {
  return text_of(error ? SEND(id)(error, metal.description) : NULL);
}

id metal_string(const char *text) {
  return SEND(id, const char *)(metal.objc_getClass("NSString"), metal.string, text);
}

static int load_functions(void) {
  void *objc = dlopen(METAL_OBJC, RTLD_NOW | RTLD_LOCAL);
  void *framework = objc ? dlopen(METAL_FRAMEWORK, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!objc || !framework)
    return snprintf(metal.problem, sizeof metal.problem,
                    "no Metal on this machine: it is for Macs");
  dlopen(METAL_GRAPHICS, RTLD_NOW | RTLD_LOCAL);
#define X(library, name, result, parameters)                                                      \
  *(void **)&metal.name = dlsym(library, #name);                                                  \
  if (!metal.name)                                                                                \
    return snprintf(metal.problem, sizeof metal.problem, "this Metal has no %s", #name);
  FUNCTIONS(X)
#undef X
#define X(name, spelled) metal.name = metal.sel_registerName(spelled);
  SELECTORS(X)
#undef X
  return 0;
}

static void start(void) {
  if (load_functions()) return;
  void *pool = metal.objc_autoreleasePoolPush();
  metal.device = metal.MTLCreateSystemDefaultDevice();
  for (int n = 1; metal.device && n <= MAX_FAMILY; ++n)
    if (SEND(bool, long)(metal.device, metal.supports_family, FAMILY + n)) metal.family = n;
  if (!metal.device)
    snprintf(metal.problem, sizeof metal.problem, "Metal sees no GPU");
  metal.objc_autoreleasePoolPop(pool);
}

long metal_suits(const struct plan *p) {
  pthread_once(&started, start);
  if (*metal.problem) return lumc_fail(0, "%s", metal.problem);
  int needs = strncmp(p->arch, "apple", 5) ? 0 : atoi(p->arch + 5);
  if (needs >= 7 && needs <= metal.family) return 1000 + needs;
  return lumc_fail(0, "target %s needs a GPU of family Apple%d (an M1 has Apple7), this one is "
                   "Apple%d", p->target, needs < 7 ? 7 : needs, metal.family);
}
