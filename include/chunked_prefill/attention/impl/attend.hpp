// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <cstddef>
#include <cstdint>

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
  Kokkos::View<const float***, Kokkos::LayoutRight, MemorySpace> query;
  /// (batch_size + 1) where each sequence's begin, from 0 to query_tokens.
  Kokkos::View<const std::int32_t*, Kokkos::LayoutRight, MemorySpace> cum_query_lens;

  [[nodiscard]] std::int32_t batch_size() const {
    return static_cast<std::int32_t>(cum_query_lens.extent(0)) - 1;
  }
};

namespace impl {

/// Rows of the tokens that are attended to, and their keys and values.
template <class MemorySpace>
struct KeyBuffers {
  Array2D<float, MemorySpace> latent;      ///< (tokens, latent_dim)
  Array2D<float, MemorySpace> rope;        ///< (tokens, rope_dim)
  Array2D<float, MemorySpace> key_values;  ///< (tokens, num_heads * (nope_dim + value_dim))
};

/// Which of the keys a query sees.
struct KeyRanges {
  /// (batch_size + 1) those of its sequence; or null, and those of its sequence's new tokens up to
  /// itself, of which the keys are a piece from new token `first_new` on.
  const std::int32_t* cum_keys = nullptr;
  std::int32_t first_new = 0;
};

inline void check_mla_shape(const MlaShape& shape) {
  check_range("shape.num_heads", shape.num_heads, 1, INT32_MAX);
  check_range("shape.nope_dim", shape.nope_dim, 0, INT32_MAX);
  check_range("shape.rope_dim", shape.rope_dim, 0, INT32_MAX);
  check_range("shape.nope_dim + shape.rope_dim", std::int64_t{shape.nope_dim} + shape.rope_dim, 1,
              INT32_MAX);
  check_range("shape.value_dim", shape.value_dim, 1, INT32_MAX);
  check_range("shape.latent_dim", shape.latent_dim, 1, INT32_MAX);
  check_range("num_heads * (nope_dim + value_dim)",
              shape.num_heads * (std::int64_t{shape.nope_dim} + shape.value_dim), 1, INT32_MAX);
}

template <class MemorySpace>
void check_attention(const MlaLayer<MemorySpace>& layer, const QueryBatch<MemorySpace>& queries,
                     std::int32_t batch_size, const MlaShape& workspace) {
  check_mla_shape(layer.shape);
  const auto size = [](std::int32_t extent) { return static_cast<std::size_t>(extent); };
  check_extents("layer.kv_b", layer.kv_b, size(layer.shape.latent_dim),
                size(layer.shape.key_value_columns()));
  check_extent("queries.cum_query_lens", queries.cum_query_lens.extent(0), size(batch_size) + 1);
  check_extent("queries.query.extent(1)", queries.query.extent(1), size(layer.shape.num_heads));
  check_extent("queries.query.extent(2)", queries.query.extent(2), size(layer.shape.query_dim()));
  if (workspace != layer.shape) {
    throw InvalidArgument("workspace", "it was made for another shape than layer.shape");
  }
}

/// `key_values` = `latent` times `layer.kv_b`.
template <ExecutionSpace Space>
void up_project(const Space& space, const MlaLayer<typename Space::memory_space>& layer,
                const KeyBuffers<typename Space::memory_space>& keys);

/// Attention of every query to the keys that it sees, in float; the empty state where it sees none.
template <ExecutionSpace Space>
void attend(const Space& space, const MlaLayer<typename Space::memory_space>& layer,
            const QueryBatch<typename Space::memory_space>& queries,
            const KeyBuffers<typename Space::memory_space>& keys, const KeyRanges& ranges,
            const Kokkos::View<float***, Kokkos::LayoutRight, typename Space::memory_space>& values,
            const Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space>& lse);

}  // namespace impl

}  // namespace chunked_prefill
