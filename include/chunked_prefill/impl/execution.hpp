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

template <ExecutionSpace Space>
inline constexpr bool is_cuda = false;
#if defined(KOKKOS_ENABLE_CUDA)
template <>
inline constexpr bool is_cuda<Kokkos::Cuda> = true;
#endif

/// Vector lanes of a team's thread: a warp on a device, where lanes scan and reduce among
/// themselves without a barrier; one on the host.
template <ExecutionSpace Space>
inline constexpr std::int32_t lane_num = runs_on_host<Space> ? 1 : 32;

/// Where a single team of `Space` runs: a host space that keeps its caller waiting would wake its
/// other threads for nothing, which takes longer than a small batch does.
template <ExecutionSpace Space>
struct SpaceOfOneTeam {
  using Type = Space;
};
#if defined(KOKKOS_ENABLE_SERIAL) && defined(KOKKOS_ENABLE_OPENMP)
template <>
struct SpaceOfOneTeam<Kokkos::OpenMP> {
  using Type = Kokkos::Serial;
};
#endif
#if defined(KOKKOS_ENABLE_SERIAL) && defined(KOKKOS_ENABLE_THREADS)
template <>
struct SpaceOfOneTeam<Kokkos::Threads> {
  using Type = Kokkos::Serial;
};
#endif

/// `teams` teams of `team_size` threads in `space`'s order, with `scratch_bytes` of team scratch,
/// level 0.
template <ExecutionSpace Space, class Functor>
void launch_teams(const char* label, const Space& space, std::int64_t teams, int team_size,
                  const Functor& functor, std::size_t scratch_bytes = 0) {
  using Alone = typename SpaceOfOneTeam<Space>::Type;
  if constexpr (!std::is_same_v<Alone, Space>) {
    if (teams == 1) return launch_teams(label, Alone(), teams, team_size, functor, scratch_bytes);
  }
  Kokkos::TeamPolicy<Space> policy(space, static_cast<int>(teams), team_size, lane_num<Space>);
  policy.set_scratch_size(0, Kokkos::PerTeam(scratch_bytes));
  Kokkos::parallel_for(label, policy, functor);
}

/// Where the threads of a team wait for one another. Those of the host are teams of one, whose
/// barriers would take longer than a loop of a small batch.
template <class Team>
KOKKOS_FUNCTION void wait_for_team(const Team& team) {
  if constexpr (!runs_on_host<typename Team::execution_space>) team.team_barrier();
}

template <class T>
KOKKOS_FUNCTION constexpr T ceil_div(T dividend, T divisor) {
  return static_cast<T>(dividend / divisor + (dividend % divisor != 0 ? 1 : 0));
}

}  // namespace chunked_prefill::impl
