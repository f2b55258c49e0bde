// Activations of a vector register of float32, as exact as float32's exponent of e allows.

#pragma once

#include <cstdint>

#include "vector.h"

namespace {

enum Act : int64_t { kNone, kSiLU, kGELUTanh };

// e^x for x between -87 and 88 and about that outside, to 2 units in the last place; what is not a number stays so.
// e^x = 2^n e^r with |r| <= ln(2)/2, and e^r by its series.
inline Vector exponential(Vector x) {
  const Vector low = Vector{} - 87.0f, high = Vector{} + 88.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vector shift = Vector{} + 0x1.8p23f;  // a sum with it is rounded to a whole number, in its last bits
  const Vector shifted = x * 0x1.715476p0f + shift, n = shifted - shift;
  const Vector r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln(2) in two parts, n times the first is exact
  Vector sum = r * (1.0f / 5040) + 1.0f / 720;
  for (float term : {1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f}) sum = sum * r + term;
  const Integers power = ((Integers)shifted - (Integers)shift) << 23;
  return (Vector)((Integers)sum + power);
}

// x sigmoid(x), or GELU with tanh, x (1 + tanh(u)) / 2 = x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vector activated(const Vector& x, Act act) {
  const Vector u = act == kSiLU ? x : 1.5957691216057308f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exponential(-u));
}

}  // namespace
