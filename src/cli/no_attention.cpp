// SPDX-License-Identifier: MIT
#include "attention.hpp"

// Instead of attention.cpp in a build without the attention component.

namespace chunked_prefill::cli {

bool has_attention() { return false; }

std::unique_ptr<Attention> make_attention(const Batch&, const AttendArguments&,
                                          const AttentionData&, std::int64_t, Normal) {
  return nullptr;
}

}  // namespace chunked_prefill::cli
