// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace chunked_prefill::cli {

/// Type of the cache slots.
enum class IndexType { int32, int64 };

[[nodiscard]] constexpr const char* name(IndexType type) {
  return type == IndexType::int32 ? "int32" : "int64";
}
[[nodiscard]] constexpr std::int64_t largest_slot(IndexType type) {
  return type == IndexType::int32 ? INT32_MAX : INT64_MAX;
}
[[nodiscard]] constexpr std::int64_t bytes(IndexType type) {
  return type == IndexType::int32 ? 4 : 8;
}

}  // namespace chunked_prefill::cli
