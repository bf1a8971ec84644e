// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <concepts>
#include <cstdint>
#include <ranges>

namespace chunked_prefill {

/// A Kokkos execution space whose instances this library may launch on.
template <class T>
concept ExecutionSpace = Kokkos::is_execution_space_v<T>;

/// Type of an engine's lengths and request rows on the device.
template <class T>
concept Index = std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t>;

/// A batch's lengths on the host: a vector, array or span of int32 or int64.
template <class T>
concept HostLengths = std::ranges::contiguous_range<T> && std::ranges::sized_range<T> &&
    Index<std::ranges::range_value_t<T>>;

/// A memory space that kernels of `Space` can read and write.
template <class Memory, class Space>
concept AccessibleFrom = bool(Kokkos::SpaceAccessibility<Space, Memory>::accessible);

/// How every array of the device side lies in memory: contiguous, row after row, so that `.data()`
/// of an array or of one of its rows can go straight to a kernel library.
template <class T, class MemorySpace>
using Array1D = Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace>;
template <class T, class MemorySpace>
using Array2D = Kokkos::View<T**, Kokkos::LayoutRight, MemorySpace>;
template <class T, class MemorySpace>
using Array3D = Kokkos::View<T***, Kokkos::LayoutRight, MemorySpace>;

}  // namespace chunked_prefill
