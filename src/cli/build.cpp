// SPDX-License-Identifier: MIT
#include "build.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/fill.hpp>
#include <chunked_prefill/metadata.hpp>
#include <cstdint>
#include <string>

#include "../startup/kokkos_settings.hpp"
#include "device.hpp"
#include "memory.hpp"

namespace chunked_prefill::cli {
namespace {

template <class View>
Table to_table(const View& device) {
  return {to_host<std::int32_t>(device), device.extent(1)};
}

/// A batch, and builds of it, in the memory of an execution space.
class DeviceBuilder {
 public:
  virtual ~DeviceBuilder() = default;
  virtual void copy_in(const Batch& batch) = 0;
  /// Enqueues and waits.
  virtual void fill(const ChunkPlan& plan) = 0;
  virtual void read_back(Build& result) const = 0;
};

template <class Space, class Slot>
class BuilderOn : public DeviceBuilder {
 public:
  void copy_in(const Batch& batch) override { m_batch = DeviceBatch<MemorySpace>(batch); }
  void fill(const ChunkPlan& plan) override {
    chunked_prefill::fill(m_space, plan, m_batch.prefix(), m_metadata);
    m_space.fence("chunked_prefill::cli::build");
  }
  void read_back(Build& result) const override {
    result.starts = to_table(m_metadata.chunks().starts);
    result.ends = to_table(m_metadata.chunks().ends);
    result.len_in_chunk = to_table(m_metadata.chunks().len_in_chunk);
    result.cum_seq_lens = to_table(m_metadata.chunks().cum_seq_lens);
    result.chunk_kv_offsets = to_host<std::int64_t>(m_metadata.offsets());
    if (result.chunk_kv_offsets.empty()) result.chunk_kv_offsets = {0};
    result.chunk_kv_indices = to_host<std::int64_t>(m_metadata.chunk_kv_indices());
  }

 private:
  using MemorySpace = typename Space::memory_space;

  const Space m_space{};
  DeviceBatch<MemorySpace> m_batch;
  ChunkedPrefillMetadata<MemorySpace, Slot> m_metadata;
};

struct Backend {
  std::string name;
  std::unique_ptr<DeviceBuilder> (*make)(IndexType);
};

template <class Space>
Backend backend() {
  return {Space::name(), [](IndexType index_type) -> std::unique_ptr<DeviceBuilder> {
            if (index_type == IndexType::int32) {
              return std::make_unique<BuilderOn<Space, std::int32_t>>();
            }
            return std::make_unique<BuilderOn<Space, std::int64_t>>();
          }};
}

std::vector<Backend> backends() {
  std::vector<Backend> all;
  for_each_execution_space([&]<class Space>() { all.push_back(backend<Space>()); });
  return all;
}

}  // namespace

std::string shard_words(const ContextShard& shard) {
  return "rank " + std::to_string(shard.rank) + " of " + std::to_string(shard.world_size) +
         ", interleave " + std::to_string(shard.interleave);
}

std::string policy_words(const ChunkPlan& plan) {
  std::string words = name(plan.policy());
  if (plan.policy() == Policy::packed) words += ", grain " + std::to_string(plan.grain());
  return words;
}

std::int64_t loops_needed(const Batch& batch, const PlanOptions& options) {
  const auto ceil = [](std::int64_t dividend, std::int64_t divisor) {
    return (dividend + divisor - 1) / divisor;
  };
  if (options.policy == Policy::packed) {
    const std::int64_t grains_per_loop = options.chunk_capacity / options.grain;
    std::int64_t grains = 0;
    for (const std::int32_t length : batch.prefix_lens) grains += ceil(length, options.grain);
    return grains_per_loop == 0 ? 0 : ceil(grains, grains_per_loop);
  }
  const auto batch_size = static_cast<std::int64_t>(batch.prefix_lens.size());
  const std::int64_t chunk_len = batch_size == 0 ? 0 : options.chunk_capacity / batch_size;
  return chunk_len == 0 ? 0 : ceil(std::ranges::max(batch.prefix_lens), chunk_len);
}

// The plans, the tables and the slots: of one build after another on the device, of all of them
// copied back. Counted before planning, which itself takes memory for each loop.
void check_memory(const Batch& batch, std::span<const PlanOptions> builds, IndexType index_type) {
  const auto batch_size = static_cast<std::int64_t>(batch.prefix_lens.size());
  if (batch_size == 0) return;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) tokens += batch.held_tokens(i);
  std::int64_t loops = 0;
  double on_device = 0, copied = 0;
  for (const PlanOptions& options : builds) {
    const std::int64_t needed = loops_needed(batch, options);
    const double table = static_cast<double>(needed) * static_cast<double>(4 * batch_size + 1) * 4;
    const double slots = static_cast<double>(tokens);
    on_device = std::max(on_device, table + slots * static_cast<double>(bytes(index_type)));
    copied += table + slots * 8 + static_cast<double>(needed) * 48;
    loops += needed;
  }
  require_memory("prefix_lens",
                 std::to_string(tokens) + " tokens of " + std::to_string(batch_size) +
                     " sequences in " + std::to_string(loops) + " loops",
                 on_device + copied);
}

struct Builder::State {
  const Kokkos::ScopeGuard kokkos{startup::kokkos_settings()};
  IndexType index_type = IndexType::int32;
  std::string execution_space;
  std::unique_ptr<DeviceBuilder> device;
  PlanOptions options;
  ChunkPlan plan;
};

Builder::Builder(IndexType index_type, const std::string& execution_space)
    : m_state(std::make_unique<State>()) {
  m_state->index_type = index_type;
  m_state->execution_space = execution_space;
  for (const auto& backend : backends()) {
    if (backend.name == execution_space) m_state->device = backend.make(index_type);
  }
}

Builder::~Builder() = default;

std::chrono::duration<double> Builder::build(const Batch& batch, const PlanOptions& options) {
  m_state->device->copy_in(batch);
  const auto begin = std::chrono::steady_clock::now();
  m_state->options = options;
  plan_chunks(batch.prefix_lens, options, m_state->plan);
  m_state->device->fill(m_state->plan);
  return std::chrono::steady_clock::now() - begin;
}

const ChunkPlan& Builder::plan() const { return m_state->plan; }

Build Builder::read_back() const {
  Build result;
  result.options = m_state->options;
  result.plan = m_state->plan;
  result.execution_space = m_state->execution_space;
  result.index_type = m_state->index_type;
  m_state->device->read_back(result);
  return result;
}

std::vector<Build> build(const Batch& batch, const PlanArguments& arguments) {
  std::vector<PlanOptions> wanted;
  for (const Policy policy : arguments.policies) {
    wanted.push_back({.chunk_capacity = batch.chunk_capacity,
                      .policy = policy,
                      .grain = policy == Policy::packed ? arguments.grain : 1,
                      .shard = batch.shard});
  }
  check_memory(batch, wanted, arguments.index_type);
  check_pages(batch, arguments.index_type);
  for (const PlanOptions& options : wanted) {
    (void)plan_chunks(batch.prefix_lens, options);  // refused before Kokkos starts
  }
  Builder builder(arguments.index_type, arguments.execution_space);
  std::vector<Build> builds;
  for (const PlanOptions& options : wanted) {
    builder.build(batch, options);
    builds.push_back(builder.read_back());
  }
  return builds;
}

}  // namespace chunked_prefill::cli
