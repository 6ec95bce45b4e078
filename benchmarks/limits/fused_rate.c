/* Multiplies and adds in registers: as many sums at once as hide the latency of the fused operation, and nothing else. */

#if defined __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define SUMS 12

typedef float vec __attribute__((vector_size(4 * LANES)));

/* Returns the floating-point operations; `result` keeps the compiler from leaving them out. */
__attribute__((visibility("default"))) long multiply_and_add(long repeats, float factor, float *result)
{
    vec sum[SUMS];
    const vec all = factor - (vec){0}, half = 0.5f - (vec){0};
    for (int i = 0; i < SUMS; i++)
        sum[i] = all * (float)i;
    for (long repeat = 0; repeat < repeats; repeat++)
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            sum[i] = sum[i] * all + half;
    *result = 0;
    for (int i = 0; i < SUMS; i++)
        for (int lane = 0; lane < LANES; lane++)
            *result += sum[i][lane];
    return repeats * SUMS * LANES * 2;
}
