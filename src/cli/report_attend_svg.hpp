// SPDX-License-Identifier: MIT
#pragma once

#include "arguments.hpp"
#include "attend.hpp"
#include "batch.hpp"
#include "output.hpp"

namespace chunked_prefill::cli {

/// Draws the time of each stage and of all, a bar for each policy, as SVG for light and dark pages.
void report_attend_svg(const Batch& batch, const AttendArguments& arguments,
                       const Attended& attended, Output& output);

}  // namespace chunked_prefill::cli
