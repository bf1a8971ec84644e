// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace chunked_prefill::impl {

/// Refuses a `value` of `argument` outside [least, most].
inline void check_range(std::string_view argument, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
  if (value >= least && value <= most) return;
  throw InvalidArgument(std::string(argument), std::to_string(value) + " is outside [" +
                                                   std::to_string(least) + ", " +
                                                   std::to_string(most) + "]");
}

}  // namespace chunked_prefill::impl
