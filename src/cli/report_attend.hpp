// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "arguments.hpp"
#include "attend.hpp"
#include "batch.hpp"

namespace chunked_prefill::cli {

/// What was computed, in three lines: the batch; its new tokens and the sizes of a head; the cache.
/// \param most_name bytes of the batch's name at most.
[[nodiscard]] std::array<std::string, 3> attend_heading(const Batch& batch,
                                                        const AttendArguments& arguments,
                                                        const Attended& attended,
                                                        std::size_t most_name);

/// "packed", "packed/64".
[[nodiscard]] std::string policy_label(const AttendArguments& arguments,
                                       const AttendedPolicy& policy);

/// "12.3 us", "4.56 ms", "789 s".
[[nodiscard]] std::string seconds_words(double seconds);

/// A table of both policies.
[[nodiscard]] std::string report_attend_text(const Batch& batch, const AttendArguments& arguments,
                                             const Attended& attended);

/// The same numbers as a JSON document.
[[nodiscard]] std::string report_attend_json(const Batch& batch, const AttendArguments& arguments,
                                             const Attended& attended);

}  // namespace chunked_prefill::cli
