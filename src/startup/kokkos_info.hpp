// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace chunked_prefill::startup {

[[nodiscard]] std::string kokkos_version();
/// Execution spaces that Kokkos was built with, by name.
[[nodiscard]] std::vector<std::string> execution_spaces();
[[nodiscard]] std::string default_execution_space();

}  // namespace chunked_prefill::startup
