// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arguments.hpp"
#include "attention.hpp"
#include "batch.hpp"

namespace chunked_prefill::cli {

/// A query token of a sequence, and one of its heads.
struct QueryHead {
  std::size_t sequence = 0;
  std::int64_t token = 0;  ///< of the sequence's new ones
  std::int64_t head = 0;
};

/// Of every sequence some, spread over its new tokens and heads: as many as cost about what `keys`
/// keys do, and at least one. All of them where there are no more.
[[nodiscard]] std::vector<QueryHead> some_query_heads(const Batch& batch,
                                                      const AttendArguments& arguments,
                                                      double keys);

/// What attention gives for one query token and head.
struct Unchunked {
  std::vector<double> values;  ///< (value_dim)
  double lse = 0;              ///< natural
};

/// Attention from its definition, in double, to all keys at once. Keys and values are not formed:
/// the query is taken to the latent rows, q . (l W) = (q W^T) . l, and the weighted sum of those to
/// the values.
[[nodiscard]] Unchunked unchunked(const Batch& batch, const AttendArguments& arguments,
                                  const AttentionData& data, const Attention& cache,
                                  const QueryHead& of);

}  // namespace chunked_prefill::cli
