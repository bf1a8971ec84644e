// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <string>

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

}  // namespace test
