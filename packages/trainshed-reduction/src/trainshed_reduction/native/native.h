/* Declarations for Python and for all C files. C11 on Linux, with gcc or clang. */

#ifndef TRAINSHED_NATIVE_H
#define TRAINSHED_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#if !defined(__GNUC__)
#error "needs gcc or clang"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames and numbers are little-endian"
#endif

#define EXPORT __attribute__((visibility("default")))

/* The values of wire.DType. */
enum dtype { FLOAT32 = 1, FLOAT64 = 2, FLOAT16 = 3, BFLOAT16 = 4, INT32 = 5, INT64 = 6 };

/* sums.c; native/library.py describes the sums */
void sums_widen(int dtype, void *total, const void *payload, size_t count);
void sums_add(int dtype, void *total, const void *payload, size_t count);
void sums_finish(int dtype, int average, uint32_t ranks, void *total, void *result, size_t count);

#endif
