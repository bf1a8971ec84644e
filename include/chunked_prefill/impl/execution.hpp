// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill::impl {

template <ExecutionSpace Space>
inline constexpr bool runs_on_host =
    std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>;

/// Vector lanes of a team's thread: a warp on a device, where lanes scan and reduce among
/// themselves without a barrier; one on the host.
template <ExecutionSpace Space>
inline constexpr std::int32_t lane_num = runs_on_host<Space> ? 1 : 32;

/// `teams` teams of `team_size` threads in `space`'s order, with `scratch_bytes` of team scratch,
/// level 0.
template <ExecutionSpace Space, class Functor>
void launch_teams(const char* label, const Space& space, std::int64_t teams, int team_size,
                  const Functor& functor, std::size_t scratch_bytes = 0) {
  Kokkos::TeamPolicy<Space> policy(space, static_cast<int>(teams), team_size, lane_num<Space>);
  policy.set_scratch_size(0, Kokkos::PerTeam(scratch_bytes));
  Kokkos::parallel_for(label, policy, functor);
}

template <class T>
KOKKOS_FUNCTION constexpr T ceil_div(T dividend, T divisor) {
  return static_cast<T>(dividend / divisor + (dividend % divisor != 0 ? 1 : 0));
}

}  // namespace chunked_prefill::impl
