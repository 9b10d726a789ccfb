/* triton_served.h - what triton.c and triton_requests.c share. */
#ifndef LUMC_TRITON_SERVED_H
#define LUMC_TRITON_SERVED_H

#include "internal.h" /* first: it asks for all that the C library has */
#include "triton.h"

#pragma GCC visibility push(hidden)

enum { ENTRY = 0 }; /* which one answers */
typedef TRITONSERVER_Error *fault;

struct instance {
  lumc *model;
  int n_inputs, n_outputs;
  void **inputs, **outputs; /* room for the greatest dims */
};

#define TRY(call)                                                                                 \
  do {                                                                                            \
    fault failed = (call);                                                                        \
    if (failed) return failed;                                                                    \
  } while (0)

/* ---- triton.c */
__attribute__((format(printf, 2, 3))) fault refuse(TRITONSERVER_Error_Code, const char *format,
                                                   ...);
fault checked(int code); /* what a call of lumc.h gave */
void note(fault);        /* what nobody can be told but the log */

#pragma GCC visibility pop
#endif
