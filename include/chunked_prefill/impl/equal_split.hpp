// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// What the equal split needs to know beside the prefix lengths.
struct EqualSplit {
  std::int32_t batch_size;
  std::int32_t chunk_len;
  std::int32_t max_prefix_len;  ///< what the plan was made for; longer lengths are cut there

  // The closed form: loop `c` holds the positions [c * chunk_len, (c + 1) * chunk_len) of every
  // sequence. Lengths are those that the plan was made for, or cut.

  /// Where loop `loop` begins in every sequence. Loops past the longest prefix begin at its end.
  KOKKOS_FUNCTION std::int32_t start(std::int64_t loop) const {
    return static_cast<std::int32_t>(Kokkos::min(loop * chunk_len, std::int64_t{max_prefix_len}));
  }
  /// Where the loop that begins at `start` ends in a sequence: before `start` in one that is over.
  KOKKOS_FUNCTION std::int32_t end(std::int32_t prefix_len, std::int32_t start) const {
    return start + Kokkos::min(prefix_len - start, chunk_len);
  }
  /// Tokens of a sequence in the loop that begins at `start`.
  KOKKOS_FUNCTION std::int32_t tokens(std::int32_t prefix_len, std::int32_t start) const {
    return Kokkos::clamp(prefix_len - start, std::int32_t{0}, chunk_len);
  }
  /// Tokens of a sequence in all loops before the one that begins at `start`.
  KOKKOS_FUNCTION static std::int32_t tokens_before(std::int32_t prefix_len, std::int32_t start) {
    return Kokkos::min(prefix_len, start);
  }
};

}  // namespace chunked_prefill::impl
