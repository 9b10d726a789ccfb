/* Declarations that let clang read Metal text as C++ for OpenCL, which has the same address
 * spaces. Only declarations: this checks types, address_spaces.py says how. */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device __global
#define threadgroup __local
#define constant __constant
#define thread __private

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
template <class T, class U> T as_type(U);

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <class T> T simd_shuffle(T, ushort);
template <class T> T simd_shuffle_xor(T, ushort);
template <class T> T simd_shuffle_up(T, ushort);
template <class T> T simd_shuffle_down(T, ushort);
template <class T> T simd_broadcast(T, ushort);
template <class T> T simd_sum(T);
template <class T> T simd_product(T);
template <class T> T simd_max(T);
template <class T> T simd_min(T);
bool simd_any(bool);
bool simd_all(bool);

/* OpenCL's own exp2, log2, .. serve the names without precise:: */
#define LUMC_FUNCTIONS                                                                            \
  float exp(float);                                                                               \
  float exp2(float);                                                                              \
  float log(float);                                                                               \
  float log2(float);                                                                              \
  float sin(float);                                                                               \
  float cos(float);                                                                               \
  float tanh(float);                                                                              \
  float sqrt(float);                                                                              \
  float rsqrt(float);                                                                             \
  float pow(float, float);                                                                        \
  float fmod(float, float);
namespace precise {
LUMC_FUNCTIONS
}
namespace fast {
LUMC_FUNCTIONS
}

template <class T, int R, int C> struct simdgroup_matrix {
  vec<T, 2> held;
  __private vec<T, 2> &thread_elements() __private;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
#define LUMC_MEMORY(space)                                                                        \
  template <class T>                                                                              \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &, space const T *, ulong = 8,             \
                      ulong2 = (ulong2)(0, 0), bool = false);                                     \
  template <class T>                                                                              \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T *, ulong = 8, ulong2 = (ulong2)(0, 0),  \
                       bool = false);
LUMC_MEMORY(device)
LUMC_MEMORY(threadgroup)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8> &, simdgroup_matrix<A, 8, 8>,
                                   simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
template <class D, class A, class B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8> &, simdgroup_matrix<A, 8, 8>,
                        simdgroup_matrix<B, 8, 8>);
}

/* 16 bits that clang has no name for here */
struct bfloat {
  ushort bits;
  bfloat() = default;
  bfloat(float);
  operator float() const;
};
namespace metal {
template <int R, int C> struct simdgroup_matrix<bfloat, R, C> {
  bfloat held[2];
  __private bfloat *thread_elements() __private;
};
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
}
