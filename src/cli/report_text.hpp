// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "batch.hpp"
#include "build.hpp"

namespace chunked_prefill::cli {

/// Columns of the terminal on standard output; 80 where it is none.
[[nodiscard]] int terminal_width();

/// The loops as a table, and a drawing of which part of which sequence each covers: a row a
/// sequence, positions across, a loop's number where its chunk begins. No line is wider than
/// `width`; loops and sequences that would not fit are left out and counted.
[[nodiscard]] std::string report_text(const Batch& batch, const Build& build, int width);

}  // namespace chunked_prefill::cli
