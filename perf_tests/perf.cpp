// SPDX-License-Identifier: MIT
#include <benchmark/benchmark.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef CHUNKED_PREFILL_ATTENTION
#include "attention.hpp"
#endif
#include "cases.hpp"
#include "cuda.hpp"
#include "plain_fill.hpp"
#include "timing.hpp"
#include "workload.hpp"

#ifndef CHUNKED_PREFILL_REVISION
#define CHUNKED_PREFILL_REVISION "unknown"
#endif

namespace perf {
namespace {

struct Nothing {
  KOKKOS_FUNCTION void operator()(int) const {}
};

template <class Space>
void launch_nothing(const Space& space) {
  Kokkos::parallel_for("perf::empty_kernel",
                       Kokkos::RangePolicy<Space, Kokkos::IndexType<int>>(space, 0, 1), Nothing());
}

/// What the benchmarks of a case and policy share.
template <class Space>
struct Subject {
  Subject(const Case& of, const Policy& policy)
      : workload(of, policy), plain_fill(workload.space, workload.planned().total_tokens()) {}

  Workload<Space> workload;
  PlainFill<Space> plain_fill;
};

template <class Space>
void set_rate(benchmark::State& state, const Subject<Space>& subject, double seconds) {
  state.counters["bytes_per_second"] = static_cast<double>(subject.workload.bytes()) / seconds;
}

/// \param plain_seconds of the plain fill, measured right after the benchmark's own time.
template <class Space>
void set_counters(benchmark::State& state, Subject<Space>& subject, double seconds,
                  double plain_seconds) {
  Workload<Space>& workload = subject.workload;
  set_rate(state, subject, seconds);
  state.counters["fill_fraction"] = plain_seconds / seconds;
  state.counters["launches"] = count_launches([&] { workload.fill(workload.space); });
  state.counters["loops"] = workload.planned().chunked_loop_num();
}

template <class Space>
void time_empty_kernel(benchmark::State& state) {
  const Space space;
  measure(state, [&] {
    launch_nothing(space);
    space.fence("perf::empty_kernel");
  });
}

/// Counts the plan's time in two units of the host's own: one exclusive scan of the lengths, and
/// one writing of the plan's arrays.
template <class Space>
void time_plan(benchmark::State& state, Subject<Space>& subject) {
  const chunked_prefill::ChunkPlan& plan = subject.workload.planned();
  const std::vector<std::int32_t>& lens = subject.workload.prefix_lens();
  std::vector<std::int32_t> sums(lens.size());
  std::vector<std::int64_t> wide(plan.tokens_per_loop().size() + plan.offsets().size());
  std::vector<std::int32_t> narrow(
      plan.max_chunk_len_per_loop().size() + plan.seq_begin_per_loop().size() +
      plan.seq_end_per_loop().size() + plan.non_empty_seqs_per_loop().size());

  const double seconds = measure(state, [&] { subject.workload.plan(); });
  const double scan_seconds = seconds_per_call(state.iterations(), [&] {
    std::exclusive_scan(lens.begin(), lens.end(), sums.begin(), 0);
    benchmark::DoNotOptimize(sums.data());
    benchmark::ClobberMemory();
  });
  const double write_seconds = seconds_per_call(state.iterations(), [&] {
    std::fill(wide.begin(), wide.end(), 1);
    std::fill(narrow.begin(), narrow.end(), 1);
    benchmark::DoNotOptimize(wide.data());
    benchmark::DoNotOptimize(narrow.data());
    benchmark::ClobberMemory();
  });
  state.counters["exclusive_scans"] = seconds / scan_seconds;
  state.counters["array_writes"] = seconds / write_seconds;
  state.counters["loops"] = plan.chunked_loop_num();
}

template <class Space>
void time_memset(benchmark::State& state, Subject<Space>& subject) {
  const Space& space = subject.workload.space;
  const double seconds = measure(state, [&] {
    subject.plain_fill(space);
    space.fence("perf::memset");
  });
  set_rate(state, subject, seconds);
  state.SetLabel(subject.plain_fill.name());
}

template <class Space>
void time_deep_copy(benchmark::State& state, Subject<Space>& subject) {
  const Space& space = subject.workload.space;
  const auto source = make_slots<Space>("perf::source", subject.workload.planned().total_tokens());
  Kokkos::deep_copy(source, 1);
  const double seconds = measure(state, [&] {
    Kokkos::deep_copy(space, subject.plain_fill.slots(), source);
    space.fence("perf::deep_copy");
  });
  set_rate(state, subject, seconds);
}

template <class Space, class Work>
void time_against_fill(benchmark::State& state, Subject<Space>& subject, Work&& work) {
  const Space& space = subject.workload.space;
  const double seconds = measure(state, work);
  const double plain_seconds = seconds_per_call(state.iterations(), [&] {
    subject.plain_fill(space);
    space.fence("perf::plain_fill");
  });
  set_counters(state, subject, seconds, plain_seconds);
}

template <class Space>
void time_fill(benchmark::State& state, Subject<Space>& subject) {
  time_against_fill(state, subject, [&workload = subject.workload] {
    workload.fill(workload.space);
    workload.space.fence("perf::fill");
  });
}

template <class Space>
void time_checked_fill(benchmark::State& state, Subject<Space>& subject) {
  time_against_fill(state, subject, [&workload = subject.workload] {
    workload.checked_fill(workload.space);
    workload.space.fence("perf::checked_fill");
  });
}

template <class Space>
void time_build(benchmark::State& state, Subject<Space>& subject) {
  time_against_fill(state, subject, [&workload = subject.workload] {
    workload.plan();
    workload.fill(workload.space);
    workload.space.fence("perf::build");
  });
}

#ifdef KOKKOS_ENABLE_CUDA
void time_empty_kernel_graph(benchmark::State& state) {
  const Graph graph(launch_nothing<Kokkos::Cuda>);
  measure(
      state, [&] { graph.replay(); }, Graph::calls);
}

void time_memset_graph(benchmark::State& state, Subject<Kokkos::Cuda>& subject) {
  const Graph graph(subject.plain_fill);
  const double seconds = measure(
      state, [&] { graph.replay(); }, Graph::calls);
  set_rate(state, subject, seconds);
}

void time_graph(benchmark::State& state, Subject<Kokkos::Cuda>& subject) {
  const Graph graph([&](const Kokkos::Cuda& space) { subject.workload.fill(space); });
  const Graph plain_graph(subject.plain_fill);
  const double seconds = measure(
      state, [&] { graph.replay(); }, Graph::calls);
  const double plain_seconds = seconds_per_call(
      state.iterations() / Graph::calls, [&] { plain_graph.replay(); }, Graph::calls);
  set_counters(state, subject, seconds, plain_seconds);
}
#endif

/// Registers the benchmarks of all cases on one execution space. Their inputs are made when a case
/// first runs, and those of one case are held at a time.
template <class Space>
class Suite {
 public:
  explicit Suite(std::vector<Case> cases) : m_cases(std::move(cases)) {
    configure(benchmark::RegisterBenchmark("empty_kernel", time_empty_kernel<Space>));
#ifdef KOKKOS_ENABLE_CUDA
    if constexpr (on_cuda) {
      configure(benchmark::RegisterBenchmark("empty_kernel_graph", time_empty_kernel_graph));
    }
#endif
    for (const Case& of : m_cases) {
      add("memset/" + of.name, of, policies[0], time_memset<Space>);
      add("deep_copy/" + of.name, of, policies[0], time_deep_copy<Space>);
#ifdef KOKKOS_ENABLE_CUDA
      if constexpr (on_cuda) add("memset_graph/" + of.name, of, policies[0], time_memset_graph);
#endif
      for (const Policy& policy : policies) {
        const std::string name = "/" + of.name + "/" + policy.name;
        add("plan" + name, of, policy, time_plan<Space>);
        add("fill" + name, of, policy, time_fill<Space>);
        add("checked_fill" + name, of, policy, time_checked_fill<Space>);
        add("build" + name, of, policy, time_build<Space>);
#ifdef KOKKOS_ENABLE_CUDA
        if constexpr (on_cuda) add("graph" + name, of, policy, time_graph);
#endif
      }
    }
  }
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;

 private:
#ifdef KOKKOS_ENABLE_CUDA
  static constexpr bool on_cuda = std::is_same_v<Space, Kokkos::Cuda>;
#endif

  static void configure(auto* registered) { registered->Unit(benchmark::kMicrosecond); }

  void add(const std::string& name, const Case& of, const Policy& policy,
           void (*function)(benchmark::State&, Subject<Space>&)) {
    configure(benchmark::RegisterBenchmark(name.c_str(),
                                           [this, &of, &policy, function](benchmark::State& state) {
                                             function(state, subject(of, policy));
                                           }));
  }

  Subject<Space>& subject(const Case& of, const Policy& policy) {
    if (m_case != &of || m_policy != &policy) {
      m_subject.reset();
      m_subject = std::make_unique<Subject<Space>>(of, policy);
      m_case = &of;
      m_policy = &policy;
    }
    return *m_subject;
  }

  std::vector<Case> m_cases;
  std::unique_ptr<Subject<Space>> m_subject;
  const Case* m_case = nullptr;      ///< of m_subject
  const Policy* m_policy = nullptr;  ///< of m_subject
};

/// The processor's name; a device whose name Kokkos does not tell goes by its backend's.
template <class Space>
std::string device_name(const Space& space) {
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (std::is_same_v<Space, Kokkos::Cuda>) return space.cuda_device_prop().name;
#endif
  static_cast<void>(space);
  if constexpr (std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>) {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
      if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    }
  }
  return Space::name();
}

template <class Space>
bool run_if_named(const std::string& name, const std::string& cases) {
  if (name != Space::name()) return false;
  const Space space;
  benchmark::AddCustomContext("backend", name);
  benchmark::AddCustomContext("device", device_name(space));
  benchmark::AddCustomContext("threads", std::to_string(space.concurrency()));
  benchmark::AddCustomContext("kokkos_version", std::to_string(KOKKOS_VERSION_MAJOR) + "." +
                                                    std::to_string(KOKKOS_VERSION_MINOR) + "." +
                                                    std::to_string(KOKKOS_VERSION_PATCH));
  benchmark::AddCustomContext("version", chunked_prefill::version);
  benchmark::AddCustomContext("revision", CHUNKED_PREFILL_REVISION);
  const Suite<Space> suite(read_cases(cases));
#ifdef CHUNKED_PREFILL_ATTENTION
  register_attention<Space>();
#endif
  benchmark::RunSpecifiedBenchmarks();
  return true;
}

/// Takes `flag` (`--name=`) out of the arguments; returns its value, or `value` where it is absent.
std::string take_flag(int& argc, char** argv, std::string_view flag, std::string value) {
  const auto end = std::remove_if(argv + 1, argv + argc, [&](std::string_view argument) {
    if (!argument.starts_with(flag)) return false;
    value = argument.substr(flag.size());
    return true;
  });
  argc = static_cast<int>(end - argv);
  return value;
}

int run(int argc, char** argv) {
  const std::string cases = take_flag(argc, argv, "--cases=", CHUNKED_PREFILL_PERF_CASES);
  const std::string space =
      take_flag(argc, argv, "--execution-space=", Kokkos::DefaultExecutionSpace::name());
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const bool ran = run_if_named<Kokkos::DefaultExecutionSpace>(space, cases) ||
#ifdef KOKKOS_ENABLE_SERIAL
                   run_if_named<Kokkos::Serial>(space, cases) ||
#endif
                   run_if_named<Kokkos::DefaultHostExecutionSpace>(space, cases);
  if (ran) return 0;
  std::fprintf(stderr, "--execution-space=%s: Kokkos was not built with it\n", space.c_str());
  return 2;
}

void print_help() {
  std::puts(
      "chunked_prefill_perf [--execution-space=NAME] [--cases=FILE]\n"
      "          [--benchmark_... as below] [--kokkos-... as --kokkos-help says]\n"
      "\n"
      "Measures the library on the batches of FILE, on Kokkos's default execution space or "
      "NAME.\n");
  benchmark::PrintDefaultHelp();
}

}  // namespace
}  // namespace perf

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv, perf::print_help);
  const Kokkos::ScopeGuard guard(argc, argv);
  try {
    return perf::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "chunked_prefill_perf: %s\n", error.what());
    return 1;
  }
}
