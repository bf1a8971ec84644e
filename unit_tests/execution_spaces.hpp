// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <string>
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

/// Two instances that run side by side, where there are threads for both.
template <class Space>
std::vector<Space> two_instances() {
  const Space space;
  if (space.concurrency() < 2) return {space, space};
  // A vector in older releases of Kokkos, an array in newer ones.
  const auto parts = Kokkos::Experimental::partition_space(space, 1, 1);
  return {parts[0], parts[1]};
}

}  // namespace test
