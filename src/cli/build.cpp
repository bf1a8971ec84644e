// SPDX-License-Identifier: MIT
#include "build.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/fill.hpp>
#include <chunked_prefill/metadata.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <numeric>

#include "memory.hpp"

namespace chunked_prefill::cli {
namespace {

/// A copy of `values` where `MemorySpace` can reach them; the values themselves where it can
/// already.
template <class MemorySpace, class T>
auto on_device(const std::vector<T>& values) {
  return Kokkos::create_mirror_view_and_copy(
      MemorySpace(), array_view<Kokkos::HostSpace>(values.data(), values.size()));
}

template <class To, class View>
std::vector<To> to_host(const View& device) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), device);
  return std::vector<To>(host.data(), host.data() + host.size());
}

template <class View>
Table to_table(const View& device) {
  return {to_host<std::int32_t>(device), device.extent(1)};
}

template <class Space, class Slot>
void build_on(const Batch& batch, Build& result) {
  using MemorySpace = typename Space::memory_space;
  const auto prefix_lens = on_device<MemorySpace>(batch.prefix_lens);
  const auto req_pool_indices = on_device<MemorySpace>(batch.req_pool_indices);
  const auto page_ids = on_device<MemorySpace>(batch.req_to_page);
  const PagedPrefix prefix{prefix_lens,
                           page_table<MemorySpace>(page_ids.data(), batch.max_requests,
                                                   batch.max_pages, batch.max_pages),
                           req_pool_indices, batch.page_size};
  ChunkedPrefillMetadata<MemorySpace, Slot> metadata;
  const Space space;
  fill(space, result.plan, prefix, metadata);
  space.fence("chunked_prefill::cli::build");

  result.starts = to_table(metadata.chunks().starts);
  result.ends = to_table(metadata.chunks().ends);
  result.len_in_chunk = to_table(metadata.chunks().len_in_chunk);
  result.cum_seq_lens = to_table(metadata.chunks().cum_seq_lens);
  result.chunk_kv_offsets = to_host<std::int64_t>(metadata.offsets());
  if (result.chunk_kv_offsets.empty()) result.chunk_kv_offsets = {0};
  result.chunk_kv_indices = to_host<std::int64_t>(metadata.chunk_kv_indices());
}

template <class Space>
void build_for(const Batch& batch, Build& result) {
  if (result.index_type == IndexType::int32) {
    build_on<Space, std::int32_t>(batch, result);
  } else {
    build_on<Space, std::int64_t>(batch, result);
  }
}

struct Backend {
  std::string name;
  void (*build)(const Batch&, Build&);
};

template <class Space>
Backend backend() {
  return {Space::name(), &build_for<Space>};
}

std::vector<Backend> backends() {
  return {
#ifdef KOKKOS_ENABLE_SERIAL
      backend<Kokkos::Serial>(),
#endif
#ifdef KOKKOS_ENABLE_OPENMP
      backend<Kokkos::OpenMP>(),
#endif
#ifdef KOKKOS_ENABLE_THREADS
      backend<Kokkos::Threads>(),
#endif
#ifdef KOKKOS_ENABLE_CUDA
      backend<Kokkos::Cuda>(),
#endif
#ifdef KOKKOS_ENABLE_HIP
      backend<Kokkos::HIP>(),
#endif
#ifdef KOKKOS_ENABLE_SYCL
      backend<Kokkos::SYCL>(),
#endif
  };
}

/// The plan, the tables and the slots, on the device and copied back. Counted before planning,
/// which itself takes memory for each loop.
void check_memory(const Batch& batch, const PlanOptions& options, IndexType index_type) {
  const auto batch_size = static_cast<std::int64_t>(batch.prefix_lens.size());
  if (batch_size == 0) return;
  const std::int64_t tokens =
      std::accumulate(batch.prefix_lens.begin(), batch.prefix_lens.end(), std::int64_t{0});
  const std::int64_t loops = bounding_shape({.batch_size = batch_size,
                                             .max_prefix_len = std::ranges::max(batch.prefix_lens),
                                             .total_tokens = tokens},
                                            options)
                                 .chunked_loop_num;
  const double table_bytes =
      static_cast<double>(loops) * static_cast<double>(4 * batch_size + 1) * 4;
  const double loop_bytes = static_cast<double>(loops) * 48;
  const double slot_bytes =
      static_cast<double>(tokens) * static_cast<double>(bytes(index_type) + 8);
  require_memory("prefix_lens",
                 std::to_string(tokens) + " tokens of " + std::to_string(batch_size) +
                     " sequences in " + std::to_string(loops) + " loops",
                 2 * table_bytes + loop_bytes + slot_bytes);
}

}  // namespace

std::vector<std::string> execution_spaces() {
  std::vector<std::string> names;
  for (const auto& backend : backends()) names.push_back(backend.name);
  return names;
}

std::string default_execution_space() { return Kokkos::DefaultExecutionSpace::name(); }

std::string kokkos_version() {
  return std::to_string(KOKKOS_VERSION / 10000) + '.' + std::to_string(KOKKOS_VERSION / 100 % 100) +
         '.' + std::to_string(KOKKOS_VERSION % 100);
}

std::string policy_words(const ChunkPlan& plan) {
  std::string words = name(plan.policy());
  if (plan.policy() == Policy::packed) words += ", grain " + std::to_string(plan.grain());
  return words;
}

Build build(const Batch& batch, const PlanArguments& arguments) {
  const PlanOptions options{
      .chunk_capacity = batch.chunk_capacity, .policy = arguments.policy, .grain = arguments.grain};
  check_memory(batch, options, arguments.index_type);
  Build result;
  result.plan = plan_chunks(batch.prefix_lens, options);
  result.execution_space = arguments.execution_space;
  result.index_type = arguments.index_type;

  const Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  for (const auto& backend : backends()) {
    if (backend.name == arguments.execution_space) backend.build(batch, result);
  }
  return result;
}

}  // namespace chunked_prefill::cli
