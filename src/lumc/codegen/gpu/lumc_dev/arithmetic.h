/* ---- arithmetic of elements, words of them, indices */

/* the elements of one word of an operand of lumc_mma */
template <class T> LUMC_FN lumc_u32 lumc_word(const float (&v)[2])
{
    return lumc_pack<T>(v[0], v[1]);
}
template <class T> LUMC_FN lumc_u32 lumc_word(const lumc_i8 (&v)[4])
{
    lumc_u32 word = 0;
    LUMC_UNROLL for (int i = 0; i < 4; i++) word |= (lumc_u32)(lumc_u8)v[i] << 8 * i;
    return word;
}

/* a number of a word of eight as a float, less `least`; four neighbours are in the same bits of four
 * bytes. Its bits are put below the exponent with which the lowest of them counts 1, and what stands
 * before them is taken off: both are exact, and no unit converts. Where `at` is known that is a
 * mask and a sum, for those that the fraction of a float has no room for with a shift that they share */
LUMC_FN float lumc_nibble(lumc_u32 word, int at, int least)
{
    const int low = (at & 3) * 8 + (at >> 2) * 4, from = low > 16 ? 12 : 0, p = low - from;
    const lumc_u32 bits = lumc_merge(word >> from, 15u << p, (lumc_u32)(150 - p) << 23);
    return lumc_float((lumc_i32)bits) - (float)((1 << (23 - p)) + least);
}

/* two neighbours of each of two matrices of eight columns, by four threads of a row, for four
 * neighbours of one as words: of the first one in even threads. By a whole warp. */
template <class T>
LUMC_FN void lumc_exchange(unsigned tid, const float (&two)[2][2], lumc_u32 (&four)[2])
{
    const lumc_u32 first = lumc_pack<T>(two[0][0], two[0][1]);
    const lumc_u32 second = lumc_pack<T>(two[1][0], two[1][1]);
    const bool odd = tid & 1;
    const lumc_u32 own = odd ? second : first;
    const lumc_u32 other = lumc_shuffle_xor(odd ? first : second, 1);
    four[0] = odd ? other : own;
    four[1] = odd ? own : other;
}

/* ---- indices */

/* where element `i` of a shared tile lies whose rows exchange pieces of 16 bytes (swizzle.py) */
template <int SHIFT, int MASK> LUMC_FN int lumc_swizzle(int i) { return i ^ (i >> SHIFT & MASK); }

template <class A, class B> LUMC_FN decltype(A() + B()) lumc_min(A a, B b)
{
    return a < b ? a : b;
}
template <class A, class B> LUMC_FN decltype(A() + B()) lumc_max(A a, B b)
{
    return a > b ? a : b;
}
template <class T> LUMC_FN T lumc_clamp(T x, lumc_i64 lo, lumc_i64 hi)
{
    return x < lo ? (T)lo : x > hi ? (T)hi : x;
}
/* rounded down, by a positive divisor */
template <class A, class B> LUMC_FN decltype(A() + B()) lumc_floor_div(A a, B b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}
template <class A, class B> LUMC_FN decltype(A() + B()) lumc_floor_mod(A a, B b)
{
    return a - lumc_floor_div(a, b) * b;
}

/* ---- conversions to integers. A float outside the range, or NaN, becomes the
 * least one: as numpy on most machines */

LUMC_FN lumc_i32 lumc_to_i32(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (lumc_i32)x : (lumc_i32)0x80000000;
}
LUMC_FN lumc_i32 lumc_to_i32(float x)
{
    return x >= -0x1p31f && x < 0x1p31f ? (lumc_i32)x : (lumc_i32)0x80000000;
}
LUMC_FN lumc_i64 lumc_to_i64(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (lumc_i64)x : LUMC_MIN_I64;
}
LUMC_FN lumc_i64 lumc_to_i64(float x)
{
    return x >= -0x1p63f && x < 0x1p63f ? (lumc_i64)x : LUMC_MIN_I64;
}

/* negative floats wrap */
LUMC_FN lumc_u64 lumc_to_u64(double x)
{
    return x >= 0x1p63 && x < 0x1p64 ? (lumc_u64)(x - 0x1p63) + 0x8000000000000000u
                                     : (lumc_u64)lumc_to_i64(x);
}
LUMC_FN lumc_u64 lumc_to_u64(float x) { return lumc_to_u64((double)x); }

/* ---- integers: wrap, and a remainder by 0 is 0 */

#define LUMC_INTEGERS(name, type, wide)                                                           \
    LUMC_FN type lumc_add_##name(type a, type b) { return (type)((wide)a + (wide)b); }            \
    LUMC_FN type lumc_mul_##name(type a, type b) { return (type)((wide)a * (wide)b); }            \
    LUMC_FN type lumc_mod_##name(type a, type b)                                                  \
    {                                                                                             \
        return b == 0 || b == (type)-1 ? (b && (type)-1 > 0 ? (type)(a % b) : 0) : (type)(a % b); \
    }                                                                                             \
    LUMC_FN type lumc_max_##name(type a, type b) { return b > a ? b : a; }
LUMC_INTEGERS(i64, lumc_i64, lumc_u64)
LUMC_INTEGERS(i32, lumc_i32, lumc_u32)
LUMC_INTEGERS(i16, lumc_i16, lumc_u32)
LUMC_INTEGERS(i8, lumc_i8, lumc_u32)
LUMC_INTEGERS(u64, lumc_u64, lumc_u64)
LUMC_INTEGERS(u32, lumc_u32, lumc_u32)
LUMC_INTEGERS(u16, lumc_u16, lumc_u32)
LUMC_INTEGERS(u8, lumc_u8, lumc_u32)
LUMC_FN bool lumc_max_bool(bool a, bool b) { return a | b; }

/* ---- floats */

LUMC_FN double lumc_top_f64(double a, double b) { return b > a ? b : a; }
LUMC_FN double lumc_max_f64(double a, double b) { return b > a || b != b ? b : a; }
/* never -inf, so that differences stay defined */
LUMC_FN float lumc_finite_f32(float f) { return f < -0x1.fffffep127f ? -0x1.fffffep127f : f; }
LUMC_FN double lumc_finite_f64(double f)
{
    return f < -0x1.fffffffffffffp1023 ? -0x1.fffffffffffffp1023 : f;
}
