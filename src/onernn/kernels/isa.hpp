// The instruction set that this translation unit is compiled for (-march=...).
//
// All kernels are in a namespace with the name of the instruction set, such as onernn::avx2. So
// objects that were compiled for different instruction sets can be linked together, and none calls
// the code of another. The namespace is inline, so programs write only onernn::. build.py, which
// chooses the objects of a library, defines a name of its own.
#ifndef ONERNN_ISA_HPP
#define ONERNN_ISA_HPP

#if defined(ONERNN_ISA)
#elif defined(ONERNN_TILES)
#define ONERNN_ISA tiles
#elif defined(__AVX512F__) && defined(__AVX512BF16__)
#define ONERNN_ISA avx512_bf16
#elif defined(__AVX512F__) && defined(__AVX512VNNI__)
#define ONERNN_ISA avx512_vnni
#elif defined(__AVX512F__)
#define ONERNN_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__AVXVNNI__)
#define ONERNN_ISA avx2_vnni
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define ONERNN_ISA avx2
#elif defined(__AVX2__) && defined(__FMA__)
#define ONERNN_ISA avx2_without_f16c
#elif defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8) && \
    defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define ONERNN_ISA neon_i8mm_bf16
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define ONERNN_ISA neon_dotprod
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define ONERNN_ISA neon
#else
#define ONERNN_ISA portable
#endif

// vpdpbusd adds four products of bytes at a time.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define ONERNN_VNNI
#endif

#if defined(__SSE4_1__)
#include <immintrin.h>
#if !defined(__AVX512F__) && !(defined(__AVX2__) && defined(__FMA__))
#define ONERNN_LANES_SSE
#endif
#endif

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define ONERNN_NEON
// smmla and bfmmla multiply two rows by two columns.
#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define ONERNN_SQUARES
#endif
#endif

// One instruction multiplies pairs of bfloat16, and adds their products. Tiles do the same, if
// build.py defines ONERNN_TILES (tiles.hpp): -march alone does not suffice, because a program needs
// the system's permission to use them.
#if (defined(__AVX512F__) && defined(__AVX512BF16__)) || defined(ONERNN_SQUARES) || \
    defined(ONERNN_TILES)
#define ONERNN_PAIRS
#endif

#endif
