// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/error.hpp>

#include "batch.hpp"
#include "build.hpp"

namespace chunked_prefill::cli {

/// A build differs from what the definitions give.
class CheckFailed : public Error {
 public:
  using Error::Error;
};

/// Computes every value of `build` again, token by token on the host, from the definitions of the
/// terms and not from the library.
/// \throws CheckFailed naming the first difference: array, loop, sequence, position, both values.
void check(const Batch& batch, const Build& build);

}  // namespace chunked_prefill::cli
