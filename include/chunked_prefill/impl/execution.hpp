// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <type_traits>

namespace chunked_prefill::impl {

/// On a host space each thread is a team of its own and walks its tile alone; on a device the
/// threads of a team share a tile.
template <ExecutionSpace Space>
inline constexpr bool runs_on_host =
    std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>;

/// Threads of a team on a device: enough to hide latency, a power of two as team scans need.
inline constexpr int device_team_size = 128;

template <ExecutionSpace Space>
inline constexpr int team_size = runs_on_host<Space> ? 1 : device_team_size;

template <class T>
constexpr T ceil_div(T dividend, T divisor) {
  return (dividend + divisor - 1) / divisor;
}

/// One team of `team_size` threads for each of `league_size` pieces of work, in `space`'s order.
template <ExecutionSpace Space, class Functor>
void launch_teams(const char* label, const Space& space, int league_size, const Functor& functor) {
  Kokkos::parallel_for(
      label,
      Kokkos::TeamPolicy<Space, Kokkos::IndexType<int>>(space, league_size, team_size<Space>),
      functor);
}

}  // namespace chunked_prefill::impl
