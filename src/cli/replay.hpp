// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "arguments.hpp"
#include "statistics.hpp"

namespace chunked_prefill::cli {

/// Loops of the steps under one policy.
struct LoopCount {
  std::string refused;  ///< why the policy cannot split some step; empty where it can split all
  std::int64_t total = 0;
  std::int64_t most = 0;  ///< of one step
  Columns steps;          ///< loops of each
  Distribution distribution;

  void add(std::int64_t loops) {
    total += loops;
    most = std::max(most, loops);
    steps.add(loops);
    distribution.add(loops);
  }
};

/// What a trace came to.
struct Replay {
  std::int64_t steps = 0;
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t tokens = 0;          ///< cached, of all steps
  std::int64_t longest_prefix = 0;  ///< tokens
  std::int64_t verified_steps = 0;
  LoopCount equal, packed;
  Distribution build;        ///< nanoseconds of plan, fill and wait, of each step
  double build_seconds = 0;  ///< of all steps
  std::int64_t pages_used = 0;
  std::int64_t evictions = 0;  ///< pages
  bool interrupted = false;    ///< before the trace or the steps asked for were at their end
};

/// Walks a trace in batches, as an engine with a paged cache would, and builds each step's
/// metadata. A packed replay goes on where an equal split is not possible. Shows its progress on
/// standard error where that is a terminal; an interrupt ends it after the step at hand. \throws
/// InvalidArgument as Trace, PageCache and the library do; CheckFailed naming the step.
[[nodiscard]] Replay replay_trace(const ReplayArguments& arguments);

}  // namespace chunked_prefill::cli
