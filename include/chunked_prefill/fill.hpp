// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/chunks.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/device_check.hpp>
#include <chunked_prefill/impl/check_inputs.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <chunked_prefill/impl/enqueue_table.hpp>
#include <chunked_prefill/impl/instantiations.hpp>
#include <chunked_prefill/metadata.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <span>
#include <string>

namespace chunked_prefill {

namespace impl {

/// What the host can tell of the inputs of `fill`.
template <Index Slot, class MemorySpace, Index Length, Index RequestIndex>
void check_fill(const ChunkPlan& plan,
                const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix) {
  check_kokkos();
  check_prefix(plan.shape(), prefix,
               [&] { return "prefix_lens[" + std::to_string(plan.longest_sequence()) + "]"; });
  check_slots_fit<Slot>(prefix.num_pages, prefix.page_size);
}
template <Index Slot, class MemorySpace, Index Length, Index RequestIndex>
void check_fill(const ChunkShape& shape,
                const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix) {
  check_kokkos();
  check_shape(shape);
  check_prefix(shape, prefix, [] { return std::string("shape.max_prefix_len"); });
  check_slots_fit<Slot>(prefix.num_pages, prefix.page_size);
}

/// Enqueues the kernels that write `metadata`, which has the shape `shape`.
/// \param prefix_lens those of `prefix`, or those that a check has let through.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace>
void enqueue_fill(const Space& space, const ChunkShape& shape,
                  const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
                  const IndexArray& prefix_lens,
                  const ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata) {
  static_assert(AccessibleFrom<MemorySpace, Space> && AccessibleFrom<MetadataSpace, Space>,
                "the execution space cannot reach the memory of prefix or metadata");
  if (shape.chunked_loop_num == 0) return;
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

/// The same between the kernels of a check.
/// \param planned_lens (batch_size) of a plan, or null for a shape.
/// \param admitted_lens (batch_size) for the lengths that are let through.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace>
void enqueue_checked_fill(const Space& space, const ChunkShape& shape,
                          const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
                          const ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata,
                          FaultRecord* record, const std::int32_t* planned_lens,
                          std::int32_t* admitted_lens) {
  if (shape.batch_size == 0) return;
  const CheckedInputs inputs{
      .prefix_lens = IndexArray(prefix.prefix_lens.data()),
      .planned_lens = planned_lens,
      .req_pool_indices = IndexArray(prefix.req_pool_indices.data()),
      .req_to_page = prefix.req_to_page.data(),
      .row_stride = static_cast<std::int64_t>(prefix.req_to_page.stride(0)),
      .max_requests = static_cast<std::int64_t>(prefix.req_to_page.extent(0)),
      .num_pages = prefix.num_pages > 0 ? prefix.num_pages : pages_that_fit<Slot>(prefix.page_size),
      .page_size = Divisor(static_cast<std::int32_t>(prefix.page_size)),
      .batch_size = shape.batch_size,
      .max_prefix_len = shape.max_prefix_len,
      .total_tokens = shape.total_tokens,
      .shard = TokenShard(shape.shard),
      .admitted_lens = admitted_lens,
      .record = record,
  };
  launch(space, CheckBatch{inputs});
  launch(space, CheckPages{.inputs = inputs});
  launch(space, AdmitLens{inputs});
  enqueue_fill(space, shape, prefix, IndexArray(admitted_lens), metadata);
  const Chunks<MetadataSpace> chunks = metadata.chunks();
  launch(space,
         DropFaulty{.inputs = inputs,
                    .outputs = {OutputWords(chunks.starts), OutputWords(chunks.ends),
                                OutputWords(chunks.len_in_chunk), OutputWords(chunks.cum_seq_lens),
                                OutputWords(metadata.offsets()),
                                OutputWords(metadata.chunk_kv_indices())}});
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
/// `req_pool_indices`, are read on the device as they are and must be valid. Where they may not be,
/// give a DeviceCheck.
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
  impl::check_fill<Slot>(plan, prefix);
  metadata.resize(plan);
  impl::enqueue_fill(space, plan.shape(), prefix, impl::IndexArray(prefix.prefix_lens.data()),
                     metadata);
}

/// The same with a check of what the device holds, see DeviceCheck: four short kernels more. Still
/// asynchronous, with one copy of `prefix_lens_host` to the device; of more than 64 KiB CUDA may
/// wait for the device, and other devices do for any. Cannot be captured in a graph.
///
/// \param prefix_lens_host (batch_size) the lengths that `plan` was made of; free on return.
/// \throws InvalidArgument as above, and naming `prefix_lens_host` when its size is another.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace, HostLengths HostLens, class CheckSpace>
void fill(const Space& space, const ChunkPlan& plan,
          const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
          ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata, const HostLens& prefix_lens_host,
          DeviceCheck<CheckSpace>& check) {
  static_assert(AccessibleFrom<CheckSpace, Space>,
                "the execution space cannot reach the memory of the check");
  impl::check_fill<Slot>(plan, prefix);
  impl::check_extent("prefix_lens_host", std::span(prefix_lens_host).size(),
                     static_cast<std::size_t>(plan.batch_size()));
  metadata.resize(plan);
  if (plan.batch_size() == 0) return;
  impl::enqueue_checked_fill(space, plan.shape(), prefix, metadata, check.record(),
                             check.copy_planned(space, prefix_lens_host),
                             check.admitted_lens(plan.batch_size()));
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
  impl::check_fill<Slot>(shape, prefix);
  metadata.resize(shape);
  impl::enqueue_fill(space, shape, prefix, impl::IndexArray(prefix.prefix_lens.data()), metadata);
}

/// The same with a check of what the device holds when it runs, see DeviceCheck: three short
/// kernels more, which can be captured too. Lengths are checked against the bounds of `shape`.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace, class CheckSpace>
void fill(const Space& space, const ChunkShape& shape,
          const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
          ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata, DeviceCheck<CheckSpace>& check) {
  static_assert(AccessibleFrom<CheckSpace, Space>,
                "the execution space cannot reach the memory of the check");
  impl::check_fill<Slot>(shape, prefix);
  metadata.resize(shape);
  impl::enqueue_checked_fill(space, shape, prefix, metadata, check.record(), nullptr,
                             check.admitted_lens(shape.batch_size));
}

}  // namespace chunked_prefill
