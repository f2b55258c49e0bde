// Vector registers of LANES floats, in the compiler's own arithmetic of vectors.

#pragma once

#include <cstdint>

#include <immintrin.h>

namespace {

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t))));
// The same where they lie anywhere in memory.
typedef float Unaligned __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
typedef int32_t Words __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(4)));

// LANES numbers of 16 bits in 32 each. As one instruction: the compiler's own conversion is five.
inline Integers widened(const char* numbers) {
#if LANES == 16
  return (Integers)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers)));
#else
  return (Integers)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
#endif
}

}  // namespace
