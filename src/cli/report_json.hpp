// SPDX-License-Identifier: MIT
#pragma once

#include "batch.hpp"
#include "build.hpp"
#include "output.hpp"

namespace chunked_prefill::cli {

/// Writes every array of the build as one JSON object, a row a line.
void report_json(const Batch& batch, const Build& build, Output& output);

}  // namespace chunked_prefill::cli
