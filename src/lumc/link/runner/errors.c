/* errors.c - the message of the last failed call, and what dtypes are called. */
#include "internal.h"
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[1024];

int lumc_fail(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  return code;
}

const char *lumc_error(void) { return message; }

static const struct {
  const char *name;
  size_t bytes;
} dtypes[] = {{"f32", 4}, {"f16", 2}, {"bf16", 2}, {"f64", 8}, {"i64", 8}, {"i32", 4}, {"i8", 1},
              {"u8", 1}, {"bool", 1}, {"i16", 2}, {"u16", 2}, {"u32", 4}, {"u64", 8}};

const char *dtype_name(int dtype) { return dtypes[dtype].name; }
size_t dtype_bytes(int dtype) { return dtypes[dtype].bytes; }
