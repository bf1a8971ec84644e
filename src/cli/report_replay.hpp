// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "arguments.hpp"
#include "replay.hpp"

namespace chunked_prefill::cli {

/// What was replayed, in two lines: the trace, whether it was interrupted, steps and requests; the
/// engine's settings.
/// \param most_name bytes of the trace's name at most.
[[nodiscard]] std::array<std::string, 2> replay_heading(const ReplayArguments& arguments,
                                                        const Replay& replay,
                                                        std::size_t most_name);

/// The table that a replay ends with.
[[nodiscard]] std::string report_replay_text(const ReplayArguments& arguments,
                                             const Replay& replay);

/// The same numbers as a JSON document.
[[nodiscard]] std::string report_replay_json(const ReplayArguments& arguments,
                                             const Replay& replay);

}  // namespace chunked_prefill::cli
