// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// A ContextShard for kernels: which tokens of a sequence the rank holds, both ways without a
/// division. The rank's tokens lie in its own pages, one behind another: `local` counts those.
class TokenShard {
 public:
  /// The whole sequence.
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
  /// Position in the sequence of the rank's token `local`, which the sequence has: of that many
  /// tokens, and no more, the rank holds no more than `local`.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t position(std::int32_t local) const {
    const std::int32_t others = m_by_turn.value() - m_by_interleave.value();
    return local + m_by_interleave.quotient(local) * others + m_skip;
  }

 private:
  Divisor m_by_turn;        ///< world_size * interleave, the tokens of a turn of all ranks
  Divisor m_by_interleave;  ///< interleave, the tokens of a turn of one
  std::int32_t m_skip = 0;  ///< tokens of a turn that lower ranks hold
};

}  // namespace chunked_prefill::impl
