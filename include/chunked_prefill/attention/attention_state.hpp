// SPDX-License-Identifier: MIT
#pragma once

namespace chunked_prefill {

/// Base of a log-sum-exp.
enum class LseBase { natural, two };

/// A partial result of attention: for each query token and head the softmax-weighted values of some
/// of its keys, and the logarithm of the sum of the exponentials of their scores (LSE).
///
/// \tparam Values View (tokens, heads, dim) of an Element type, elements of a head side by side.
/// \tparam Lse View (tokens, heads) of float, strides as they come.
template <class Values, class Lse>
struct AttentionState {
  Values values;
  Lse lse;
  /// Base of the logarithm, and of the exponentials: natural for FlashAttention and FlashMLA, two
  /// for FlashInfer.
  LseBase base = LseBase::natural;
};
template <class Values, class Lse, class... Base>
AttentionState(Values, Lse, Base...) -> AttentionState<Values, Lse>;

}  // namespace chunked_prefill
