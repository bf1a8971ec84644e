// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
#include <cstdint>

namespace chunked_prefill::impl {

/// Division of token positions by a number known on the host, as one multiplication and one shift:
/// no page size is slower than another.
///
/// For d in [1, 2^31), s = ceil(log2 d) and m = floor(2^(31 + s) / d) + 1, floor(n m / 2^(31 + s))
/// equals floor(n / d) for every n in [0, 2^31) (Granlund and Montgomery 1994, theorem 4.2:
/// 2^(31 + s) < m d <= 2^(31 + s) + 2^s). m is below 2^32, so n m fits 64 bits.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(std::int32_t divisor)
      : m_divisor(divisor),
        m_shift(31 + std::bit_width(static_cast<std::uint32_t>(divisor - 1))),
        m_multiplier(static_cast<std::uint32_t>(
            (std::uint64_t{1} << m_shift) / std::uint64_t(divisor) + 1)) {}

  /// floor(dividend / divisor), for a dividend that is not negative.
  KOKKOS_FUNCTION std::int32_t quotient(std::int32_t dividend) const {
    return static_cast<std::int32_t>(
        (static_cast<std::uint64_t>(static_cast<std::uint32_t>(dividend)) * m_multiplier) >>
        m_shift);
  }
  KOKKOS_FUNCTION std::int32_t value() const { return m_divisor; }

 private:
  std::int32_t m_divisor = 1;
  std::int32_t m_shift = 31;
  std::uint32_t m_multiplier = (std::uint32_t{1} << 31) + 1;
};
}  // namespace chunked_prefill::impl
