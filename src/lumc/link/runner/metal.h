/* metal.h - what the files of the Metal device share: the functions of the Objective-C runtime and
 * the messages that are sent. No header of Apple is needed, so this compiles everywhere. */
#ifndef LUMC_METAL_H
#define LUMC_METAL_H

#include "internal.h"
#include <stdbool.h>

#pragma GCC visibility push(hidden)

typedef void *id;
typedef void *selector;
struct size { /* MTLSize */
  uint64_t width, height, depth;
};

#define FUNCTIONS(X)                                                                              \
  X(objc, objc_getClass, id, (const char *))                                                      \
  X(objc, sel_registerName, selector, (const char *))                                             \
  X(objc, objc_msgSend, void, (void))                                                             \
  X(objc, objc_autoreleasePoolPush, void *, (void))                                               \
  X(objc, objc_autoreleasePoolPop, void, (void *))                                                \
  X(framework, MTLCreateSystemDefaultDevice, id, (void))

#define SELECTORS(X)                                                                              \
  X(new_object, "new")                                                                            \
  X(release, "release")                                                                           \
  X(string, "stringWithUTF8String:")                                                              \
  X(text, "UTF8String")                                                                           \
  X(description, "localizedDescription")                                                          \
  X(name, "name")                                                                                 \
  X(supports_family, "supportsFamily:")                                                           \
  X(queue, "newCommandQueue")                                                                     \
  X(fast_math, "setFastMathEnabled:")                                                             \
  X(language, "setLanguageVersion:")                                                              \
  X(library, "newLibraryWithSource:options:error:")                                               \
  X(function, "newFunctionWithName:")                                                             \
  X(pipeline, "newComputePipelineStateWithFunction:error:")                                       \
  X(most_threads, "maxTotalThreadsPerThreadgroup")                                                \
  X(allocate, "newBufferWithLength:options:")                                                     \
  X(wrap, "newBufferWithBytesNoCopy:length:options:deallocator:")                                 \
  X(contents, "contents")                                                                         \
  X(commands, "commandBuffer")                                                                    \
  X(encoder, "computeCommandEncoder")                                                             \
  X(set_pipeline, "setComputePipelineState:")                                                     \
  X(set_buffer, "setBuffer:offset:atIndex:")                                                      \
  X(set_bytes, "setBytes:length:atIndex:")                                                        \
  X(dispatch, "dispatchThreadgroups:threadsPerThreadgroup:")                                      \
  X(end, "endEncoding")                                                                           \
  X(commit, "commit")                                                                             \
  X(wait, "waitUntilCompleted")                                                                   \
  X(status, "status")                                                                             \
  X(error, "error")                                                                               \
  X(started, "GPUStartTime")                                                                      \
  X(ended, "GPUEndTime")

extern struct framework { /* Metal, once a plan asked for it */
#define X(library, name, result, parameters) result(*name) parameters;
  FUNCTIONS(X)
#undef X
#define X(name, spelled) selector name;
  SELECTORS(X)
#undef X
  id device;
  int family;        /* 7, 8, 9 of Apple7, Apple8, Apple9 */
  char problem[512]; /* why there is nothing to run on; empty when there is */
} metal;

/* A message: objc_msgSend as a function of exactly the types that the method has. */
#define SEND(result, ...) ((result(*)(id, selector, ##__VA_ARGS__))metal.objc_msgSend)

/* ---- metal_framework.c */
id metal_string(const char *text);
const char *metal_said(id error);      /* "unknown error" of NULL */
long metal_suits(const struct plan *); /* as struct device says; loads Metal */

#pragma GCC visibility pop
#endif
