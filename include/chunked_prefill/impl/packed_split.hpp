// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// The packed split: prefixes, padded to whole grains, lie end to end, and loop `c` covers [c *
/// chunk_len, (c + 1) * chunk_len) of them, `chunk_len` being whole grains. What a loop holds of a
/// sequence follows from the padded tokens before the sequence alone.
struct PackedSplit {
  std::int32_t chunk_len;
  std::int32_t max_prefix_len;  ///< what the plan was made for; longer lengths are cut there
  Divisor grain;

  /// Where loop `loop` begins among the padded tokens.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t cut(std::int64_t loop) const {
    return loop * chunk_len;
  }
  /// A prefix in whole grains, tokens.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t padded(std::int32_t prefix_len) const {
    return prefix_len == 0 ? 0 : (std::int64_t{grain.quotient(prefix_len - 1)} + 1) * grain.value();
  }
  /// Tokens of a sequence before `cut`: the position at which that loop begins in it.
  /// \param padded_before padded tokens of the sequences before it.
  KOKKOS_FUNCTION static std::int32_t before(std::int64_t cut, std::int32_t prefix_len,
                                             std::int64_t padded_before) {
    return static_cast<std::int32_t>(
        Kokkos::clamp(cut - padded_before, std::int64_t{0}, std::int64_t{prefix_len}));
  }
};

}  // namespace chunked_prefill::impl
