/* What the C part shows to Python, and what its files share. C11 and the C library; gcc or clang. */

#ifndef TRAINSHED_NATIVE_H
#define TRAINSHED_NATIVE_H

#include <stdint.h>

#if !defined(__GNUC__)
#error "needs gcc or clang"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames and numbers are little-endian"
#endif

#define TRAINSHED_ABI 3 /* library.py knows it */
#define EXPORT __attribute__((visibility("default")))

/* wire.DType */
enum dtype { FLOAT32 = 1, FLOAT64 = 2, FLOAT16 = 3, BFLOAT16 = 4, INT32 = 5, INT64 = 6 };

#endif
