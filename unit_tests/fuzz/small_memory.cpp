// SPDX-License-Identifier: MIT
#include <chunked_prefill/error.hpp>

#include "memory.hpp"

namespace chunked_prefill::cli {

/// In place of the tool's: a machine with 64 MB to spare.
void require_memory(const std::string& argument, const std::string& what, double bytes) {
  if (bytes > 64e6) throw InvalidArgument(argument, what + " need more memory than there is");
}

}  // namespace chunked_prefill::cli
