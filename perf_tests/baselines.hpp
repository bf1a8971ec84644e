// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "workload.hpp"

// What a build is held against: an empty kernel, and plain fills of the bytes that its slots take.
namespace perf {

struct Nothing {
  KOKKOS_FUNCTION void operator()(int) const {}
};

template <class Space>
void empty_kernel(const Space& space) {
  Kokkos::parallel_for("perf::empty_kernel",
                       Kokkos::RangePolicy<Space, Kokkos::IndexType<int>>(space, 0, 1), Nothing());
}

template <class Space>
void fill_by_deep_copy(const Space& space, const Slots<Space>& slots) {
  Kokkos::deep_copy(space, slots, 0);
}

#ifdef KOKKOS_ENABLE_CUDA
inline void fill_by_memset(const Kokkos::Cuda& space, const Slots<Kokkos::Cuda>& slots) {
  cudaMemsetAsync(slots.data(), 0, slots.span() * sizeof(std::int32_t), space.cuda_stream());
}
#endif

/// On the host: each thread sets its even share.
template <class Space>
struct MemsetShare {
  Slots<Space> slots;
  std::size_t share;

  void operator()(int thread) const {
    const std::size_t begin = std::min(slots.size(), static_cast<std::size_t>(thread) * share);
    const std::size_t end = std::min(slots.size(), begin + share);
    std::memset(slots.data() + begin, 0, (end - begin) * sizeof(std::int32_t));
  }
};

template <class Space>
void fill_by_threads(const Space& space, const Slots<Space>& slots) {
  const int threads = space.concurrency();
  const std::size_t share = slots.size() / static_cast<std::size_t>(threads) + 1;
  Kokkos::parallel_for("perf::fill",
                       Kokkos::RangePolicy<Space, Kokkos::IndexType<int>>(space, 0, threads),
                       MemsetShare<Space>{slots, share});
}

template <class Space>
void fill_by_memset(const Space&, const Slots<Space>& slots) {
  std::memset(slots.data(), 0, slots.size() * sizeof(std::int32_t));
}

template <class Space>
struct PlainFill {
  const char* name;
  void (*enqueue)(const Space&, const Slots<Space>&);
};

/// Every plain fill that `Space` knows; benchmarks are held against the fastest.
template <class Space>
constexpr auto plain_fills() {}

}  // namespace perf
