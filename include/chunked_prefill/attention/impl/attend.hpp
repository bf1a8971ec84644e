// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/mla.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <cstddef>
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
  check_table("layer.kv_b", layer.kv_b, size(layer.shape.latent_dim),
              size(layer.shape.key_value_columns()));
  check_extent("queries.cum_query_lens", queries.cum_query_lens.extent(0), size(batch_size) + 1);
  check_extent("queries.query.extent(1)", queries.query.extent(1), size(layer.shape.num_heads));
  check_extent("queries.query.extent(2)", queries.query.extent(2), size(layer.shape.query_dim()));
  check_range("query_tokens * num_heads",
              static_cast<std::int64_t>(queries.query.extent(0)) * layer.shape.num_heads, 0,
              INT32_MAX);
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

}  // namespace chunked_prefill::impl
