// SPDX-License-Identifier: MIT
#include "attention.hpp"

#include <Kokkos_Core.hpp>
#include <chrono>
#include <chunked_prefill/attention/prefix_attention.hpp>
#include <chunked_prefill/fill.hpp>
#include <utility>

#include "../startup/kokkos_settings.hpp"
#include "device.hpp"

namespace chunked_prefill::cli {
namespace {

std::size_t size(std::int64_t extent) { return static_cast<std::size_t>(extent); }

MlaShape shape_of(const AttendArguments& arguments) {
  const auto narrow = [](std::int64_t extent) { return static_cast<std::int32_t>(extent); };
  return {.num_heads = narrow(arguments.heads),
          .nope_dim = narrow(arguments.nope_dim),
          .rope_dim = narrow(arguments.rope_dim),
          .value_dim = narrow(arguments.value_dim),
          .latent_dim = narrow(arguments.latent_dim)};
}

/// Where each sequence's new tokens begin.
std::vector<std::int32_t> cumulative(std::size_t batch_size, std::int64_t new_tokens) {
  std::vector<std::int32_t> cum(batch_size + 1);
  for (std::size_t i = 1; i <= batch_size; ++i) {
    cum[i] = cum[i - 1] + static_cast<std::int32_t>(new_tokens);
  }
  return cum;
}

/// Takes the time of one stage after another, each until the device is done.
template <class Space>
class StageClock {
 public:
  StageClock(const Space& space, StageSeconds& seconds) : m_space(space), m_seconds(seconds) {}

  void start() {
    m_space.fence("chunked_prefill::cli::attend");
    m_begin = std::chrono::steady_clock::now();
  }
  void stop(std::size_t stage) {
    m_space.fence("chunked_prefill::cli::attend");
    const auto now = std::chrono::steady_clock::now();
    m_seconds[stage] += std::chrono::duration<double>(now - m_begin).count();
    m_begin = now;
  }

 private:
  const Space& m_space;
  StageSeconds& m_seconds;
  std::chrono::steady_clock::time_point m_begin{};
};

/// Kokkos is there before what is derived from this, and until after it.
struct AttentionWithKokkos : Attention {
  const Kokkos::ScopeGuard kokkos{startup::kokkos_settings()};
};

template <class Space, class Element>
class AttentionOn : public AttentionWithKokkos {
 public:
  AttentionOn(const Batch& batch, const AttendArguments& arguments, const AttentionData& data,
              std::int64_t slots, Normal values)
      : m_lens(batch.prefix_lens),
        m_batch(batch),
        m_layer{shape_of(arguments), {}, data.softmax_scale},
        m_workspace(m_layer.shape, batch.chunk_capacity,
                    std::ssize(batch.prefix_lens) * arguments.new_tokens) {
    const MlaShape& shape = m_layer.shape;
    const std::size_t batch_size = batch.prefix_lens.size();
    const std::size_t query_tokens = batch_size * size(arguments.new_tokens);
    const std::size_t row_dim = size(shape.latent_dim + shape.rope_dim);
    m_layer.kv_b = Matrix<float>("chunked_prefill::cli::kv_b", size(shape.latent_dim),
                                 size(shape.key_value_columns()));
    copy_in(m_layer.kv_b, data.kv_b);
    const Array3D<float, MemorySpace> query("chunked_prefill::cli::query", query_tokens,
                                            size(shape.num_heads), size(shape.query_dim()));
    copy_in(query, data.query);
    const Array1D<std::int32_t, MemorySpace> cum_query_lens("chunked_prefill::cli::cum_query_lens",
                                                            batch_size + 1);
    copy_in(cum_query_lens, cumulative(batch_size, arguments.new_tokens));
    m_queries = {query, cum_query_lens};
    m_rows = Matrix<float>("chunked_prefill::cli::rows", query_tokens, row_dim);
    copy_in(m_rows, data.rows);
    m_state.values = decltype(m_state.values)("chunked_prefill::cli::values", query_tokens,
                                              size(shape.num_heads), size(shape.value_dim));
    m_state.lse =
        decltype(m_state.lse)("chunked_prefill::cli::lse", query_tokens, size(shape.num_heads));

    m_cache = Matrix<Element>(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "chunked_prefill::cli::cache"), size(slots),
        row_dim);
    m_cached = Kokkos::create_mirror_view(m_cache);
    for (std::size_t k = 0; k < m_cached.size(); ++k) m_cached.data()[k] = Element(values());
    Kokkos::deep_copy(m_cache, m_cached);
  }

  void cached_row(std::int64_t slot, std::span<float> row) const override {
    for (std::size_t k = 0; k < row.size(); ++k) {
      row[k] = static_cast<float>(m_cached(size(slot), k));
    }
  }
  [[nodiscard]] std::int64_t workspace_bytes() const override {
    return static_cast<std::int64_t>(m_workspace.bytes());
  }

  AttentionResult run(const PlanOptions& options,
                      const std::function<void(std::int64_t, std::int64_t)>& after_loop) override {
    use_once(options);
    AttentionResult result;
    StageClock clock(m_space, result.seconds);
    clock.start();
    ChunkPlan plan = plan_chunks(m_lens, options);
    fill(m_space, plan, m_batch.prefix(), m_metadata);
    clock.stop(0);

    result.loops = plan.chunked_loop_num();
    std::int64_t loop = 0;
    const auto after_stage = [&](AttentionStage stage) {
      clock.stop(1 + static_cast<std::size_t>(stage));
      if (stage != AttentionStage::merge) return;
      after_loop(++loop, result.loops);
      clock.start();
    };
    clear_state(m_space, m_state);
    clock.start();
    attend_prefix(m_space, plan, m_metadata, m_cache, 1, m_layer, m_queries, m_workspace, m_state,
                  after_stage);
    attend_to_new_tokens(
        [&](AttentionStage stage) { clock.stop(1 + static_cast<std::size_t>(stage)); });
    result.values = to_host<float>(m_state.values);
    result.lse = to_host<float>(m_state.lse);
    return result;
  }

 private:
  using MemorySpace = typename Space::memory_space;
  template <class T>
  using Matrix = Array2D<T, MemorySpace>;

  template <class View, class T>
  static void copy_in(const View& to, const std::vector<T>& from) {
    Kokkos::deep_copy(Kokkos::View<typename View::value_type*, MemorySpace>(to.data(), to.size()),
                      Kokkos::View<const T*, Kokkos::HostSpace>(from.data(), from.size()));
  }

  template <class AfterStage>
  void attend_to_new_tokens(const AfterStage& after_stage) const {
    const auto latent_dim = size(m_layer.shape.latent_dim);
    attend_new_tokens(m_space,
                      Kokkos::subview(m_rows, Kokkos::ALL, std::pair(std::size_t{0}, latent_dim)),
                      Kokkos::subview(m_rows, Kokkos::ALL, std::pair(latent_dim, m_rows.extent(1))),
                      m_layer, m_queries, m_workspace, m_state, after_stage);
  }

  /// Grows buffers, touches memory and loads kernels, so that no stage is timed doing it.
  void use_once(const PlanOptions& options) {
    const ChunkPlan plan = plan_chunks(m_lens, options);
    fill(m_space, plan, m_batch.prefix(), m_metadata);
    const auto keys = m_workspace.keys(m_workspace.chunk_capacity());
    Kokkos::deep_copy(m_space, keys.latent, 0);
    Kokkos::deep_copy(m_space, keys.rope, 0);
    Kokkos::deep_copy(m_space, keys.key_values, 0);
    if (plan.chunked_loop_num() > 0) {
      const auto first = m_workspace.keys(plan.tokens(0));
      gather_rows(m_space, m_cache, m_metadata.chunk_kv_indices(0), first.latent, first.rope);
    }
    clear_state(m_space, m_state);
    attend_to_new_tokens([](AttentionStage) {});
  }

  const Space m_space{};
  const std::vector<std::int32_t>& m_lens;
  DeviceBatch<MemorySpace> m_batch;
  MlaLayer<MemorySpace> m_layer;
  QueryBatch<MemorySpace> m_queries;
  AttentionWorkspace<MemorySpace> m_workspace;
  typename AttentionWorkspace<MemorySpace>::State m_state;
  Matrix<float> m_rows;
  Matrix<Element> m_cache;
  typename Matrix<Element>::host_mirror_type m_cached;
  ChunkedPrefillMetadata<MemorySpace, std::int64_t> m_metadata;
};

template <class Space, class... Args>
std::unique_ptr<Attention> make(CacheType type, Args&&... args) {
  switch (type) {
    case CacheType::fp32:
      return std::make_unique<AttentionOn<Space, float>>(args...);
    case CacheType::bf16:
      return std::make_unique<AttentionOn<Space, BFloat16>>(args...);
    case CacheType::fp16:
      return std::make_unique<AttentionOn<Space, Float16>>(args...);
    case CacheType::fp8:
      break;
  }
  return std::make_unique<AttentionOn<Space, Float8E4M3>>(args...);
}

}  // namespace

bool has_attention() { return true; }

std::unique_ptr<Attention> make_attention(const Batch& batch, const AttendArguments& arguments,
                                          const AttentionData& data, std::int64_t slots,
                                          Normal values) {
  std::unique_ptr<Attention> attention;
  for_each_execution_space([&]<class Space>() {
    if (arguments.execution_space != Space::name()) return;
    attention = make<Space>(arguments.cache_type, batch, arguments, data, slots, values);
  });
  return attention;
}

}  // namespace chunked_prefill::cli
