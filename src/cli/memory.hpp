// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace chunked_prefill::cli {

/// Refuses work that needs more memory than the machine has to spare, before it is begun.
/// \param what what needs the memory, for the message: "2 loops of 3 sequences".
/// \throws InvalidArgument naming `argument`.
void require_memory(const std::string& argument, const std::string& what, double bytes);

}  // namespace chunked_prefill::cli
