// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <atomic>
#include <barrier>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../batch.hpp"
#include "../draw.hpp"
#include "../execution_spaces.hpp"
#include "address_sanitizer.hpp"

// The same batches built over and over in the same buffers: nothing grows, no result drifts.
namespace test {

/// Adds to a checksum that tells values and their places, in any order of adding.
KOKKOS_INLINE_FUNCTION std::uint64_t checksum_of(std::uint64_t place, std::int64_t value) {
  std::uint64_t mixed = static_cast<std::uint64_t>(value) + (place + 1) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
  return mixed ^ mixed >> 32;
}

/// All that a build gives, as one sequence of numbers: the chunk table, the offsets, the slots.
template <class MemorySpace, class Slot>
struct BuiltNumbers {
  const std::int32_t *starts, *ends, *len_in_chunk, *cum_seq_lens;
  const std::int64_t* offsets;
  const Slot* slots;
  std::int64_t chunks, sums, loops, tokens;  ///< elements

  BuiltNumbers(const cp::ChunkPlan& plan,
               const cp::ChunkedPrefillMetadata<MemorySpace, Slot>& metadata)
      : offsets(metadata.offsets().data()),
        slots(metadata.chunk_kv_indices().data()),
        chunks(std::int64_t{plan.chunked_loop_num()} * plan.batch_size()),
        sums(chunks + plan.chunked_loop_num()),
        loops(plan.chunked_loop_num()),
        tokens(plan.total_tokens()) {
    const auto table = metadata.chunks();
    starts = table.starts.data();
    ends = table.ends.data();
    len_in_chunk = table.len_in_chunk.data();
    cum_seq_lens = table.cum_seq_lens.data();
  }

  [[nodiscard]] std::int64_t count() const { return 3 * chunks + sums + loops + tokens; }
  KOKKOS_FUNCTION std::int64_t at(std::int64_t k) const {
    if (k < chunks) return starts[k];
    if ((k -= chunks) < chunks) return ends[k];
    if ((k -= chunks) < chunks) return len_in_chunk[k];
    if ((k -= chunks) < sums) return cum_seq_lens[k];
    if ((k -= sums) < loops) return offsets[k];
    return slots[k - loops];
  }
  KOKKOS_FUNCTION void operator()(std::int64_t k, std::uint64_t& sum) const {
    sum += checksum_of(static_cast<std::uint64_t>(k), at(k));
  }
};

/// The checksum that a build must have.
[[nodiscard]] inline std::uint64_t expected_checksum(const Result& expected) {
  std::uint64_t place = 0, sum = 0;
  const auto add = [&](std::int64_t value) { sum += checksum_of(place++, value); };
  for (const auto* rows :
       {&expected.starts, &expected.ends, &expected.len_in_chunk, &expected.cum_seq_lens}) {
    for (const auto& row : *rows) std::ranges::for_each(row, add);
  }
  std::int64_t offset = 0;
  for (const auto& loop : expected.chunk_kv_indices) {
    add(offset);
    offset += std::ssize(loop);
  }
  for (const auto& loop : expected.chunk_kv_indices) std::ranges::for_each(loop, add);
  return sum;
}

/// Counts what Kokkos allocates, for as long as it is.
class AllocationCount {
 public:
  AllocationCount() {
    s_count = 0;
    // Kokkos announces the team scratch of every team launch, of 0 bytes where none is used.
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos_Profiling_SpaceHandle, const char*, const void*, std::uint64_t bytes) {
          if (bytes > 0) ++s_count;
        });
  }
  ~AllocationCount() { Kokkos::Tools::Experimental::pause_tools(); }
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;

  [[nodiscard]] static std::int64_t now() { return s_count; }

 private:
  static inline std::atomic<std::int64_t> s_count;
};

/// What the process holds in memory, in bytes; 0 where the system does not tell.
[[nodiscard]] inline std::int64_t resident_bytes() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// One host thread's part: an instance, buffers and a plan of its own.
template <class Space>
class SoakThread {
 public:
  using MemorySpace = typename Space::memory_space;
  using Sums = cp::Array1D<std::uint64_t, MemorySpace>;

  /// \param from which of the batches the thread begins with.
  SoakThread(const Space& space, const std::vector<Case>& cases, std::size_t from)
      : m_space(space),
        m_sums("test::sums", cases.size()),
        m_sums_host(Kokkos::create_mirror_view(m_sums)) {
    for (std::size_t k = 0; k < cases.size(); ++k) {
      const Case& of = cases[(from + k) % cases.size()];
      m_subjects.push_back({of,
                            DeviceBatch<MemorySpace>(of.batch, static_cast<std::size_t>(of.spare)),
                            cp::bounding_shape({.batch_size = std::ssize(of.batch.prefix_lens),
                                                .max_prefix_len = of.longest(),
                                                .total_tokens = of.tokens()},
                                               of.batch.options()),
                            expected_checksum(oracle(of.batch))});
    }
  }

  /// Builds every batch once, `captured` as a replayed build does. \returns what is wrong.
  std::string round(bool captured) {
    for (std::size_t k = 0; k < m_subjects.size(); ++k) {
      const Subject& subject = m_subjects[k];
      if (subject.of.wide_slots) {
        build(subject, captured, std::get<1>(m_metadata), k);
      } else {
        build(subject, captured, std::get<0>(m_metadata), k);
      }
    }
    Kokkos::deep_copy(m_space, m_sums_host, m_sums);
    m_space.fence("test::soak");
    for (std::size_t k = 0; k < m_subjects.size(); ++k) {
      if (m_sums_host(k) != m_subjects[k].checksum) {
        return "batch " + std::to_string(k) + ": the checksum is not the oracle's";
      }
    }
    return "";
  }

  /// Makes the expectation of a batch another, so that a round fails.
  void spoil() { ++m_subjects.front().checksum; }

 private:
  struct Subject {
    Case of;
    DeviceBatch<MemorySpace> device;
    cp::ChunkShape shape;
    std::uint64_t checksum;
  };

  template <class Slot>
  void build(const Subject& subject, bool captured,
             cp::ChunkedPrefillMetadata<MemorySpace, Slot>& metadata, std::size_t k) {
    cp::plan_chunks(subject.of.batch.prefix_lens, subject.of.batch.options(), m_plan);
    if (captured) {
      cp::fill(m_space, subject.shape, subject.device.prefix(), metadata);
      metadata.resize_within(m_plan, subject.shape);
    } else {
      cp::fill(m_space, m_plan, subject.device.prefix(), metadata);
    }
    const BuiltNumbers<MemorySpace, Slot> numbers(m_plan, metadata);
    if constexpr (std::is_same_v<MemorySpace, Kokkos::HostSpace>) {  // no other threads to wake
      m_space.fence("test::soak");
      std::uint64_t sum = 0;
      for (std::int64_t at = 0; at < numbers.count(); ++at) numbers(at, sum);
      m_sums(k) = sum;
    } else {
      using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
      Kokkos::parallel_reduce(
          "test::checksum", Policy(m_space, 0, numbers.count()), numbers,
          Kokkos::View<std::uint64_t, MemorySpace, Kokkos::MemoryUnmanaged>(m_sums.data() + k));
    }
  }

  Space m_space;
  std::vector<Subject> m_subjects;
  cp::ChunkPlan m_plan;
  std::tuple<cp::ChunkedPrefillMetadata<MemorySpace, std::int32_t>,
             cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t>>
      m_metadata;
  Sums m_sums;
  decltype(Kokkos::create_mirror_view(std::declval<Sums>())) m_sums_host;
};

/// What a soak found after its warm-up.
struct SoakReport {
  std::int64_t builds = 0;
  int threads = 0;
  std::int64_t allocations = 0;     ///< of Kokkos
  std::int64_t resident_bytes = 0;  ///< how much more there are
  std::string failure;              ///< empty when all is as it must be
};

/// The batches that a soak builds: drawn, and small but for a few.
[[nodiscard]] inline std::vector<Case> soak_cases(std::uint64_t seed, std::size_t count) {
  std::vector<Case> cases;
  for (std::uint64_t number = 0; cases.size() < count; ++number) {
    Case drawn = draw_case(seed, number);
    if (drawn.tokens() > 2000 && number % 8 != 0) continue;
    drawn.more_longest = 0;
    cases.push_back(std::move(drawn));
  }
  return cases;
}

/// Builds `cases` in rounds, `count` builds in all by `threads` host threads.
/// \param progress is told the share that is done, by one of them.
template <class Space>
[[nodiscard]] SoakReport soak(const std::vector<Case>& cases, std::int64_t count, int threads,
                              const std::function<void(double)>& progress = {},
                              bool spoil = false) {
  const auto spaces = instances<Space>(threads);
  threads = static_cast<int>(spaces.size());
  std::vector<std::unique_ptr<SoakThread<Space>>> parts;
  for (std::size_t t = 0; t < spaces.size(); ++t) {
    parts.push_back(
        std::make_unique<SoakThread<Space>>(spaces[t], cases, t * cases.size() / spaces.size()));
  }
  // Both kinds of rounds in which buffers grow, and twice, for what the system itself keeps.
  constexpr std::int64_t warm_rounds = 8;
  const std::int64_t a_round = std::ssize(cases) * threads;
  const std::int64_t rounds =
      warm_rounds + std::max<std::int64_t>(1, (count + a_round - 1) / a_round);
  SoakReport report;
  report.builds = rounds * a_round;
  report.threads = threads;

  const AllocationCount allocations;
  struct Measured {
    std::int64_t allocations, resident;
  };
  std::vector<Measured> measured;
  measured.reserve(2);
  const auto measure = [&]() noexcept {
    measured.push_back({AllocationCount::now(), resident_bytes()});
  };
  std::barrier together(threads, measure);
  std::vector<std::string> failures(parts.size());
  const auto work = [&](std::size_t t) {
    const auto run = [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t round = from; round < to && failures[t].empty(); ++round) {
        try {
          if (spoil && round + 1 == rounds) parts[t]->spoil();
          failures[t] = parts[t]->round(round % 2 == 1);
        } catch (const std::exception& error) {
          failures[t] = error.what();
        }
        if (!failures[t].empty())
          failures[t] = "round " + std::to_string(round) + ": " + failures[t];
        if (t == 0 && progress) progress(static_cast<double>(round) / static_cast<double>(rounds));
      }
    };
    run(0, warm_rounds);
    together.arrive_and_wait();
    run(warm_rounds, rounds);
    together.arrive_and_wait();
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < parts.size(); ++t) others.emplace_back(work, t);
    work(0);
  }

  report.allocations = measured[1].allocations - measured[0].allocations;
  report.resident_bytes = measured[1].resident - measured[0].resident;
  constexpr std::int64_t slack = 1 << 20;  // pages that the system brings in late
  constexpr bool keeps_freed_memory = under_address_sanitizer;
  for (std::size_t t = 0; t < failures.size() && report.failure.empty(); ++t) {
    if (!failures[t].empty()) report.failure = "thread " + std::to_string(t) + ", " + failures[t];
  }
  if (report.failure.empty() && report.allocations != 0) {
    report.failure = std::to_string(report.allocations) + " allocations after the warm-up";
  }
  if (report.failure.empty() && report.resident_bytes > slack && !keeps_freed_memory) {
    report.failure = "resident memory grew by " + std::to_string(report.resident_bytes) + " bytes";
  }
  return report;
}

}  // namespace test
