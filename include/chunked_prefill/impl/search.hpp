// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/lanes.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Index of the last element in [first, last) that is at most `value`, in a sorted array whose
/// element `first` is known to be. One thread by itself, by halving; looks at the next element
/// first, which is where a walk through the array usually ends.
template <class T>
KOKKOS_FUNCTION std::int32_t last_at_most(const T* sorted, std::int32_t first, std::int32_t last,
                                          T value) {
  if (last - first > 1 && sorted[first + 1] > value) return first;
  while (last - first > 1) {
    const std::int32_t middle = first + (last - first) / 2;
    if (sorted[middle] <= value) {
      first = middle;
    } else {
      last = middle;
    }
  }
  return first;
}

/// The same over [0, size), with the lanes of a thread together: they count the elements that are
/// at most `value`, all loads in flight at once, where halving would wait for one after another. A
/// long array is narrowed first by counting every `stride`-th element.
template <class Team, class T>
KOKKOS_FUNCTION std::int32_t last_at_most(const Team& team, const T* sorted, std::int32_t size,
                                          T value) {
  if constexpr (runs_on_host<typename Team::execution_space>) {
    return last_at_most(sorted, 0, size, value);
  } else {
    constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
    constexpr std::int32_t most_counted = 1024;
    std::int32_t first = 0;
    while (true) {
      const std::int32_t stride = ceil_div(size, most_counted);
      const std::int32_t samples = ceil_div(size, stride);
      const std::int32_t count = lane_sum(team, [&](const std::int32_t lane) {
        std::int32_t at_most = 0;
        CHUNKED_PREFILL_ROLLED
        for (std::int32_t k = lane; k < samples; k += lanes) {
          if (sorted[first + k * stride] <= value) ++at_most;
        }
        return at_most;
      });
      first += (count - 1) * stride;
      if (stride == 1) return first;
      size = Kokkos::min(stride, size - (count - 1) * stride);
    }
  }
}

}  // namespace chunked_prefill::impl
