// SPDX-License-Identifier: MIT
#pragma once

#include "arguments.hpp"
#include "output.hpp"
#include "replay.hpp"

namespace chunked_prefill::cli {

/// Draws the loops of each step, and the share of steps with at most so many, under both policies,
/// as SVG for light and dark pages. Where there are more steps than can be told apart, neighbours
/// share a column, which says so.
void report_replay_svg(const ReplayArguments& arguments, const Replay& replay, Output& output);

}  // namespace chunked_prefill::cli
