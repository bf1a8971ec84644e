// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/equal_split.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/instantiations.hpp>
#include <chunked_prefill/impl/packed_split.hpp>
#include <chunked_prefill/impl/token_shard.hpp>
#include <chunked_prefill/plan.hpp>

namespace chunked_prefill::impl {

inline bool is_packed(const ChunkShape& shape) { return shape.policy == Policy::packed; }

/// The equal split of `shape`; for the slots of a packed one, which are in the order of one loop
/// that holds all prefixes, that loop.
template <Shard Held>
EqualSplit<Held> equal_split(const ChunkShape& shape) {
  return {.batch_size = shape.batch_size,
          .chunk_len = Divisor(is_packed(shape) ? shape.max_prefix_len : shape.chunk_len),
          .max_prefix_len = shape.max_prefix_len,
          .shard = Held(shape.shard)};
}
template <Shard Held>
PackedSplit<Held> packed_split(const ChunkShape& shape) {
  return {.chunk_len = shape.chunk_len,
          .max_prefix_len = shape.max_prefix_len,
          .grain = Divisor(shape.grain),
          .shard = Held(shape.shard)};
}

/// Enqueues the chunk table of `shape` by itself on `space`; nothing when there are no loops.
template <ExecutionSpace Space>
void enqueue_table(const Space& space, const ChunkShape& shape, const IndexArray& prefix_lens,
                   const ChunkTable& table) {
  if (shape.chunked_loop_num == 0) return;
  if (is_packed(shape)) {
    launch(space, PackedRows{.prefix_lens = prefix_lens,
                             .split = packed_split<TokenShard>(shape),
                             .table = table});
  } else {
    launch(space, ChunkRows{.prefix_lens = prefix_lens,
                            .split = equal_split<TokenShard>(shape),
                            .table = table});
  }
}

}  // namespace chunked_prefill::impl
