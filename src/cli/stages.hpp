// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <numeric>

namespace chunked_prefill::cli {

/// Stages of a step, in their order: the metadata once, the others loop after loop.
inline constexpr std::array stage_names{"plan and fill", "gather", "up-project", "attend", "merge"};
inline constexpr std::size_t stage_count = stage_names.size();

using StageSeconds = std::array<double, stage_count>;

[[nodiscard]] inline double total(const StageSeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.);
}

}  // namespace chunked_prefill::cli
