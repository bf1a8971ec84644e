// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/chunks.hpp>
#include <chunked_prefill/fill.hpp>
#include <chunked_prefill/impl/enqueue_table.hpp>
#include <chunked_prefill/metadata.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <span>
#include <vector>

namespace chunked_prefill {

/// The host's twin of a build's chunk table: the same code on a host execution space. Complete on
/// return.
///
/// \param prefix_lens (batch_size) on the host, the lengths that `plan` was made from.
template <HostLengths Lens>
[[nodiscard]] Chunks<Kokkos::HostSpace> host_chunks(const ChunkPlan& plan,
                                                    const Lens& prefix_lens) {
  const std::span lens(prefix_lens);
  impl::check_extent("prefix_lens", lens.size(), static_cast<std::size_t>(plan.batch_size()));
  const Kokkos::DefaultHostExecutionSpace host;
  const auto chunks = impl::make_chunks<Kokkos::HostSpace>(
      host, static_cast<std::size_t>(plan.chunked_loop_num()), lens.size());
  impl::enqueue_table(host, plan.shape(), impl::IndexArray(lens.data()), impl::chunk_table(chunks));
  host.fence("chunked_prefill::host_chunks");
  return chunks;
}

/// What `get_chunks_paged` gives.
template <class MemorySpace, Index Slot>
struct PagedChunks {
  Chunks<MemorySpace> chunks;  ///< on the device
  /// One View a loop, (tokens of the loop) slots, parts of one buffer.
  std::vector<Array1D<Slot, MemorySpace>> chunk_kv_indices_list;
  Chunks<Kokkos::HostSpace> chunks_host;  ///< equal to `chunks`, element for element
};

/// Chunks of every loop on the device and on the host, and the slots of every loop.
///
/// Plans, fills `metadata` (see `fill` for what is asynchronous and what is refused) and computes
/// the host's chunk table, which is complete on return. The device's Views alias `metadata`.
///
/// \param prefix_lens_host (batch_size) int32 or int64, the host's copy of `prefix.prefix_lens`.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace, HostLengths HostLens>
[[nodiscard]] PagedChunks<MetadataSpace, Slot> get_chunks_paged(
    const Space& space, const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
    const HostLens& prefix_lens_host, const PlanOptions& options,
    ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata) {
  const ChunkPlan plan = plan_chunks(std::span(prefix_lens_host), options);
  fill(space, plan, prefix, metadata);
  return {.chunks = metadata.chunks(),
          .chunk_kv_indices_list = metadata.chunk_kv_indices_list(),
          .chunks_host = host_chunks(plan, prefix_lens_host)};
}

/// What `build_chunked_prefill_metadata_arrays` gives.
template <class MemorySpace, Index Slot>
struct ChunkedPrefillMetadataArrays {
  std::int32_t chunked_loop_num = 0;
  /// One View a loop, (tokens of the loop) slots, parts of one buffer.
  std::vector<Array1D<Slot, MemorySpace>> chunk_kv_indices_list;
  /// (chunked_loop_num, batch_size) tokens of each sequence in each loop.
  Array2D<std::int32_t, MemorySpace> chunked_seq_len;
  /// (chunked_loop_num, batch_size + 1) their exclusive sums along each row.
  Array2D<std::int32_t, MemorySpace> cu_chunked_seq_len;
  /// Host: longest sequence chunk of each loop, tokens.
  std::vector<std::int32_t> max_chunk_len_per_loop;
};

/// Everything a prefill step needs in one call: plans and fills. Asynchronous with respect to
/// `space` as `fill` is, and refuses what `plan_chunks` and `fill` refuse. The Views alias
/// `metadata`, which is reused step after step.
///
/// \param prefix_lens_host (batch_size) int32 or int64, the host's copy of `prefix.prefix_lens`.
/// \param check where given, what the device holds is checked, see DeviceCheck.
template <ExecutionSpace Space, class MemorySpace, Index Length, Index RequestIndex, Index Slot,
          class MetadataSpace, HostLengths HostLens>
[[nodiscard]] ChunkedPrefillMetadataArrays<MetadataSpace, Slot>
build_chunked_prefill_metadata_arrays(const Space& space,
                                      const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
                                      const HostLens& prefix_lens_host, const PlanOptions& options,
                                      ChunkedPrefillMetadata<MetadataSpace, Slot>& metadata,
                                      DeviceCheck<MetadataSpace>* check = nullptr) {
  const ChunkPlan plan = plan_chunks(std::span(prefix_lens_host), options);
  if (check == nullptr) {
    fill(space, plan, prefix, metadata);
  } else {
    fill(space, plan, prefix, metadata, prefix_lens_host, *check);
  }
  const auto longest = plan.max_chunk_len_per_loop();
  return {.chunked_loop_num = plan.chunked_loop_num(),
          .chunk_kv_indices_list = metadata.chunk_kv_indices_list(),
          .chunked_seq_len = metadata.chunks().len_in_chunk,
          .cu_chunked_seq_len = metadata.chunks().cum_seq_lens,
          .max_chunk_len_per_loop = {longest.begin(), longest.end()}};
}

}  // namespace chunked_prefill
