// What threads do together: barriers, shuffles, reductions, 8x8 matrices; and atomics.
#pragma once

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
#define LUMC_LINE int line = __builtin_LINE()
LUMC_INSIDE void threadgroup_barrier(mem_flags, LUMC_LINE) { lumc_msl::wait_group(line); }
LUMC_INSIDE void simdgroup_barrier(mem_flags, LUMC_LINE) { lumc_msl::wait_simdgroup(line); }

#define LUMC_SHUFFLE(name, from)                                                                   \
  template <class T> LUMC_INSIDE T name(T v, ushort by, LUMC_LINE) {                               \
    const unsigned here = lumc_msl::lane();                                                        \
    lumc_msl::Shown<T> all;                                                                        \
    lumc_msl::show(v, all, line);                                                                  \
    return all[from];                                                                              \
  }
LUMC_SHUFFLE(simd_shuffle, by)
LUMC_SHUFFLE(simd_broadcast, by)
LUMC_SHUFFLE(simd_shuffle_xor, here ^ by)
LUMC_SHUFFLE(simd_shuffle_down, here + by < lumc_msl::WIDTH ? here + by : here)
LUMC_SHUFFLE(simd_shuffle_up, here < by ? here : here - by)
#undef LUMC_SHUFFLE
#define LUMC_REDUCTION(name, join)                                                                 \
  template <class T> LUMC_INSIDE T name(T a, LUMC_LINE) {                                          \
    for (ushort o = lumc_msl::WIDTH / 2; o; o /= 2) {                                              \
      const T b = simd_shuffle_xor(a, o, line);                                                    \
      a = join;                                                                                    \
    }                                                                                              \
    return a;                                                                                      \
  }
LUMC_REDUCTION(simd_sum, a + b)
LUMC_REDUCTION(simd_product, a *b)
LUMC_REDUCTION(simd_max, max(a, b))
LUMC_REDUCTION(simd_min, min(a, b))
LUMC_REDUCTION(simd_or, a | b)
LUMC_REDUCTION(simd_and, a &b)
#undef LUMC_REDUCTION
LUMC_INSIDE bool simd_any(bool v, LUMC_LINE) { return simd_or(int(v), line) != 0; }
LUMC_INSIDE bool simd_all(bool v, LUMC_LINE) { return simd_and(int(v), line) != 0; }

// Two elements of one row are with each lane; the lanes lie as Apple's GPUs have them.
LUMC_INSIDE unsigned lumc_row(unsigned lane) { return (lane / 4 & 4) + lane / 2 % 4; }
LUMC_INSIDE unsigned lumc_column(unsigned lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
LUMC_INSIDE unsigned lumc_holder(unsigned row, unsigned column) {
  return ((row & 4) | (column & 4) / 2) * 4 + row % 4 * 2 + column / 2 % 2;
}
template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "8x8 only");
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, half> || std::is_same_v<T, bfloat>,
                "a matrix of float, half or bfloat");
  vec<T, 2> held;
  simdgroup_matrix() = default;
  LUMC_INSIDE explicit simdgroup_matrix(T diagonal) {
    const unsigned row = lumc_row(lumc_msl::lane()), column = lumc_column(lumc_msl::lane());
    for (unsigned i = 0; i < 2; ++i) held[i] = row == column + i ? diagonal : T(0.0f);
  }
  vec<T, 2> &thread_elements() { return held; }
  const vec<T, 2> &thread_elements() const { return held; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R, int C>
LUMC_INSIDE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, R, C> out;
  out.held = vec<T, 2>(value);
  return out;
}
inline ulong lumc_at(unsigned i, ulong step, ulong2 origin, bool transposed) {
  const ulong row = lumc_row(lumc_msl::lane()), column = lumc_column(lumc_msl::lane()) + i;
  return transposed ? (origin.y + column) * step + origin.x + row
                    : (origin.y + row) * step + origin.x + column;
}
template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const T *from, ulong step = 8,
                           ulong2 origin = ulong2(0), bool transposed = false, LUMC_LINE) {
  for (unsigned i = 0; i < 2; ++i) m.held[i] = from[lumc_at(i, step, origin, transposed)];
  lumc_msl::wait_simdgroup(line);
}
template <class T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8> &m, T *to, ulong step = 8,
                            ulong2 origin = ulong2(0), bool transposed = false, LUMC_LINE) {
  for (unsigned i = 0; i < 2; ++i) to[lumc_at(i, step, origin, transposed)] = m.held[i];
  lumc_msl::wait_simdgroup(line);
}
template <class D, class A, class B, class C>
LUMC_INSIDE void
simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                              const simdgroup_matrix<B, 8, 8> &b,
                              const simdgroup_matrix<C, 8, 8> &c, LUMC_LINE) {
  struct Both {
    float a[2], b[2];
  };
  const Both mine{{float(a.held[0]), float(a.held[1])}, {float(b.held[0]), float(b.held[1])}};
  lumc_msl::Shown<Both> all;
  lumc_msl::show(mine, all, line);
  const unsigned row = lumc_row(lumc_msl::lane()), column = lumc_column(lumc_msl::lane());
  for (unsigned i = 0; i < 2; ++i) {
    float sum = float(c.held[i]);
    for (unsigned k = 0; k < 8; ++k)
      sum += all[lumc_holder(row, k)].a[k % 2] * all[lumc_holder(k, column + i)].b[i];
    d.held[i] = D(sum);
  }
}
template <class D, class A, class B>
LUMC_INSIDE void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d,
                                    const simdgroup_matrix<A, 8, 8> &a,
                                    const simdgroup_matrix<B, 8, 8> &b, LUMC_LINE) {
  const auto zero = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_multiply_accumulate(d, a, b, zero, line);
}

// Emulated threads are never interrupted: a plain read and write is atomic.
enum memory_order { memory_order_relaxed };
template <class T> struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
#define LUMC_ATOMIC(name, join)                                                                    \
  template <class T, class U> LUMC_INSIDE T name(atomic<T> *p, U b, memory_order) {                \
    const T a = p->value;                                                                          \
    p->value = join;                                                                               \
    return a;                                                                                      \
  }
LUMC_ATOMIC(atomic_fetch_add_explicit, a + T(b))
LUMC_ATOMIC(atomic_fetch_max_explicit, max(a, T(b)))
LUMC_ATOMIC(atomic_exchange_explicit, T(b))
#undef LUMC_ATOMIC
} // namespace metal
