// SPDX-License-Identifier: MIT
#pragma once

#include <benchmark/benchmark.h>

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/gather_rows.hpp>
#include <chunked_prefill/attention/merge_states.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "timing.hpp"
#include "workload.hpp"

// The attention component beside a deep_copy that reads and writes as many bytes.

namespace perf {

/// A deep_copy that moves `bytes`, half of them read.
template <class Space>
class Copy {
 public:
  explicit Copy(std::size_t bytes)
      : m_from(make("perf::from", bytes)), m_to(make("perf::to", bytes)) {
    Kokkos::deep_copy(m_from, 1);
  }
  void operator()(const Space& space) const { Kokkos::deep_copy(space, m_to, m_from); }

 private:
  static Slots<Space> make(const char* label, std::size_t bytes) {
    return make_slots<Space>(label, static_cast<std::int64_t>(bytes / 2 / sizeof(std::int32_t)));
  }
  Slots<Space> m_from, m_to;
};

/// Times `work`, which moves `bytes`, and then the copy.
template <class Space, class Work>
void time_against_copy(benchmark::State& state, const Space& space, std::size_t bytes,
                       Work&& work) {
  const double seconds = measure(state, [&] {
    work();
    space.fence("perf::attention");
  });
  const Copy<Space> copy(bytes);
  const auto copy_once = [&] {
    copy(space);
    space.fence("perf::copy");
  };
  copy_once();
  const double copy_seconds = seconds_per_call(state.iterations(), copy_once);
  state.counters["bytes_per_second"] = static_cast<double>(bytes) / seconds;
  state.counters["deep_copy_fraction"] = copy_seconds / seconds;
}

template <class T, class Space>
auto make_matrix(std::size_t rows, std::size_t columns) {
  const cp::Array2D<T, typename Space::memory_space> matrix("perf::matrix", rows, columns);
  Kokkos::deep_copy(matrix, T(1.0F));
  return matrix;
}

/// One loop's rows of 512 + 64 elements, from shuffled pages of 64 tokens.
template <class Space, class From, class To>
void time_gather_rows(benchmark::State& state) {
  constexpr std::int32_t page_size = 64;
  const bool on_host = std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>;
  const std::size_t pages = on_host ? 512 : 2048;
  const Space space;
  const auto order = shuffled(pages, pages);
  std::vector<std::int32_t> host_slots;
  for (const std::int32_t page : order) {
    for (std::int32_t k = 0; k < page_size; ++k) host_slots.push_back(page * page_size + k);
  }
  const auto slots = copied<Space>(host_slots);
  const std::size_t tokens = host_slots.size();
  const auto cache = make_matrix<From, Space>(tokens, 576);
  const auto latent = make_matrix<To, Space>(tokens, 512);
  const auto rope = make_matrix<To, Space>(tokens, 64);
  time_against_copy(state, space, tokens * 576 * (sizeof(From) + sizeof(To)),
                    [&] { cp::gather_rows(space, cache, slots, latent, rope); });
}

/// Partial results of 128 heads of 128 values, merged in place.
template <class Space, class T>
void time_merge_states(benchmark::State& state) {
  using MemorySpace = typename Space::memory_space;
  const bool on_host = std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>;
  const std::size_t tokens = on_host ? 512 : 4096;
  const Space space;
  const auto make = [&] {
    const Kokkos::View<T***, Kokkos::LayoutRight, MemorySpace> values("perf::values", tokens, 128,
                                                                      128);
    const Kokkos::View<float**, Kokkos::LayoutRight, MemorySpace> lse("perf::lse", tokens, 128);
    Kokkos::deep_copy(values, T(1.0F));
    return cp::AttentionState{values, lse};
  };
  const auto a = make(), b = make();
  time_against_copy(state, space, tokens * 128 * (3 * 128 * sizeof(T) + 3 * sizeof(float)),
                    [&] { cp::merge_states(space, a, b, a); });
}

template <class Space>
void register_attention() {
  const auto add = [](const std::string& name, void (*function)(benchmark::State&)) {
    benchmark::RegisterBenchmark(name.c_str(), function)->Unit(benchmark::kMicrosecond);
  };
  add("gather_rows/bf16", time_gather_rows<Space, cp::BFloat16, cp::BFloat16>);
  add("gather_rows/fp32", time_gather_rows<Space, float, float>);
  add("gather_rows/fp8_to_bf16", time_gather_rows<Space, cp::Float8E4M3, cp::BFloat16>);
  add("gather_rows/bf16_to_fp32", time_gather_rows<Space, cp::BFloat16, float>);
  add("gather_rows/fp16_to_fp32", time_gather_rows<Space, cp::Float16, float>);
  add("merge_states/fp32", time_merge_states<Space, float>);
  add("merge_states/bf16", time_merge_states<Space, cp::BFloat16>);
  add("merge_states/fp16", time_merge_states<Space, cp::Float16>);
}

}  // namespace perf
