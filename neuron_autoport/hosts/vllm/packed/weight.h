// A weight of a linear layer as it lies in memory: in panels, and in the fewest bytes that give every value back.
//
// A weight [out, in] is kept as panels of kPanel outputs, [out / kPanel][in][kPanel], so that it is read in order. As
// halves, a panel has LANES outputs of the first half of a weight and LANES of the second.
//
// Few weights use all that float32 has. Those of a checkpoint in bfloat16 have 7 bits of mantissa, and the exponents of
// one weight are some 20 apart, not 254. A narrow value is its sign, its exponent above a base that the weight has, and
// the bits of the mantissa that are set in any value: 2 or 3 bytes instead of 4, and a product that waits for memory
// waits less. Reading it is exact: the same float32, bit for bit.
//
// LANES: floats of a vector register.

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "vector.h"

namespace {

constexpr int64_t kPanel = 2 * LANES;
constexpr uint32_t kSign = 1u << 31;

// A value is kept as the upper `bytes` bytes of: its sign, and its other bits less `base` exponents, shifted up.
struct Format {
  int64_t bytes = 4, shift = 0, base = 0;

  uint32_t code(float value) const {
    const uint32_t bits = std::bit_cast<uint32_t>(value), rest = bits & ~kSign;
    return (bits & kSign) | (rest ? (rest - (static_cast<uint32_t>(base) << 23)) << shift : 0);
  }
};

// The format of the fewest bytes that has every one of the values.
Format narrowest(const float* values, int64_t count) {
  uint32_t set = 0, least = ~0u, most = 0;  // least: of those that are not zero, less one
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]), rest = bits & ~kSign;
    set |= bits;
    least = std::min(least, rest - 1);
    most = std::max(most, rest);
  }
  const int64_t mantissa = 23 - std::min(23, std::countr_zero(set)), low = (least + 1) >> 23, high = most >> 23;
  for (int64_t bytes : {2, 3}) {
    const int64_t exponent = std::min<int64_t>(8, 8 * bytes - 1 - mantissa);
    if (exponent < 1) continue;
    const int64_t base = std::max<int64_t>(0, high - ((1 << exponent) - 1));
    const bool normal = low > base && high < 255 && base <= 127;  // else 2^base times what is read is another value
    if (base == 0 || normal) return {bytes, 8 - exponent, base};
  }
  return {};
}

// How to read a row of a panel, its two registers. A narrow one has first, for each lane, the upper two bytes of both
// codes in a word, those of register 0 above; then, if they have three bytes, the third ones in half a word, those of
// register 1 above. From a code: shift down, drop the copies of the sign and what is another's, multiply with 2^base.
template <int Bytes>
struct Reader {
  int32_t shift;
  int32_t mask;
  float scale;

  explicit Reader(const Format& format)
      : shift(static_cast<int32_t>(format.shift)),
        scale(std::bit_cast<float>(static_cast<uint32_t>(format.base + 127) << 23)) {
    const int32_t kept = static_cast<int32_t>(~0u << (32 - 8 * Bytes)) >> shift;
    mask = static_cast<int32_t>(kSign | (~kSign >> shift)) & kept;
  }

  void read(const char* row, Vector& first, Vector& second) const {
    if constexpr (Bytes == 4) {
      first = reinterpret_cast<const Vector*>(row)[0];
      second = reinterpret_cast<const Vector*>(row)[1];
    } else {
      constexpr int32_t upper = static_cast<int32_t>(0xffff0000);
      const Integers words = *reinterpret_cast<const Words*>(row);
      Integers codes[2] = {words, words << 16};
      if constexpr (Bytes == 3) {
        const Integers thirds = widened(row + sizeof(Integers));
        codes[0] = (codes[0] & upper) | ((thirds << 8) & ~upper);
        codes[1] = (codes[1] & upper) | (thirds & ~upper);
      }
      first = (Vector)((codes[0] >> shift) & mask) * scale;
      second = (Vector)((codes[1] >> shift) & mask) * scale;
    }
  }
};

// A packed weight; the memory is somebody else's.
struct Weight {
  char* data;
  int64_t in, panels;
  bool halves;
  Format format;

  int64_t row() const { return kPanel * format.bytes; }  // bytes of the values for one input
  char* at(int64_t panel, int64_t k) const { return data + (panel * in + k) * row(); }
};

// See `Reader`.
inline void put_code(uint32_t code, int64_t bytes, char* row, int64_t column) {
  if (bytes == 4) {
    reinterpret_cast<uint32_t*>(row)[column] = code;
    return;
  }
  const int64_t lane = column % LANES, second = column / LANES;
  reinterpret_cast<uint16_t*>(row)[2 * lane + 1 - second] = static_cast<uint16_t>(code >> 16);
  if (bytes == 3) reinterpret_cast<uint8_t*>(row)[4 * LANES + 2 * lane + second] = static_cast<uint8_t>(code >> 8);
}

// values [out, in] into the memory of `weight`, which is filled up with zeros.
void pack_into(const Weight& weight, const float* values, int64_t out) {
  const int64_t part = weight.halves ? LANES : kPanel, half = out / 2;
  for (int64_t panel = 0; panel < weight.panels; ++panel) {
    const float* rows[kPanel];  // of the outputs of this panel, or null
    for (int64_t c = 0; c < kPanel; ++c) {
      const int64_t output = panel * part + c % part;
      const bool there = output < (weight.halves ? half : out);
      rows[c] = there ? values + (output + c / part * half) * weight.in : nullptr;
    }
    for (int64_t k = 0; k < weight.in; ++k)
      for (int64_t c = 0; c < kPanel; ++c)
        put_code(rows[c] ? weight.format.code(rows[c][k]) : 0, weight.format.bytes, weight.at(panel, k), c);
  }
}

}  // namespace
