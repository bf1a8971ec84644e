// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "batch.hpp"
#include "build.hpp"

namespace chunked_prefill::cli {

/// Columns of the terminal on standard output; 80 where it is none.
[[nodiscard]] int terminal_width();

/// For each build the loops as a table, and a drawing of which part of which sequence each covers:
/// a row a sequence, positions across, a loop's number where its chunk begins. Builds are compared
/// at the end. No line is wider than `width`; loops and sequences that would not fit are left out
/// and counted.
[[nodiscard]] std::string report_text(const Batch& batch, const std::vector<Build>& builds,
                                      int width);

}  // namespace chunked_prefill::cli
