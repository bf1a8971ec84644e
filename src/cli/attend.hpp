// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "batch.hpp"
#include "stages.hpp"

namespace chunked_prefill::cli {

/// The largest difference from unchunked attention that passes, in units of the largest value. The
/// program that it is compared with reads the same cached, rounded rows, so that the difference is
/// that of float arithmetic whatever the cache holds.
inline constexpr double attention_tolerance = 1e-5;

/// A batch's attention under one policy.
struct AttendedPolicy {
  Policy policy = Policy::equal;
  std::string refused;  ///< why the policy cannot split the batch; then there is nothing else
  std::int64_t loops = 0;
  StageSeconds seconds{};
  double difference = 0;      ///< of the values, in units of the largest
  double lse_difference = 0;  ///< of the logarithms of sums of exponentials, likewise
};

/// What a batch's attention came to.
struct Attended {
  std::int64_t tokens = 0;        ///< cached, of all sequences
  std::int64_t query_tokens = 0;  ///< new, of all sequences
  std::int64_t cache_bytes = 0;
  std::int64_t workspace_bytes = 0;
  std::int64_t compared = 0;  ///< pairs of a query token and a head
  AttendedPolicy equal, packed;

  [[nodiscard]] std::array<const AttendedPolicy*, 2> policies() const { return {&equal, &packed}; }
};

/// Makes seeded data for a batch, computes the attention of its new tokens with the loop, under
/// both policies, and compares each with unchunked attention. Shows its progress on standard error
/// where that is a terminal.
/// \throws InvalidArgument naming what is refused, before anything is computed, as when the batch
///   needs more memory than there is; CheckFailed naming a policy whose difference is too large.
[[nodiscard]] Attended attend(const Batch& batch, const AttendArguments& arguments);

}  // namespace chunked_prefill::cli
