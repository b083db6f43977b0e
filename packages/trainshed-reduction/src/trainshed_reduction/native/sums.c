/*
 * Adds chunks. native/library.py describes the sums. If two NaNs are added in fp32 or fp64, the processor decides whose
 * bits the sum has.
 *
 * Every loop is written once and compiled for each level of the instruction set. The level is chosen when the library
 * is loaded, because the library may have been built on another machine. Do not use compiler flags that reorder
 * additions.
 */

#include "native.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__) && !defined(TRAINSHED_PORTABLE)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Element types for payloads, which may be unaligned and are declared as bytes. */
typedef float any_f32 __attribute__((aligned(1), may_alias));
typedef double any_f64 __attribute__((aligned(1), may_alias));
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_u64 __attribute__((aligned(1), may_alias));

#define BODY static inline __attribute__((always_inline))
#define QUIET_F16 0x7E00
#define QUIET_BF16 0x7FC0

BODY float as_f32(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

BODY uint32_t as_u32(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* ---- one element ---- */

BODY float of_bf16(uint16_t half)
{
    return as_f32((uint32_t)half << 16);
}

BODY uint16_t to_bf16(float number)
{
    uint32_t bits = as_u32(number);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? QUIET_BF16 : (uint16_t)rounded;
}

#if defined(__aarch64__) && !defined(TRAINSHED_PORTABLE) && defined(__FLT16_MAX__)

BODY float of_f16(uint16_t half)
{
    _Float16 number;
    memcpy(&number, &half, sizeof number);
    return (float)number;
}

BODY uint16_t to_f16(float number)
{
    _Float16 rounded = (_Float16)number;
    uint16_t half;
    memcpy(&half, &rounded, sizeof half);
    return (as_u32(number) & 0x7FFFFFFF) > 0x7F800000 ? QUIET_F16 : half;
}

#else

BODY float of_f16(uint16_t half)
{
    /* The multiplication is exact, even for subnormals. It turns infinities and NaNs into finite numbers, which
     * `beyond` corrects. */
    uint32_t bits = (uint32_t)(half & 0x7FFF) << 13;
    float number = as_f32(bits) * 0x1p112f;
    uint32_t beyond = bits >= 0x0F800000 ? 0x7F800000 : 0;
    return as_f32(as_u32(number) | beyond | (uint32_t)(half & 0x8000) << 16);
}

BODY uint16_t to_f16(float number)
{
    uint32_t bits = as_u32(number) & 0x7FFFFFFF;
    uint32_t sign = as_u32(number) >> 16 & 0x8000;
    uint32_t normal = (bits + 0xFFF + (bits >> 13 & 1) - 0x38000000) >> 13;
    /* Below 2^-14, adding 0.5 rounds correctly, because the last place of a half then equals the last place of 0.5
     * in fp32. */
    uint32_t small = as_u32(as_f32(bits) + 0.5f) - 0x3F000000;
    uint32_t half = bits < 0x38800000 ? small : normal;
    half = bits >= 0x477FF000 ? 0x7C00 : half;
    return bits > 0x7F800000 ? QUIET_F16 : (uint16_t)(half | sign);
}

#endif

/* ---- loops ---- */

BODY void widen_bf16(any_f32 *total, const any_u16 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] = of_bf16(payload[i]);
}

BODY void add_bf16(any_f32 *total, const any_u16 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += of_bf16(payload[i]);
}

BODY void narrow_bf16(any_u16 *result, const any_f32 *total, size_t count)
{
    for (size_t i = 0; i < count; i++)
        result[i] = to_bf16(total[i]);
}

BODY void widen_f16(any_f32 *total, const any_u16 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] = of_f16(payload[i]);
}

BODY void add_f16(any_f32 *total, const any_u16 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += of_f16(payload[i]);
}

BODY void narrow_f16(any_u16 *result, const any_f32 *total, size_t count)
{
    for (size_t i = 0; i < count; i++)
        result[i] = to_f16(total[i]);
}

BODY void add_f32(any_f32 *total, const any_f32 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += payload[i];
}

BODY void add_f64(any_f64 *total, const any_f64 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += payload[i];
}

/* Integers wrap around. In C, only unsigned integers may do so. */
BODY void add_i32(any_u32 *total, const any_u32 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += payload[i];
}

BODY void add_i64(any_u64 *total, const any_u64 *payload, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] += payload[i];
}

BODY void divide_f32(any_f32 *total, float ranks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] /= ranks;
}

BODY void divide_f64(any_f64 *total, double ranks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        total[i] /= ranks;
}

/* ---- fp16 with the processor's conversion instructions ---- */

#if defined(__x86_64__) && !defined(TRAINSHED_PORTABLE)
#define AVX2 __attribute__((target("avx2,f16c")))

AVX2 static inline __m256 load_f16(const any_u16 *payload)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)payload));
}

AVX2 static void widen_f16c(any_f32 *total, const any_u16 *payload, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps((float *)(total + i), load_f16(payload + i));
    widen_f16(total + i, payload + i, count - i);
}

AVX2 static void add_f16c(any_f32 *total, const any_u16 *payload, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 sum = _mm256_loadu_ps((const float *)(total + i));
        _mm256_storeu_ps((float *)(total + i), _mm256_add_ps(sum, load_f16(payload + i)));
    }
    add_f16(total + i, payload + i, count - i);
}

AVX2 static void narrow_f16c(any_u16 *result, const any_f32 *total, size_t count)
{
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 number = _mm256_loadu_ps((const float *)(total + i));
        __m256 none = _mm256_cmp_ps(number, number, _CMP_UNORD_Q);
        number = _mm256_blendv_ps(number, quiet, none);
        _mm_storeu_si128((__m128i *)(result + i), _mm256_cvtps_ph(number, _MM_FROUND_TO_NEAREST_INT));
    }
    narrow_f16(result + i, total + i, count - i);
}
#endif

/* ---- levels ---- */

struct level {
    void (*widen)(int dtype, void *total, const void *payload, size_t count);
    void (*add)(int dtype, void *total, const void *payload, size_t count);
    void (*finish)(int dtype, int average, uint32_t ranks, void *total, void *result, size_t count);
};

#define LEVEL(name, target, WIDEN_F16, ADD_F16, NARROW_F16)                                                            \
    target static void widen_##name(int dtype, void *total, const void *payload, size_t count)                         \
    {                                                                                                                  \
        if (dtype == FLOAT16)                                                                                          \
            WIDEN_F16(total, payload, count);                                                                          \
        else if (dtype == BFLOAT16)                                                                                    \
            widen_bf16(total, payload, count);                                                                         \
    }                                                                                                                  \
    target static void add_##name(int dtype, void *total, const void *payload, size_t count)                           \
    {                                                                                                                  \
        switch (dtype) {                                                                                               \
        case FLOAT32:                                                                                                  \
            add_f32(total, payload, count);                                                                            \
            break;                                                                                                     \
        case FLOAT64:                                                                                                  \
            add_f64(total, payload, count);                                                                            \
            break;                                                                                                     \
        case FLOAT16:                                                                                                  \
            ADD_F16(total, payload, count);                                                                            \
            break;                                                                                                     \
        case BFLOAT16:                                                                                                 \
            add_bf16(total, payload, count);                                                                           \
            break;                                                                                                     \
        case INT32:                                                                                                    \
            add_i32(total, payload, count);                                                                            \
            break;                                                                                                     \
        case INT64:                                                                                                    \
            add_i64(total, payload, count);                                                                            \
            break;                                                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    target static void finish_##name(int dtype, int average, uint32_t ranks, void *total, void *result, size_t count)  \
    {                                                                                                                  \
        if (average && dtype == FLOAT64)                                                                               \
            divide_f64(total, ranks, count);                                                                           \
        else if (average)                                                                                              \
            divide_f32(total, (float)ranks, count);                                                                    \
        if (dtype == FLOAT16)                                                                                          \
            NARROW_F16(result, total, count);                                                                          \
        else if (dtype == BFLOAT16)                                                                                    \
            narrow_bf16(result, total, count);                                                                         \
    }                                                                                                                  \
    static const struct level name = {widen_##name, add_##name, finish_##name};

LEVEL(plain, , widen_f16, add_f16, narrow_f16)
#if defined(__x86_64__) && !defined(TRAINSHED_PORTABLE)
LEVEL(avx2, AVX2, widen_f16c, add_f16c, narrow_f16c)
#if defined(__clang__)
#define AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512)))
#elif __GNUC__ >= 8
#define AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#if defined(AVX512)
LEVEL(avx512, AVX512, widen_f16c, add_f16c, narrow_f16c)
#endif
#endif

static const struct level *best = &plain;

#if defined(__x86_64__) && !defined(TRAINSHED_PORTABLE)
/* Queries the processor directly, because some compilers lack the library for their built-in query. Also checks that
 * the system saves the wider registers. */
__attribute__((constructor)) static void choose(void)
{
    unsigned eax, ebx, ecx, edx, saved, saved_high;
    if (__get_cpuid_max(0, NULL) < 7)
        return;
    __cpuid(1, eax, ebx, ecx, edx);
    if (!(ecx & bit_OSXSAVE) || !(ecx & bit_F16C))
        return;
    __asm__("xgetbv" : "=a"(saved), "=d"(saved_high) : "c"(0));
    __cpuid_count(7, 0, eax, ebx, ecx, edx);
    if ((saved & 0x06) == 0x06 && (ebx & bit_AVX2))
        best = &avx2;
#if defined(AVX512)
    const unsigned needed = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (best == &avx2 && (saved & 0xE6) == 0xE6 && (ebx & needed) == needed)
        best = &avx512;
#endif
}
#endif

EXPORT void sums_widen(int dtype, void *total, const void *payload, size_t count)
{
    best->widen(dtype, total, payload, count);
}

EXPORT void sums_add(int dtype, void *total, const void *payload, size_t count)
{
    best->add(dtype, total, payload, count);
}

EXPORT void sums_finish(int dtype, int average, uint32_t ranks, void *total, void *result, size_t count)
{
    best->finish(dtype, average, ranks, total, result, count);
}
