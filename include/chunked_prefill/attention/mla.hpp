// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <cstdint>

// What the attention of a multi-head latent attention (MLA) layer takes.

namespace chunked_prefill {

/// Sizes of an MLA layer; by default those of DeepSeek V3 apart from its 128 heads.
struct MlaShape {
  std::int32_t num_heads = 0;
  std::int32_t nope_dim = 128;  ///< of a head's query and key without position
  std::int32_t rope_dim = 64;   ///< of its rotated part; all heads share a key's
  std::int32_t value_dim = 128;
  std::int32_t latent_dim = 512;  ///< of a cached row, beside rope_dim

  [[nodiscard]] KOKKOS_FUNCTION std::int32_t query_dim() const { return nope_dim + rope_dim; }
  [[nodiscard]] std::int32_t key_value_columns() const {
    return num_heads * (nope_dim + value_dim);
  }
  friend bool operator==(const MlaShape&, const MlaShape&) = default;
};

/// The weights that make keys and values of a latent row.
template <class MemorySpace>
struct MlaLayer {
  MlaShape shape;
  /// (latent_dim, num_heads * (nope_dim + value_dim)): of each head the key's columns, then the
  /// value's. What engines call `kv_b_proj`, transposed.
  Array2D<float, MemorySpace> kv_b;
  /// What scores are multiplied by, such as 1 / sqrt(nope_dim + rope_dim).
  float softmax_scale = 1;
};

/// The new tokens of a batch, sequence after sequence.
template <class MemorySpace>
struct QueryBatch {
  /// (query_tokens, num_heads, nope_dim + rope_dim)
  Array3D<const float, MemorySpace> query;
  /// (batch_size + 1) where each sequence's begin, from 0 to query_tokens.
  Array1D<const std::int32_t, MemorySpace> cum_query_lens;

  [[nodiscard]] std::int32_t batch_size() const {
    return static_cast<std::int32_t>(cum_query_lens.extent(0)) - 1;
  }
};

}  // namespace chunked_prefill
