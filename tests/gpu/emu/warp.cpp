/* The operations that the lanes of a warp do together, from what each lane brought. */
#include "runtime.h"

namespace lumc_emu {
namespace {
template <class T> T &packet(void *const *packets, unsigned lane) { return *(T *)packets[lane]; }

float f16(lumc_u32 bits) { return lumc_from_f16({(lumc_u16)bits}); }
float bf16(lumc_u32 bits) { return lumc_from_bf16({(lumc_u16)bits}); }
/* the tensor cores ignore the low bits of a tf32 operand */
float tf32(lumc_u32 bits) { return lumc_float((lumc_i32)(bits & ~0x1fffu)); }
int s8(lumc_u32 bits) { return (lumc_i8)bits; }

/* The fragments of mma.m16n8kK with operands of BITS bits (PTX ISA, "Matrix fragments for mma"):
 * with g = lane/4 and t = lane%4 and P elements in a word, word w of a is row g + 8*(w%2), word w
 * of b is column g; element p of it is k = P*t + p, in the upper words that + K/2. */
template <int K, int BITS, class Sum> void multiply(void *const *packets, Sum (*element)(lumc_u32))
{
    constexpr int P = 32 / BITS;
    Sum a[16][K], b[K][8];
    for (unsigned lane = 0; lane < LANES; lane++) {
        const Product &p = packet<Product>(packets, lane);
        const int g = lane / 4, t = lane % 4;
        for (int part = 0; part < P; part++) {
            const int k = P * t + part, shift = part * BITS % 32;
            for (int w = 0; w < 4; w++)
                a[g + 8 * (w % 2)][k + w / 2 * K / 2] = element(p.a[w] >> shift);
            for (int w = 0; w < 2; w++)
                b[k + w * K / 2][g] = element(p.b[w] >> shift);
        }
    }
    for (unsigned lane = 0; lane < LANES; lane++) {
        const Product &p = packet<Product>(packets, lane);
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            Sum sum = 0;
            for (int k = 0; k < K; k++)
                sum += a[row][k] * b[k][column];
            ((Sum *)p.d)[i] = ((const Sum *)p.c)[i] + sum;
        }
    }
}

float value(lumc_f16, lumc_u16 bits) { return f16(bits); }
float value(lumc_bf16, lumc_u16 bits) { return bf16(bits); }

template <bool transposed> void matrices(void *const *packets)
{
    for (unsigned lane = 0; lane < LANES; lane++) {
        for (unsigned m = 0; m < 4; m++) {
            lumc_u32 word = 0;
            for (unsigned half = 0; half < 2; half++) {
                unsigned row = lane / 4, column = lane % 4 * 2 + half;
                if (transposed)
                    std::swap(row, column);
                auto p = (const lumc_u16 *)packet<Matrices>(packets, m * 8 + row).row;
                word |= (lumc_u32)p[column] << 16 * half;
            }
            packet<Matrices>(packets, lane).result[m] = word;
        }
    }
}
} /* namespace */

void exchange(void *const *packets)
{
    for (unsigned lane = 0; lane < LANES; lane++) {
        Exchange &e = packet<Exchange>(packets, lane);
        e.result = packet<Exchange>(packets, (lane ^ (unsigned)e.lanes) % LANES).value;
    }
}
/* The 16 x 16 matrices of AMD by the tables of its Matrix Instruction Calculator. Where 16 lanes have
 * all steps (gfx11) every group of them has the same, and rows of the result alternate; elsewhere
 * each group has its part of both. */
template <class T, int N, int SUMS> void multiply_16(void *const *packets)
{
    constexpr unsigned GROUPS = LANES / 16;
    constexpr bool shared = N * GROUPS > 16;
    static_assert(SUMS * GROUPS == 16 && (shared ? N == 16 : N * GROUPS == 16), "no such product");
    float a[16][16], b[16][16];
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < N; i++) {
            const Matrix16 &m = packet<Matrix16>(packets, lane);
            const unsigned k = shared ? i : lane / 16 * N + i;
            a[lane % 16][k] = value(T(), m.a[i]);
            b[k][lane % 16] = value(T(), m.b[i]);
        }
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < SUMS; i++) {
            const unsigned row = shared ? GROUPS * i + lane / 16 : lane / 16 * SUMS + i;
            float sum = 0;
            for (unsigned k = 0; k < 16; k++)
                sum += a[row][k] * b[k][lane % 16];
            packet<Matrix16>(packets, lane).d[i] += sum;
        }
}
#if LUMC_LANES == 64
template void multiply_16<lumc_f16, 4, 4>(void *const *);
template void multiply_16<lumc_bf16, 4, 4>(void *const *);
#else
template void multiply_16<lumc_f16, 16, 8>(void *const *);
template void multiply_16<lumc_bf16, 16, 8>(void *const *);
template void multiply_16<lumc_f16, 8, 8>(void *const *);
template void multiply_16<lumc_bf16, 8, 8>(void *const *);
#endif
void load_matrices(void *const *packets) { matrices<false>(packets); }
void load_matrices_transposed(void *const *packets) { matrices<true>(packets); }
void multiply_f16(void *const *packets) { multiply<16, 16, float>(packets, f16); }
void multiply_bf16(void *const *packets) { multiply<16, 16, float>(packets, bf16); }
void multiply_tf32(void *const *packets) { multiply<8, 32, float>(packets, tf32); }
void multiply_s8(void *const *packets) { multiply<32, 8, int>(packets, s8); }
} /* namespace lumc_emu */
