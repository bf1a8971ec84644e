// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace chunked_prefill::cli {

/// Numbers that are about normally distributed, of mean 0 and variance 1; the same from every
/// compiler: of four uniform ones the sum, drawn with SplitMix64 (Steele, Lea and Flood, 2014).
class Normal {
 public:
  explicit Normal(std::int64_t seed) : m_state(static_cast<std::uint64_t>(seed)) {}

  float operator()() {
    std::uint64_t bits = m_state += 0x9e3779b97f4a7c15;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    bits ^= bits >> 31;
    std::int64_t sum = -2 * 65535;
    for (int k = 0; k < 64; k += 16) sum += static_cast<std::int64_t>(bits >> k & 0xffff);
    constexpr float sqrt_3 = 1.7320508F;
    return static_cast<float>(sum) * (sqrt_3 / 65536);
  }

 private:
  std::uint64_t m_state;
};

}  // namespace chunked_prefill::cli
