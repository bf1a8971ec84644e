// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace chunked_prefill {

/// Largest `chunk_capacity`: lengths and cumulative lengths are int32.
inline constexpr std::int64_t max_supported_chunk_capacity = INT32_MAX;

/// The two engine settings that bound the prefix workspace.
struct CapacitySettings {
  std::int64_t chunked_prefill_size = 8192;  ///< tokens of one prefill step, positive
  std::int64_t mla_chunk_multiplier = 4;     ///< how many such steps the workspace holds, positive
};

/// Returns `chunk_capacity`, in tokens: `chunked_prefill_size * mla_chunk_multiplier`.
///
/// Throws InvalidArgument, naming the setting, when one is not positive (engines use -1 for
/// "chunking is off") or the product exceeds `max_supported_chunk_capacity`.
[[nodiscard]] std::int64_t get_max_chunk_capacity(const CapacitySettings& settings = {});

}  // namespace chunked_prefill
