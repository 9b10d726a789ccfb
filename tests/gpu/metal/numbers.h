// Scalar and vector types of Metal.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

namespace lumc_msl {
inline uint32_t bits_of(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float float_of(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
struct F16 {
  static float widen(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
    return float_of(sign | bits_of(float(mantissa) * 0x1p-24f));
  }
  static uint16_t narrow(float f) { // to nearest, ties to even
    const uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    if (size > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (size >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (size < 0x38800000) return uint16_t(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000));
    return uint16_t(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
  }
};
struct BF16 {
  static float widen(uint16_t b) { return float_of(uint32_t(b) << 16); }
  static uint16_t narrow(float f) {
    const uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) return uint16_t(u >> 16 | 0x40);
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};
// A 16-bit float: arithmetic among its own kind rounds to it, with float it is float.
template <class Format> struct Small {
  uint16_t bits;
  Small() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Small(T value) : bits(Format::narrow(float(value))) {}
  template <class Other> explicit Small(Small<Other> value) : Small(float(value)) {}
  operator float() const { return Format::widen(bits); }
};
template <class F, class T>
using Mixed = std::conditional_t<std::is_floating_point_v<T>, T, Small<F>>;
template <class T> using IfNumber = std::enable_if_t<std::is_arithmetic_v<T>>;
#define LUMC_OPERATOR(op)                                                                          \
  template <class F> LUMC_PART Small<F> operator op(Small<F> a, Small<F> b) {                      \
    return Small<F>(float(a) op float(b));                                                         \
  }                                                                                                \
  template <class F, class T, class = IfNumber<T>>                                                 \
  LUMC_PART Mixed<F, T> operator op(Small<F> a, T b) {                                             \
    return Mixed<F, T>(float(a) op b);                                                             \
  }                                                                                                \
  template <class F, class T, class = IfNumber<T>>                                                 \
  LUMC_PART Mixed<F, T> operator op(T a, Small<F> b) {                                             \
    return Mixed<F, T>(a op float(b));                                                             \
  }                                                                                                \
  template <class F, class T> Small<F> &operator op##=(Small<F> &a, T b) {                         \
    return a = Small<F>(float(a op b));                                                            \
  }
LUMC_OPERATOR(+)
LUMC_OPERATOR(-)
LUMC_OPERATOR(*)
LUMC_OPERATOR(/)
#undef LUMC_OPERATOR
template <class F> LUMC_PART Small<F> operator-(Small<F> a) { return Small<F>(-float(a)); }

template <class T, int N> struct Parts;
template <class T> struct alignas(2 * sizeof(T)) Parts<T, 2> {
  T x, y;
};
template <class T> struct alignas(4 * sizeof(T)) Parts<T, 3> {
  T x, y, z;
};
template <class T> struct alignas(4 * sizeof(T)) Parts<T, 4> {
  T x, y, z, w;
};
} // namespace lumc_msl

typedef lumc_msl::Small<lumc_msl::F16> half;
typedef lumc_msl::Small<lumc_msl::BF16> bfloat;

namespace metal {
template <class T, int N> struct vec : lumc_msl::Parts<T, N> {
  vec() = default;
  vec(T all) {
    for (int i = 0; i < N; ++i) (*this)[i] = all;
  }
  template <class... U, class = std::enable_if_t<sizeof...(U) == N && (N > 1)>>
  vec(U... each) : lumc_msl::Parts<T, N>{T(each)...} {}
  template <class U> explicit vec(const vec<U, N> &from) {
    for (int i = 0; i < N; ++i) (*this)[i] = T(from[i]);
  }
  T &operator[](int i) { return (&this->x)[i]; }
  const T &operator[](int i) const { return (&this->x)[i]; }
};
#define LUMC_OPERATOR(op)                                                                          \
  template <class T, int N> LUMC_PART vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {            \
    for (int i = 0; i < N; ++i) a[i] = a[i] op b[i];                                               \
    return a;                                                                                      \
  }                                                                                                \
  template <class T, int N> LUMC_PART vec<T, N> operator op(vec<T, N> a, T b) {                    \
    return a op vec<T, N>(b);                                                                      \
  }                                                                                                \
  template <class T, int N> LUMC_PART vec<T, N> operator op(T a, vec<T, N> b) {                    \
    return vec<T, N>(a) op b;                                                                      \
  }                                                                                                \
  template <class T, int N> vec<T, N> &operator op##=(vec<T, N> &a, vec<T, N> b) {                 \
    return a = a op b;                                                                             \
  }
LUMC_OPERATOR(+)
LUMC_OPERATOR(-)
LUMC_OPERATOR(*)
LUMC_OPERATOR(/)
#undef LUMC_OPERATOR
#define LUMC_VECTORS(T)                                                                            \
  typedef vec<T, 2> T##2;                                                                          \
  typedef vec<T, 3> T##3;                                                                          \
  typedef vec<T, 4> T##4;
LUMC_VECTORS(bool)
LUMC_VECTORS(char)
LUMC_VECTORS(uchar)
LUMC_VECTORS(short)
LUMC_VECTORS(ushort)
LUMC_VECTORS(int)
LUMC_VECTORS(uint)
LUMC_VECTORS(long)
LUMC_VECTORS(ulong)
LUMC_VECTORS(half)
LUMC_VECTORS(bfloat)
LUMC_VECTORS(float)
#undef LUMC_VECTORS

template <class T, class U> LUMC_PART T as_type(U value) {
  static_assert(sizeof(T) == sizeof(U), "as_type needs types of one size");
  T out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}
} // namespace metal
