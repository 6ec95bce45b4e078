/* fp32 vectors by the compiler's extension, and the two formats of tensors in memory: fp32 and bf16.

   Arithmetic is fp32. Multiplications and additions are fused only by `fused` (compiler flags forbid it elsewhere), so the
   source fixes every rounding: the same bits in a loop's body and in its tail. */

#ifndef VECTOR_H
#define VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined __AVX512F__
#include <immintrin.h> /* costs half a second of compile time */
#define LANES 16
#define LANE_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif defined __aarch64__
#include <arm_neon.h>
#define LANES 4
#define LANE_NUMBERS {0, 1, 2, 3}
#else
#define LANES 8
#define LANE_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7}
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));
typedef uint16_t hvec __attribute__((vector_size(2 * LANES)));

/* A function is made for each format, by inlining with a constant. */
enum format { FP32, BF16 };

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

/* Calls NAME with the format, FP32 or BF16, as a constant first argument. */
#define BY_FORMAT(format, NAME, ...) ((format) == FP32 ? NAME(FP32, __VA_ARGS__) : NAME(BF16, __VA_ARGS__))

INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long most(long a, long b) { return a > b ? a : b; }
INLINE long rounded_up(long n, long unit) { return (n + unit - 1) / unit * unit; }

INLINE vec all(float x) { return x - (vec){0}; } /* adding zero would make a zero of -0 */

/* a * b + c, rounded once where the processor can. */
INLINE vec fused(vec a, vec b, vec c)
{
#if defined __AVX512F__
    return _mm512_fmadd_ps(a, b, c);
#elif defined __AVX2__ && defined __FMA__
    return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined __aarch64__
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

/* sum += a b in place: GCC 12 would move the sum and run out of registers for 6 x 2 of them. */
INLINE void add_fused(vec a, vec b, vec *sum)
{
#if LANES == 8 && defined __AVX2__ && defined __FMA__
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
#else
    *sum = fused(a, b, *sum);
#endif
}

#if defined __AVX512BF16__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define HAS_PAIRS
/* sum + the products of pairs of bf16 in words. Denormal numbers are 0. x86 adds one product after the other, to the
   nearest even; ARM, unless a process asks for its extended mode, the sum of both, rounded to odd. */
INLINE vec add_pairs(vec sum, uvec a, uvec b)
{
#if defined __AVX512BF16__
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    return vbfdotq_f32(sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
#endif
}

/* The lanes of `low`, then those of `high`, as bf16. */
INLINE uvec narrowed_both(vec low, vec high)
{
#if defined __AVX512BF16__
    return (uvec)_mm512_cvtne2ps_pbh(high, low);
#else
    return (uvec)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high);
#endif
}
#endif

/* mask ? a : b, for a mask of 0 and -1. */
INLINE vec chosen(ivec mask, vec a, vec b)
{
#if defined __AVX512F__
    return _mm512_mask_mov_ps(b, _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask), a);
#elif defined __AVX2__
    return __builtin_ia32_blendvps256(b, a, (vec)mask);
#elif defined __aarch64__
    return vbslq_f32((uint32x4_t)mask, a, b);
#else
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
#endif
}

/* Whether any lane of a mask of 0 and -1 is set. */
INLINE int any(ivec mask)
{
#if defined __AVX512F__
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined __AVX2__
    return __builtin_ia32_movmskps256((vec)mask) != 0;
#elif defined __aarch64__
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
    uint64_t word[LANES / 2], found = 0;
    memcpy(word, &mask, sizeof mask);
    for (int i = 0; i < LANES / 2; i++)
        found |= word[i];
    return found != 0;
#endif
}

/* The larger one; b where either is NaN. */
INLINE vec larger(vec a, vec b)
{
#if defined __AVX512F__
    return _mm512_max_ps(a, b);
#elif defined __AVX2__
    return __builtin_ia32_maxps256(a, b);
#else
    return chosen(a > b, a, b);
#endif
}

/* a / b for a result in `format`: an estimate of 14 bits suffices for bf16's eight, except for ties. */
INLINE vec quotient(enum format format, vec a, vec b)
{
#if defined __AVX512F__
    if (format == BF16)
        return a * _mm512_rcp14_ps(b);
#endif
    (void)format;
    return a / b;
}

/* The lanes' sum, pairwise: lane i with lane i + half. */
INLINE float sum_of(vec v)
{
    float lane[LANES];
    memcpy(lane, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

INLINE float largest_of(vec v)
{
    float lane[LANES], found;
    memcpy(lane, &v, sizeof v);
    found = lane[0];
    for (int i = 1; i < LANES; i++)
        found = lane[i] > found ? lane[i] : found;
    return found;
}

INLINE vec widened(hvec bits)
{
#if defined __AVX512F__
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)bits), 16); /* GCC 12 makes two halves of it … */
#elif LANES == 8 && defined __AVX2__ && !defined __clang__
    typedef short words __attribute__((vector_size(16)));
    return (vec)((uvec)__builtin_ia32_pmovzxwd256((words)bits) << 16); /* … and of this */
#else
    return (vec)(__builtin_convertvector(bits, uvec) << 16);
#endif
}

/* To the nearest bf16, ties to even; NaN stays NaN. */
INLINE hvec narrowed(vec v)
{
#if defined __AVX512BF16__
    return (hvec)_mm512_cvtneps_pbh(v); /* denormal numbers become 0 */
#elif defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    return (hvec)vcvt_bf16_f32(v);
#else
    uvec bits = (uvec)v;
    uvec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uvec nan = (uvec)(v != v);
    uvec whole = (nan & 0x7fc0) | (~nan & rounded);
#if LANES == 8 && defined __AVX2__ && !defined __clang__
    typedef int half __attribute__((vector_size(16)));
    half halves[2];
    memcpy(halves, &whole, sizeof whole);
    return (hvec)__builtin_ia32_packusdw128(halves[0], halves[1]);
#else
    return __builtin_convertvector(whole, hvec);
#endif
#endif
}

/* `format` elements from `at` on: LANES of them, or the first `count`, where the others are 0. */
INLINE vec load(enum format format, const void *from, long at)
{
    if (format == FP32) {
        vec v;
        memcpy(&v, (const float *)from + at, sizeof v);
        return v;
    }
    hvec bits;
    memcpy(&bits, (const uint16_t *)from + at, sizeof bits);
    return widened(bits);
}

/* As it is when it comes back from memory. */
INLINE vec rounded(enum format format, vec v) { return format == FP32 ? v : widened(narrowed(v)); }

INLINE vec load_first(enum format format, const void *from, long at, long count)
{
    if (count >= LANES)
        return load(format, from, at);
    uint32_t part[LANES] = {0};
    const long size = format == FP32 ? 4 : 2;
    memcpy(part, (const char *)from + at * size, count * size);
    return load(format, part, 0);
}

INLINE void store(enum format format, void *to, long at, vec v)
{
    if (format == FP32) {
        memcpy((float *)to + at, &v, sizeof v);
    } else {
        hvec bits = narrowed(v);
        memcpy((uint16_t *)to + at, &bits, sizeof bits);
    }
}

/* The first `count` elements as fp32, and zeros up to whole vectors. */
INLINE void widen(const uint16_t *from, long count, float *to)
{
    long at = 0;
    for (; at + LANES <= count; at += LANES)
        store(FP32, to, at, load(BF16, from, at));
    if (at < count)
        store(FP32, to, at, load_first(BF16, from, at, count - at));
}

INLINE void store_first(enum format format, void *to, long at, vec v, long count)
{
    if (count >= LANES) {
        store(format, to, at, v);
        return;
    }
    uint32_t part[LANES];
    const long size = format == FP32 ? 4 : 2;
    store(format, part, 0, v);
    memcpy((char *)to + at * size, part, count * size);
}

/* e^x for x <= 0 or NaN, to about one unit in the last place; 0 below the least normal number; e^0 is 1.
   x = n ln 2 + r with |r| <= ln(2) / 2, and a polynomial for e^r (Cephes' expf). */
INLINE vec exponential(vec x)
{
    const vec shift = all(12582912.0f); /* 1.5 x 2^23: adding it rounds to a whole number */
    const ivec underflow = x < -87.0f;
    const vec n = fused(x, all(1.44269504f), shift) - shift;
    const vec r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), x));
    vec p = all(1.9875691500e-4f);
    p = fused(p, r, all(1.3981999507e-3f));
    p = fused(p, r, all(8.3334519073e-3f));
    p = fused(p, r, all(4.1665795894e-2f));
    p = fused(p, r, all(1.6666665459e-1f));
    p = fused(p, r, all(5.0000001201e-1f));
    p = fused(p, r * r, r + 1.0f);
#if defined __AVX512F__
    return chosen(underflow, (vec){0}, _mm512_scalef_ps(p, n)); /* p 2^n */
#else
    /* -infinity and NaN have no whole number: what they get is thrown away, or NaN already. */
    const vec bounded = chosen((n > -127.0f) & (n <= 0.0f), n, (vec){0});
    const vec power = (vec)((__builtin_convertvector(bounded, ivec) + 127) << 23);
    return chosen(underflow, (vec){0}, p * power);
#endif
}

/* x times the sigmoid of y: x / (1 + e^-y), by an exponential of -|y|. */
INLINE vec times_sigmoid(enum format format, vec x, vec y)
{
    const ivec negative = y < 0.0f;
    const vec e = exponential(chosen(negative, y, -y));
    return quotient(format, x * chosen(negative, e, all(1)), e + 1.0f);
}

/* tanh x = (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x; near 0, where that loses digits, its series. */
INLINE vec hyperbolic_tangent(vec x)
{
    const ivec negative = x < 0.0f;
    const vec size = chosen(negative, -x, x), e = exponential(size * -2.0f), square = x * x;
    const vec far = (1.0f - e) / (1.0f + e);
    vec p = fused(square, all(62.0f / 2835), all(-17.0f / 315));
    p = fused(p, square, all(2.0f / 15));
    p = fused(p, square, all(-1.0f / 3));
    return chosen(size < 0.25f, fused(p * square, x, x), chosen(negative, -far, far));
}

#endif
