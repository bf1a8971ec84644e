// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <cstdint>

// What the lanes of a thread do together, in kernels so short that each instruction counts.
//
// On CUDA (sm_80 and newer) the lanes are those of a warp, which sums in one instruction and scans
// in fifteen. The portable forms beside them, which everything else takes, cannot know the number
// of lanes when they are compiled: Kokkos takes 50 and 170, and builds of a few microseconds took
// 10 % longer with its scan.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define CHUNKED_PREFILL_WARP
#endif

// Before a loop that is to stay one: compilers for devices unroll what they can, and a kernel of a
// few microseconds waits for its code more than for its branches.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define CHUNKED_PREFILL_ROLLED _Pragma("unroll 1")
#else
#define CHUNKED_PREFILL_ROLLED
#endif

namespace chunked_prefill::impl {

#if defined(CHUNKED_PREFILL_WARP)
/// Whether the lanes of a thread are a warp.
template <class Team>
inline constexpr bool on_warp = lane_num<typename Team::execution_space> == 32;

inline __device__ std::int32_t warp_lane() { return static_cast<std::int32_t>(threadIdx.x); }
#endif

/// Calls `work(lane)` in every lane of a thread. None waits for the others.
template <class Team, class Work>
KOKKOS_FUNCTION void for_lanes(const Team& team, const Work& work) {
#if defined(CHUNKED_PREFILL_WARP)
  if constexpr (on_warp<Team>) return work(warp_lane());
#endif
  constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
  Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, lanes), work);
}

/// The sum of `value(lane)` over the lanes of a thread; all of them get it.
template <class Team, class Value>
KOKKOS_FUNCTION std::int32_t lane_sum(const Team& team, const Value& value) {
#if defined(CHUNKED_PREFILL_WARP)
  if constexpr (on_warp<Team>) return __reduce_add_sync(~0U, value(warp_lane()));
#endif
  constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
  std::int32_t total = 0;
  Kokkos::parallel_reduce(
      Kokkos::ThreadVectorRange(team, lanes),
      [&](const std::int32_t lane, std::int32_t& sum) { sum += value(lane); }, total);
  return total;
}

/// Calls `use(lane, before)` in every lane, `before` being the sum of `value` over the lanes before
/// it.
template <class Team, class Value, class Use>
KOKKOS_FUNCTION void lane_scan(const Team& team, const Value& value, const Use& use) {
#if defined(CHUNKED_PREFILL_WARP)
  if constexpr (on_warp<Team>) {
    const std::int32_t own = value(warp_lane());
    std::int32_t sum = own;
    for (std::int32_t distance = 1; distance < 32; distance *= 2) {
      const std::int32_t other = __shfl_up_sync(~0U, sum, distance);
      if (warp_lane() >= distance) sum += other;
    }
    return use(warp_lane(), sum - own);
  }
#endif
  constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
  if constexpr (lanes == 1) return use(0, 0);
  Kokkos::parallel_scan(Kokkos::ThreadVectorRange(team, lanes),
                        [&](const std::int32_t lane, std::int32_t& sum, const bool final) {
                          const std::int32_t own = value(lane);  // `use` may overwrite it
                          if (final) use(lane, sum);
                          sum += own;
                        });
}

}  // namespace chunked_prefill::impl
