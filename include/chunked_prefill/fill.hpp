// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <chunked_prefill/impl/instantiations.hpp>
#include <chunked_prefill/metadata.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <chunked_prefill/plan.hpp>

namespace chunked_prefill {

/// Writes the chunk table and every cache slot of every loop of `plan` into `metadata`.
///
/// Asynchronous with respect to `space`: enqueues one kernel, or two for a batch of more than 512
/// sequences or of 2^31 tokens and more, whatever the number of loops (none without loops), and
/// returns. Fences nothing and copies nothing; allocates only when `metadata` must grow.
///
/// Device lengths beyond what `plan` was made for are cut there: no write leaves `metadata`.
///
/// \param plan of the host's copy of the same lengths.
/// \param prefix the batch's lengths and pages, in memory that `space` can reach; must stay alive
///   and unchanged until the kernels have run.
/// Only the host's view of things is checked: page ids, and rows of `req_to_page` in
/// `req_pool_indices`, are read on the device as they are and must be valid.
///
/// \throws InvalidArgument, before anything is enqueued or written, naming: `prefix_lens` or
///   `req_pool_indices` when strided or not of the plan's batch size; `prefix_lens[i]` when the
///   longest prefix needs more pages than a row has; `page_size` outside [1, INT32_MAX];
///   `req_to_page` when the pages of a row are not side by side or rows overlap; `num_pages` when
///   out of range or when slots would not fit `Slot`; a buffer of the engine's that is too small or
///   misaligned.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace>
void fill(const Space& space, const ChunkPlan& plan,
          const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
          ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata) {
  static_assert(AccessibleFrom<MemorySpace, Space> && AccessibleFrom<MetadataSpace, Space>,
                "the execution space cannot reach the memory of prefix or metadata");
  impl::check_prefix(plan, prefix);
  impl::check_slots_fit<Slot>(prefix.num_pages, prefix.page_size);
  metadata.resize(plan);
  if (plan.chunked_loop_num() == 0) return;

  const auto chunks = metadata.chunks();
  const impl::IndexArray prefix_lens(prefix.prefix_lens.data());
  const impl::IndexArray req_pool_indices(prefix.req_pool_indices.data());
  const impl::EqualSplit split{
      .batch_size = plan.batch_size(),
      .chunked_loop_num = plan.chunked_loop_num(),
      .chunk_len = plan.chunk_len(),
      .max_prefix_len = plan.max_prefix_len(),
  };
  const impl::ChunkTable table{
      .starts = chunks.starts.data(),
      .ends = chunks.ends.data(),
      .len_in_chunk = chunks.len_in_chunk.data(),
      .cum_seq_lens = chunks.cum_seq_lens.data(),
      .offsets = metadata.offsets().data(),
      .total_tokens = plan.total_tokens(),
  };
  const impl::SlotTiles<Slot> tiles{
      .req_to_page = prefix.req_to_page.data(),
      .row_stride = static_cast<std::int64_t>(prefix.req_to_page.stride(0)),
      .page_size = impl::Divisor(static_cast<std::int32_t>(prefix.page_size)),
      .chunk_kv_indices = metadata.chunk_kv_indices().data(),
      .total_tokens = plan.total_tokens(),
  };
  if (impl::can_fuse(split)) {
    impl::launch(space, impl::FusedFill<Slot>{.prefix_lens = prefix_lens,
                                              .req_pool_indices = req_pool_indices,
                                              .split = split,
                                              .table = table,
                                              .tiles = tiles});
    return;
  }
  impl::launch(space, impl::ChunkRows{.prefix_lens = prefix_lens, .split = split, .table = table});
  impl::launch(space, impl::KvIndices<Slot>{.tiles = tiles,
                                            .rows = {.starts = table.starts,
                                                     .cum_seq_lens = table.cum_seq_lens,
                                                     .offsets = table.offsets,
                                                     .req_pool_indices = req_pool_indices,
                                                     .batch_size = split.batch_size,
                                                     .chunked_loop_num = split.chunked_loop_num}});
}

}  // namespace chunked_prefill
