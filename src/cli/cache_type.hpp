// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace chunked_prefill::cli {

/// Type of a cache's elements; fp8 is E4M3.
enum class CacheType { fp32, bf16, fp16, fp8 };

[[nodiscard]] constexpr const char* name(CacheType type) {
  switch (type) {
    case CacheType::fp32:
      return "fp32";
    case CacheType::bf16:
      return "bf16";
    case CacheType::fp16:
      return "fp16";
    case CacheType::fp8:
      break;
  }
  return "fp8";
}
[[nodiscard]] constexpr std::int64_t bytes(CacheType type) {
  return type == CacheType::fp32 ? 4 : type == CacheType::fp8 ? 1 : 2;
}

}  // namespace chunked_prefill::cli
