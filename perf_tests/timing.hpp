// SPDX-License-Identifier: MIT
#pragma once

#include <benchmark/benchmark.h>

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace perf {

/// Mean seconds of one call in `turns` turns of `work`, each of which makes `calls`.
template <class Work>
double seconds_per_call(std::int64_t turns, Work&& work, int calls = 1) {
  const Kokkos::Timer timer;
  for (std::int64_t turn = 0; turn < turns; ++turn) work();
  return timer.seconds() / static_cast<double>(turns * calls);
}

/// The same over as many calls as `state` asks for, after one turn of warming up.
template <class Work>
double measure(benchmark::State& state, Work&& work, int calls = 1) {
  work();
  const Kokkos::Timer timer;
  while (state.KeepRunningBatch(calls)) work();
  return timer.seconds() / static_cast<double>(state.iterations());
}

/// How many kernels `work` launches, as Kokkos reports them to tools.
template <class Work>
int count_launches(Work&& work) {
  namespace tools = Kokkos::Tools::Experimental;
  static int launches;
  launches = 0;
  const auto count = [](const char*, std::uint32_t, std::uint64_t*) { ++launches; };
  const auto callbacks = tools::get_callbacks();
  tools::set_begin_parallel_for_callback(count);
  tools::set_begin_parallel_reduce_callback(count);
  tools::set_begin_parallel_scan_callback(count);
  work();
  tools::set_callbacks(callbacks);
  return launches;
}

}  // namespace perf
