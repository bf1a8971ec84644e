// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/plan.hpp>
#include <concepts>
#include <cstdint>

// Which tokens of a sequence a rank holds. They lie in its own pages, one behind another: places
// count them alone.

namespace chunked_prefill::impl {

/// A ContextShard for kernels, both ways without a division.
class TokenShard {
 public:
  TokenShard() = default;
  explicit TokenShard(const ContextShard& shard)
      : m_by_turn(shard.world_size * shard.interleave),
        m_by_interleave(shard.interleave),
        m_skip(shard.rank * shard.interleave) {}

  /// How many of the first `tokens` tokens the rank holds.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t local(std::int32_t tokens) const {
    const std::int32_t interleave = m_by_interleave.value();
    const std::int32_t turns = m_by_turn.quotient(tokens);
    return turns * interleave +
           Kokkos::clamp(tokens - turns * m_by_turn.value() - m_skip, 0, interleave);
  }
  /// Position in the sequence of the rank's token number `local`, counted from 0, which the
  /// sequence has: the greatest `n` of which `local(n)` is `local`.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t position(std::int32_t local) const {
    const std::int32_t others = m_by_turn.value() - m_by_interleave.value();
    return local + m_by_interleave.quotient(local) * others + m_skip;
  }
  /// The most of any `tokens` tokens in a row that a rank can hold.
  [[nodiscard]] std::int32_t most(std::int32_t tokens) const {
    const std::int32_t turns = m_by_turn.quotient(tokens);
    return turns * m_by_interleave.value() +
           Kokkos::min(tokens - turns * m_by_turn.value(), m_by_interleave.value());
  }

 private:
  Divisor m_by_turn;        ///< world_size * interleave, the tokens of a turn of all ranks
  Divisor m_by_interleave;  ///< interleave, the tokens of a turn of one
  std::int32_t m_skip = 0;  ///< tokens of a turn that lower ranks hold
};

/// The TokenShard that holds every token. A type of its own, so that batches that are not sharded
/// do not pay for those that are: 8 % of a small build on a GPU.
class WholeSequence {
 public:
  WholeSequence() = default;
  explicit WholeSequence(const ContextShard&) {}

  KOKKOS_FUNCTION static std::int32_t local(std::int32_t tokens) { return tokens; }
  KOKKOS_FUNCTION static std::int32_t position(std::int32_t local) { return local; }
  static std::int32_t most(std::int32_t tokens) { return tokens; }
};

template <class T>
concept Shard = std::same_as<T, TokenShard> || std::same_as<T, WholeSequence>;

}  // namespace chunked_prefill::impl
