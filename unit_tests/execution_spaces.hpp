// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

namespace test {

/// Every execution space that Kokkos was built with; each typed test runs on each.
using ExecutionSpaces = ::testing::Types<
#ifdef KOKKOS_ENABLE_CUDA
    Kokkos::Cuda,
#endif
#ifdef KOKKOS_ENABLE_HIP
    Kokkos::HIP,
#endif
#ifdef KOKKOS_ENABLE_SYCL
    Kokkos::SYCL,
#endif
#if defined(KOKKOS_ENABLE_SERIAL) && \
    (defined(KOKKOS_ENABLE_OPENMP) || defined(KOKKOS_ENABLE_THREADS))
    Kokkos::Serial,
#endif
    Kokkos::DefaultHostExecutionSpace>;

struct SpaceName {
  template <class Space>
  static std::string GetName(int) {
    return Space::name();
  }
};

/// `count` instances that run side by side, each driven by any one host thread, or as many as a
/// host has threads for, with the threads shared out among them.
template <class Space>
std::vector<Space> instances(int count) {
  const Space space;
  // Instances of Kokkos::Serial run on whoever calls.
  bool by_caller = false;
#ifdef KOKKOS_ENABLE_SERIAL
  by_caller = std::is_same_v<Space, Kokkos::Serial>;
#endif
  if (!by_caller) count = std::min(count, space.concurrency());
  // A vector in older releases of Kokkos, an array for weights one by one in newer ones.
  const auto parts = Kokkos::Experimental::partition_space(
      space, std::vector<int>(static_cast<std::size_t>(count), 1));
  if (count > 1 && parts[0] == parts[1]) return {space};  // Kokkos::Threads has one instance
  return {parts.begin(), parts.end()};
}

/// Two instances that run side by side, where there are threads for both.
template <class Space>
std::vector<Space> two_instances() {
  auto two = instances<Space>(2);
  two.resize(2, two.front());
  return two;
}

}  // namespace test
