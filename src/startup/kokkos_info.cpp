// SPDX-License-Identifier: MIT
#include "kokkos_info.hpp"

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/spaces.hpp>

namespace chunked_prefill::startup {

std::string kokkos_version() {
  return std::to_string(KOKKOS_VERSION / 10000) + '.' + std::to_string(KOKKOS_VERSION / 100 % 100) +
         '.' + std::to_string(KOKKOS_VERSION % 100);
}

std::vector<std::string> execution_spaces() {
  std::vector<std::string> names;
#define CHUNKED_PREFILL_NAME(NAMES, SPACE) NAMES.emplace_back(SPACE::name());
  CHUNKED_PREFILL_FOR_EACH_SPACE(CHUNKED_PREFILL_NAME, names)
#undef CHUNKED_PREFILL_NAME
  return names;
}

std::string default_execution_space() { return Kokkos::DefaultExecutionSpace::name(); }

}  // namespace chunked_prefill::startup
