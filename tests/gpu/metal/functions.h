// Functions of one thread. What Metal only has in a float and a half version takes no double.
#pragma once

namespace metal {
#define LUMC_UNARY(name, from)                                                                     \
  inline float name(float x) { return from(x); }                                                   \
  inline half name(half x) { return half(from(float(x))); }
#define LUMC_MATH                                                                                  \
  LUMC_UNARY(exp, std::exp)                                                                        \
  LUMC_UNARY(exp2, std::exp2)                                                                      \
  LUMC_UNARY(log, std::log)                                                                        \
  LUMC_UNARY(log2, std::log2)                                                                      \
  LUMC_UNARY(sin, std::sin)                                                                        \
  LUMC_UNARY(cos, std::cos)                                                                        \
  LUMC_UNARY(tanh, std::tanh)                                                                      \
  LUMC_UNARY(sqrt, std::sqrt)                                                                      \
  LUMC_UNARY(rsqrt, 1 / std::sqrt)                                                                 \
  inline float pow(float x, float y) { return std::pow(x, y); }                                    \
  inline float fmod(float x, float y) { return std::fmod(x, y); }
LUMC_MATH
namespace precise {
LUMC_MATH
} // namespace precise
namespace fast {
LUMC_MATH
} // namespace fast
LUMC_UNARY(floor, std::floor)
LUMC_UNARY(ceil, std::ceil)
LUMC_UNARY(trunc, std::trunc)
LUMC_UNARY(rint, std::nearbyint)
LUMC_UNARY(fabs, std::fabs)
#undef LUMC_UNARY
#undef LUMC_MATH
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float fmax(float a, float b) { return std::fmax(a, b); }
inline float fmin(float a, float b) { return std::fmin(a, b); }
inline float copysign(float a, float b) { return std::copysign(a, b); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return std::isinf(x); }
inline bool isfinite(float x) { return std::isfinite(x); }

template <class T> T max(T a, T b) { return a < b ? b : a; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }
template <class T> T select(T no, T yes, bool which) { return which ? yes : no; }
template <class T> T abs(T x) { return x < T(0) ? -x : x; }
inline int popcount(uint x) { return __builtin_popcount(x); }
inline int clz(uint x) { return x ? __builtin_clz(x) : 32; }
} // namespace metal

#ifndef FLT_MAX
#define FLT_MAX __FLT_MAX__
#endif
#ifndef LONG_MIN
#define LONG_MIN (-__LONG_MAX__ - 1)
#endif
