/* ---- types, and numbers that are no literals; HIP has the same */

typedef signed char lumc_i8;
typedef unsigned char lumc_u8;
typedef short lumc_i16;
typedef unsigned short lumc_u16;
typedef int lumc_i32;
typedef unsigned int lumc_u32;
typedef long long lumc_i64;
typedef unsigned long long lumc_u64;

/* half precision in memory; arithmetic is in float */
struct lumc_f16 {
    lumc_u16 bits;
};
struct lumc_bf16 {
    lumc_u16 bits;
};

#define LUMC_NAN_F32 lumc_float(0x7fc00000)
#define LUMC_INF_F32 lumc_float(0x7f800000)
#define LUMC_NAN_F64 lumc_double(0x7ff8000000000000)
#define LUMC_INF_F64 lumc_double(0x7ff0000000000000)
#define LUMC_MIN_I64 (-0x7fffffffffffffff - 1)
