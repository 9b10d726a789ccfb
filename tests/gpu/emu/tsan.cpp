/* What g++ -fsanitize=thread calls before every access to memory. */
#include "runtime.h"

using lumc_emu::checker::touch;

#define LUMC_ACCESS(bytes)                                                                        \
    void __tsan_read##bytes(char *p) { touch(p, bytes, false); }                                  \
    void __tsan_write##bytes(char *p) { touch(p, bytes, true); }                                  \
    void __tsan_unaligned_read##bytes(char *p) { touch(p, bytes, false); }                        \
    void __tsan_unaligned_write##bytes(char *p) { touch(p, bytes, true); }
extern "C" {
LUMC_ACCESS(1)
LUMC_ACCESS(2)
LUMC_ACCESS(4)
LUMC_ACCESS(8)
LUMC_ACCESS(16)
void __tsan_read_range(char *p, unsigned long bytes) { touch(p, bytes, false); }
void __tsan_write_range(char *p, unsigned long bytes) { touch(p, bytes, true); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
}
