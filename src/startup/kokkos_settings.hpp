// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>

namespace chunked_prefill::startup {

/// What the tool and the Python module initialise Kokkos with. What is set here goes before the
/// environment; standard output is theirs alone.
/// \throws InvalidArgument naming an environment variable that Kokkos would end the process for, or
///   `execution space` when no GPU can be used.
[[nodiscard]] Kokkos::InitializationSettings kokkos_settings();

}  // namespace chunked_prefill::startup
