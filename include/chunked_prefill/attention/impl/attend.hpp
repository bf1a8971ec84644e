// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/mla.hpp>
#include <chunked_prefill/concepts.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Rows of the tokens that are attended to, and their keys and values.
template <class MemorySpace>
struct KeyBuffers {
  Array2D<float, MemorySpace> latent;      ///< (tokens, latent_dim)
  Array2D<float, MemorySpace> rope;        ///< (tokens, rope_dim)
  Array2D<float, MemorySpace> key_values;  ///< (tokens, num_heads * (nope_dim + value_dim))
};

/// Which of the keys a query sees.
struct KeyRanges {
  /// Keys of a prefix: (batch_size + 1) where each sequence's begin. A query sees all of its own
  /// sequence.
  const std::int32_t* cum_keys = nullptr;
  /// Keys of the new tokens, where `cum_keys` is null: which new token the first key is of. A query
  /// sees those of its own sequence up to itself.
  std::int32_t first_new = 0;
};

/// `key_values` = `latent` times `layer.kv_b`.
template <ExecutionSpace Space>
void up_project(const Space& space, const MlaLayer<typename Space::memory_space>& layer,
                const KeyBuffers<typename Space::memory_space>& keys);

/// Attention of every query to the keys that it sees, in float; the empty state where it sees none.
template <ExecutionSpace Space>
void attend(const Space& space, const MlaLayer<typename Space::memory_space>& layer,
            const QueryBatch<typename Space::memory_space>& queries,
            const KeyBuffers<typename Space::memory_space>& keys, const KeyRanges& ranges,
            const Array3D<float, typename Space::memory_space>& values,
            const Array2D<float, typename Space::memory_space>& lse);

}  // namespace chunked_prefill::impl
