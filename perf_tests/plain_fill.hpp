// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "cuda.hpp"
#include "timing.hpp"
#include "workload.hpp"

namespace perf {

template <class Space>
void fill_by_deep_copy(const Space& space, const Slots<Space>& slots) {
  Kokkos::deep_copy(space, slots, 0);
}

/// Host spaces: the calling thread alone.
template <class Space>
void fill_by_memset(const Space&, const Slots<Space>& slots) {
  std::memset(slots.data(), 0, slots.size() * sizeof(std::int32_t));
}

#ifdef KOKKOS_ENABLE_CUDA
inline void fill_by_cuda_memset(const Kokkos::Cuda& space, const Slots<Kokkos::Cuda>& slots) {
  check(cudaMemsetAsync(slots.data(), 0, slots.size() * sizeof(std::int32_t), space.cuda_stream()));
}
#endif

/// Host spaces: an even share of the slots for each thread.
struct MemsetShare {
  std::int32_t* slots;
  std::size_t count;
  std::size_t share;

  void operator()(int thread) const {
    const std::size_t begin = std::min(count, static_cast<std::size_t>(thread) * share);
    std::memset(slots + begin, 0, std::min(share, count - begin) * sizeof(std::int32_t));
  }
};

template <class Space>
void fill_by_threads(const Space& space, const Slots<Space>& slots) {
  const int threads = space.concurrency();
  Kokkos::parallel_for("perf::fill_by_threads",
                       Kokkos::RangePolicy<Space, Kokkos::IndexType<int>>(space, 0, threads),
                       MemsetShare{slots.data(), slots.size(),
                                   slots.size() / static_cast<std::size_t>(threads) + 1});
}

/// The fastest plain fill of as many slots as a build writes.
template <class Space>
class PlainFill {
 public:
  PlainFill(const Space& space, std::int64_t count)
      : m_slots(make_slots<Space>("perf::plain_fill", count)) {
    std::vector<Way> ways;
    if constexpr (std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>) {
      ways = {{"memset", fill_by_memset<Space>}, {"memset by all threads", fill_by_threads<Space>}};
    } else {
      ways = {{"deep_copy", fill_by_deep_copy<Space>}};
    }
#ifdef KOKKOS_ENABLE_CUDA
    if constexpr (std::is_same_v<Space, Kokkos::Cuda>) {
      ways.push_back({"cudaMemsetAsync", fill_by_cuda_memset});
    }
#endif
    // In turns and for a while, so that a passing disturbance does not pick the slower one.
    const Kokkos::Timer timer;
    double best = std::numeric_limits<double>::infinity();
    for (int turn = 0; turn < 20 || timer.seconds() < 0.2; ++turn) {
      for (const Way& way : ways) {
        const double seconds = seconds_per_call(1, [&] {
          way.enqueue(space, m_slots);
          space.fence("perf::PlainFill");
        });
        if (seconds < best) {
          best = seconds;
          m_way = way;
        }
      }
    }
  }

  void operator()(const Space& space) const { m_way.enqueue(space, m_slots); }
  [[nodiscard]] const char* name() const { return m_way.name; }
  [[nodiscard]] const Slots<Space>& slots() const { return m_slots; }

 private:
  struct Way {
    const char* name;
    void (*enqueue)(const Space&, const Slots<Space>&);
  };
  Slots<Space> m_slots;
  Way m_way = {};
};

}  // namespace perf
