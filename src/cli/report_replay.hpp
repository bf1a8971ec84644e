// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "arguments.hpp"
#include "replay.hpp"

namespace chunked_prefill::cli {

/// The table that a replay ends with.
[[nodiscard]] std::string report_replay_text(const ReplayArguments& arguments,
                                             const Replay& replay);

/// The same numbers as a JSON document.
[[nodiscard]] std::string report_replay_json(const ReplayArguments& arguments,
                                             const Replay& replay);

}  // namespace chunked_prefill::cli
