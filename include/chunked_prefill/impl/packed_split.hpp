// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/token_shard.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// The packed split: prefixes, padded to whole grains, lie end to end, and loop `c` covers [c *
/// chunk_len, (c + 1) * chunk_len) of them, `chunk_len` being whole grains. What a loop holds of a
/// sequence follows from the padded tokens before the sequence alone. Of a sharded sequence a rank
/// holds its own part of that.
template <Shard Held>
struct PackedSplit {
  std::int32_t chunk_len;
  std::int32_t max_prefix_len;  ///< what the plan was made for; longer lengths are cut there
  Divisor grain;
  Held shard = {};

  /// Where loop `loop` begins among the padded tokens.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t cut(std::int64_t loop) const {
    return loop * chunk_len;
  }
  /// The rank's tokens of sequence `i`.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t length(const IndexArray& prefix_lens,
                                                    std::int32_t i) const {
    return shard.local(prefix_lens.clamped(i, max_prefix_len));
  }
  /// Length of sequence `i` in whole grains, tokens of all ranks.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t padded(const IndexArray& prefix_lens,
                                                    std::int32_t i) const {
    const std::int32_t prefix_len = prefix_lens.clamped(i, max_prefix_len);
    return prefix_len == 0 ? 0 : (std::int64_t{grain.quotient(prefix_len - 1)} + 1) * grain.value();
  }
  /// The rank's tokens of a sequence before `cut`: the place at which that loop begins in it.
  /// \param length the rank's tokens of the sequence.
  /// \param padded_before padded tokens of the sequences before it.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t before(std::int64_t cut, std::int32_t length,
                                                    std::int64_t padded_before) const {
    const auto tokens = static_cast<std::int32_t>(
        Kokkos::clamp(cut - padded_before, std::int64_t{0}, std::int64_t{max_prefix_len}));
    return Kokkos::min(length, shard.local(tokens));
  }
};

}  // namespace chunked_prefill::impl
