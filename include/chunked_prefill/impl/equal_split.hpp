// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/token_shard.hpp>
#include <concepts>
#include <cstdint>

namespace chunked_prefill::impl {

/// The closed form of the equal split: loop `c` holds the positions [c * chunk_len, (c + 1) *
/// chunk_len) of every sequence.
///
/// All lengths and places are those of the rank's own tokens. Of a whole sequence these are all,
/// and places are positions. A shard has its tokens in the order of the sequence, so that loops
/// hold one stretch of them after another, if not all equally long, and some perhaps nothing.
template <Shard Held>
struct EqualSplit {
  std::int32_t batch_size;
  Divisor chunk_len;
  std::int32_t max_prefix_len;  ///< what the plan was made for; longer lengths are cut there
  Held shard = {};

  /// Length of sequence `i`.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t length(const IndexArray& prefix_lens,
                                                    std::int32_t i) const {
    return shard.local(prefix_lens.clamped(i, max_prefix_len));
  }

  /// What a loop holds of every sequence that is long enough.
  struct Stretch {
    std::int32_t begin;
    std::int32_t end;

    /// Where the loop ends in a sequence: before `begin` in one that is over.
    [[nodiscard]] KOKKOS_FUNCTION std::int32_t end_in(std::int32_t length) const {
      return Kokkos::min(length, end);
    }
    /// Tokens of a sequence in the loop.
    [[nodiscard]] KOKKOS_FUNCTION std::int32_t tokens(std::int32_t length) const {
      return Kokkos::clamp(length - begin, 0, end - begin);
    }
  };
  /// Of loop `loop`. Loops past the longest prefix are at its end.
  [[nodiscard]] KOKKOS_FUNCTION Stretch stretch(std::int64_t loop) const {
    return {.begin = cut(loop), .end = cut(loop + 1)};
  }
  /// Tokens of a sequence before `place`.
  KOKKOS_FUNCTION static std::int32_t tokens_before(std::int32_t length, std::int32_t place) {
    return Kokkos::min(length, place);
  }

  /// The most tokens that a loop can hold, of all sequences.
  [[nodiscard]] std::int32_t most_per_loop() const {
    return batch_size * shard.most(chunk_len.value());
  }
  /// Whether no sequence goes on after a stretch of which none has a token.
  [[nodiscard]] KOKKOS_FUNCTION bool is_last(const Stretch& stretch) const {
    if constexpr (std::same_as<Held, WholeSequence>) return true;
    return stretch.begin < stretch.end || stretch.end == shard.local(max_prefix_len);
  }
  /// The loop that is `stretches` of the length of loop `loop`'s on, or the next that can hold a
  /// token where that has none.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t loop_after(std::int64_t loop, const Stretch& stretch,
                                                        std::int32_t stretches) const {
    if constexpr (std::same_as<Held, WholeSequence>) return loop + stretches;
    const std::int64_t place =
        stretch.begin + std::int64_t{stretches} * (stretch.end - stretch.begin);
    if (place >= shard.local(max_prefix_len)) return chunk_len.quotient(max_prefix_len) + 1;
    return chunk_len.quotient(shard.position(static_cast<std::int32_t>(place)));
  }

 private:
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t cut(std::int64_t loop) const {
    return shard.local(static_cast<std::int32_t>(
        Kokkos::min(loop * chunk_len.value(), std::int64_t{max_prefix_len})));
  }
};

}  // namespace chunked_prefill::impl
