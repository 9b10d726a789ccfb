// What the emulator offers, under names of our own: the only file here that knows it. It repeats
// the declarations of lumc_emu.h, because that header also defines the functions of CUDA kernels,
// which have the names of lumc_dev.metal.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#define LUMC_INSIDE inline __attribute__((no_sanitize("thread"), unused))
/* what returns a struct becomes part of the kernel: the store of a call's result is not checked */
#define LUMC_PART inline __attribute__((always_inline, unused))
#define LUMC_FN LUMC_PART
#define LUMC_API extern "C" __attribute__((visibility("default")))

namespace lumc_emu {
struct Index {
  unsigned x, y, z;
};
struct Where {
  Index thread, block, threads, blocks;
};
extern Where where;
typedef void (*WarpOperation)(void *const *packets);
void barrier(int line);
void warp(WarpOperation run, void *packet, int line);
void *shared_memory();
void *tile(const char *name, void *shared, size_t offset, size_t element, size_t count);
struct Kernel {
  const char *symbol;
  void (*call)(void *const *arguments);
  unsigned parameters;
  bool checked;
  Kernel *next;
};
void add(Kernel *);
} // namespace lumc_emu

namespace lumc_msl {
constexpr unsigned WIDTH = 32; // threads of a simdgroup
#ifdef __SANITIZE_THREAD__
constexpr bool CHECKED = true;
#else
constexpr bool CHECKED = false;
#endif

LUMC_INSIDE const lumc_emu::Where &here() { return lumc_emu::where; }
LUMC_INSIDE unsigned lane() { return here().thread.x % WIDTH; }
LUMC_INSIDE void wait_group(int line) { lumc_emu::barrier(line); }

// Every thread of the simdgroup shows the others a value.
template <class T> struct Shown {
  T each[WIDTH];
  const T *value;
  LUMC_INSIDE const T &operator[](unsigned lane) const { return each[lane % WIDTH]; }
};
template <class T> LUMC_INSIDE void gather(void *const *packets) {
  for (unsigned to = 0; to < WIDTH; ++to)
    for (unsigned from = 0; from < WIDTH; ++from)
      std::memcpy((void *)&((Shown<T> *)packets[to])->each[from],
                  (const void *)((Shown<T> *)packets[from])->value, sizeof(T));
}
template <class T> LUMC_INSIDE void show(const T &value, Shown<T> &all, int line) {
  all.value = &value;
  lumc_emu::warp(gather<T>, &all, line);
}
LUMC_INSIDE void nothing(void *const *) {}
LUMC_INSIDE void wait_simdgroup(int line) { lumc_emu::warp(nothing, nullptr, line); }

// A threadgroup array at an offset of the group's memory.
template <class T>
LUMC_INSIDE T &threadgroup_array(const char *name, size_t offset, size_t element) {
  void *memory = lumc_emu::shared_memory();
  return *(T *)lumc_emu::tile(name, memory, offset, element, sizeof(T) / element);
}
struct Export : lumc_emu::Kernel { // a kernel that can be launched
  Export(const char *symbol, void (*call)(void *const *), unsigned buffers)
      : Kernel{symbol, call, buffers, CHECKED, nullptr} {
    lumc_emu::add(this);
  }
};
} // namespace lumc_msl
