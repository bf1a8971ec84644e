// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace chunked_prefill::startup {

/// Judges the environment variables that Kokkos reads when it is initialised, and would end the
/// process for, or crash.
/// \param most_threads that its backends have room for.
/// \param gpus of the machine; negative where no backend uses any.
/// \throws InvalidArgument naming the variable, its value and what would have been right.
void check_environment(std::int32_t most_threads, std::int32_t gpus);

}  // namespace chunked_prefill::startup
