// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "batch.hpp"
#include "build.hpp"
#include "output.hpp"

namespace chunked_prefill::cli {

/// Draws which part of which sequence each loop covers, as SVG for light and dark pages: sequences
/// across, loops down, tokens of each loop beside it; several builds side by side, in one scale.
/// Where there are more sequences or loops than can be told apart, neighbours share a column or a
/// row, which says so.
void report_svg(const Batch& batch, const std::vector<Build>& builds, Output& output);

}  // namespace chunked_prefill::cli
