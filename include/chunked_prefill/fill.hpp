// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/chunks.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <chunked_prefill/impl/enqueue_table.hpp>
#include <chunked_prefill/impl/instantiations.hpp>
#include <chunked_prefill/metadata.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <string>

namespace chunked_prefill {

namespace impl {

/// Enqueues the kernels that write `metadata`, which has the shape `shape`.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace>
void enqueue_fill(const Space& space, const ChunkShape& shape,
                  const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
                  const ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata) {
  static_assert(AccessibleFrom<MemorySpace, Space> && AccessibleFrom<MetadataSpace, Space>,
                "the execution space cannot reach the memory of prefix or metadata");
  if (shape.chunked_loop_num == 0) return;
  const IndexArray prefix_lens(prefix.prefix_lens.data());
  const IndexArray req_pool_indices(prefix.req_pool_indices.data());
  ChunkTable table = chunk_table(metadata.chunks());
  table.offsets = metadata.offsets().data();
  table.total_tokens = shape.total_tokens;
  const SlotTiles<Slot> tiles{
      .req_to_page = prefix.req_to_page.data(),
      .row_stride = static_cast<std::int64_t>(prefix.req_to_page.stride(0)),
      .page_size = Divisor(static_cast<std::int32_t>(prefix.page_size)),
      .chunk_kv_indices = metadata.chunk_kv_indices().data(),
      .total_tokens = shape.total_tokens,
  };
  if (can_fuse(shape)) {
    const auto enqueue = [&]<Shard Held>(Held) {
      launch(space, FusedFill<Slot, Held>{.batch = {.prefix_lens = prefix_lens,
                                                    .req_pool_indices = req_pool_indices,
                                                    .split = equal_split<Held>(shape),
                                                    .packed = packed_split<Held>(shape),
                                                    .is_packed = is_packed(shape)},
                                          .table = table,
                                          .tiles = tiles});
    };
    return shape.shard.world_size == 1 ? enqueue(WholeSequence()) : enqueue(TokenShard());
  }
  enqueue_table(space, shape, prefix_lens, table);
  launch(space, KvIndices<Slot>{.tiles = tiles,
                                .rows = {.starts = table.starts,
                                         .cum_seq_lens = table.cum_seq_lens,
                                         .offsets = table.offsets,
                                         .req_pool_indices = req_pool_indices,
                                         .batch_size = table.batch_size,
                                         .chunked_loop_num = table.chunked_loop_num}});
}

}  // namespace impl

/// Writes the chunk table and every cache slot of every loop of `plan` into `metadata`.
///
/// Asynchronous with respect to `space`: enqueues one kernel, or two for a batch of more than 512
/// sequences or of which the size times the longest prefix, in whole grains, is 2^31 or more,
/// whatever the number of loops (none without loops), and returns. Fences nothing and copies
/// nothing; allocates only when `metadata` must grow. On OpenMP and Threads a kernel of one
/// team, such as that of a batch of up to about 4,096 tokens, runs on the calling thread, through
/// Kokkos::Serial where there is one: waking the other threads would take longer.
///
/// Device lengths beyond what `plan` was made for are cut there: no write leaves `metadata`.
///
/// Only the host's view of things is checked: page ids, and rows of `req_to_page` in
/// `req_pool_indices`, are read on the device as they are and must be valid.
///
/// \param plan of the host's copy of the same lengths.
/// \param prefix the batch's lengths and pages, in memory that `space` can reach; must stay alive
///   and unchanged until the kernels have run.
///
/// \throws InvalidArgument, before anything is enqueued or written, naming: `prefix_lens` or
///   `req_pool_indices` when strided, misaligned or not of the plan's batch size; `prefix_lens[i]`
///   when the longest prefix needs more pages than a row has; `page_size` outside [1, INT32_MAX];
///   `req_to_page` when the pages of a row are not side by side or rows overlap; `num_pages` when
///   out of range or when slots would not fit `Slot`; a buffer of the engine's that is too small or
///   misaligned.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace>
void fill(const Space& space, const ChunkPlan& plan,
          const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
          ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata) {
  impl::check_prefix(plan.shape(), prefix, [&] {
    return "prefix_lens[" + std::to_string(plan.longest_sequence()) + "]";
  });
  impl::check_slots_fit<Slot>(prefix.num_pages, prefix.page_size);
  metadata.resize(plan);
  impl::enqueue_fill(space, plan.shape(), prefix, metadata);
}

/// The same for every batch within the bounds that `shape` was made for: what it enqueues can be
/// captured in a graph once and replayed with other lengths and pages in the same arrays.
///
/// Each run, the first included, reads what the device's arrays hold when it runs. A padding
/// sequence has length 0; its element of `req_pool_indices` may be anything, and no page of it is
/// read. The table has the rows of all loops of `shape`; in those past the batch's last loop every
/// sequence is empty and the cumulative lengths are 0, and `offsets` stay at the batch's total. No
/// slot past that is written.
///
///     const auto shape = bounding_shape({.batch_size = 64, .max_prefix_len = 131072,
///                                        .total_tokens = 1 << 20}, options);
///     fill(space, shape, prefix, metadata);                 // captured on space's stream
///     // each step: new lengths and pages in prefix's arrays, then
///     plan_chunks(prefix_lens_host, options, plan);         // 64 lengths, 0 for padding
///     metadata.resize_within(plan, shape);                  // the Views of this step's loops
///     // ... launch the graph
///
/// A captured build reads and writes the memory that it was captured with: `prefix`'s arrays and
/// `metadata`'s buffers must stay where they are.
///
/// \throws InvalidArgument as above; naming what is inconsistent in `shape`, and
///   `shape.max_prefix_len` when such a prefix needs more pages than a row has.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace>
void fill(const Space& space, const ChunkShape& shape,
          const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
          ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata) {
  impl::check_shape(shape);
  impl::check_prefix(shape, prefix, [] { return std::string("shape.max_prefix_len"); });
  impl::check_slots_fit<Slot>(prefix.num_pages, prefix.page_size);
  metadata.resize(shape);
  impl::enqueue_fill(space, shape, prefix, metadata);
}

}  // namespace chunked_prefill
