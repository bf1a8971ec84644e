// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <chunked_prefill/impl/instantiations.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill {

/// Gathers the cache slots of one loop from a page table: for each sequence `i` and each `k` in
/// [0, cum[i + 1] - cum[i]), with `position = starts[i] + k`,
///
///     slots[cum[i] + k] = page_id(i, position / page_size) * page_size + position % page_size
///
/// exact for int64 slots; int32 slots hold it modulo 2^32. Asynchronous with respect to `space`;
/// one kernel. What the device holds is read as it is: rows inside the table, starts not negative,
/// cumulative lengths that do not fall, positions inside their row.
///
/// \param req_to_page (max_requests, max_pages) int32, pages of a row side by side, rows any
///   distance apart; make it with `page_table` from a pointer and a stride.
/// \param req_pool_indices (batch_size) int32 or int64 rows of `req_to_page`.
/// \param chunk_starts (batch_size) int32, first position of each chunk.
/// \param chunk_cum_seq_lens (batch_size + 1) int32, exclusive sums of the chunks' lengths, from 0.
/// \param chunk_kv_indices int32 or int64; as many slots as it holds are written at most. Must not
///   overlap an input.
/// \param page_size tokens, in [1, INT32_MAX].
/// \throws InvalidArgument naming the argument when `page_size` is out of range, an array is not
///   contiguous, the pages of a row are not side by side or extents disagree.
template <ExecutionSpace Space, class Table, class Requests, class Starts, class CumSeqLens,
          class Slots>
void create_chunked_cache_kv_indices_paged(const Space& space, const Table& req_to_page,
                                           const Requests& req_pool_indices,
                                           const Starts& chunk_starts,
                                           const CumSeqLens& chunk_cum_seq_lens,
                                           const Slots& chunk_kv_indices, std::int64_t page_size) {
  static_assert(AccessibleFrom<typename Table::memory_space, Space> &&
                    AccessibleFrom<typename Requests::memory_space, Space> &&
                    AccessibleFrom<typename Starts::memory_space, Space> &&
                    AccessibleFrom<typename CumSeqLens::memory_space, Space> &&
                    AccessibleFrom<typename Slots::memory_space, Space>,
                "the execution space cannot reach the memory of an argument");
  static_assert(std::is_same_v<typename Starts::non_const_value_type, std::int32_t> &&
                    std::is_same_v<typename CumSeqLens::non_const_value_type, std::int32_t>,
                "chunk_starts and chunk_cum_seq_lens: elements must be int32");
  static_assert(Index<typename Requests::non_const_value_type> && Index<typename Slots::value_type>,
                "req_pool_indices and chunk_kv_indices: elements must be int32 or int64");
  const PageTable<typename Table::memory_space> table = req_to_page;
  const std::size_t batch_size = req_pool_indices.extent(0);
  impl::check_range("page_size", page_size, 1, INT32_MAX);
  impl::check_page_table(table);
  impl::check_array("req_pool_indices", req_pool_indices);
  impl::check_array("chunk_starts", chunk_starts);
  impl::check_array("chunk_cum_seq_lens", chunk_cum_seq_lens);
  impl::check_array("chunk_kv_indices", chunk_kv_indices);
  impl::check_range("batch_size", static_cast<std::int64_t>(batch_size), 0, INT32_MAX);
  impl::check_extent("chunk_starts", chunk_starts.extent(0), batch_size);
  impl::check_extent("chunk_cum_seq_lens", chunk_cum_seq_lens.extent(0), batch_size + 1);
  if (batch_size == 0) return;
  using Slot = typename Slots::value_type;
  impl::launch(space,
               impl::KvIndices<Slot>{
                   .tiles = {.req_to_page = table.data(),
                             .row_stride = static_cast<std::int64_t>(table.stride(0)),
                             .page_size = impl::Divisor(static_cast<std::int32_t>(page_size)),
                             .chunk_kv_indices = chunk_kv_indices.data(),
                             .total_tokens = static_cast<std::int64_t>(chunk_kv_indices.extent(0))},
                   .rows = {.starts = chunk_starts.data(),
                            .cum_seq_lens = chunk_cum_seq_lens.data(),
                            .offsets = nullptr,
                            .req_pool_indices = impl::IndexArray(req_pool_indices.data()),
                            .batch_size = static_cast<std::int32_t>(batch_size),
                            .chunked_loop_num = 1},
               });
}

}  // namespace chunked_prefill
