// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/attention_state.hpp>
#include <chunked_prefill/attention/impl/checks.hpp>
#include <chunked_prefill/attention/impl/merge_kernel.hpp>
#include <chunked_prefill/concepts.hpp>
#include <string>

namespace chunked_prefill {

/// Merges two partial results over disjoint sets of keys into that over both:
///
///     w_a = exp(lse_a - m), w_b = exp(lse_b - m), m = max(lse_a, lse_b)
///     values = (w_a values_a + w_b values_b) / (w_a + w_b), lse = m + log(w_a + w_b)
///
/// in float, in the base of `out`; an LSE in another base is converted. (FlashInfer, "Recursive
/// attention"; Ye et al., arXiv:2501.01005, section 2.2.)
///
/// A state is empty where its LSE is -inf, or +inf as FlashAttention 2 has it for a query without
/// keys; its values are not read, so that they may be anything. The other state is then left as it
/// is, bit for bit where types and bases are the same. Both empty give values 0 and LSE -inf. A NaN
/// in an LSE makes values and LSE of that head NaN.
///
/// Asynchronous with respect to `space`; one kernel. `out` may be the same arrays as `a` or `b`,
/// and must not overlap them otherwise. `a`, `b` and `out` may differ in type, strides and base.
///
/// \throws InvalidArgument naming the array when extents differ or `dim` is 0, when the elements of
///   a head are not side by side, or when parts of `out` overlap; `tokens * heads` when that is
///   beyond INT32_MAX.
template <ExecutionSpace Space, class ValuesA, class LseA, class ValuesB, class LseB,
          class ValuesOut, class LseOut>
void merge_states(const Space& space, const AttentionState<ValuesA, LseA>& a,
                  const AttentionState<ValuesB, LseB>& b,
                  const AttentionState<ValuesOut, LseOut>& out) {
  static_assert(AccessibleFrom<typename ValuesA::memory_space, Space> &&
                    AccessibleFrom<typename LseA::memory_space, Space> &&
                    AccessibleFrom<typename ValuesB::memory_space, Space> &&
                    AccessibleFrom<typename LseB::memory_space, Space> &&
                    AccessibleFrom<typename ValuesOut::memory_space, Space> &&
                    AccessibleFrom<typename LseOut::memory_space, Space>,
                "the execution space cannot reach the memory of an argument");
  const auto check = [&](const std::string& name, const auto& state) {
    impl::check_state(name, state.values, state.lse, out.values);
  };
  check("out", out);
  check("a", a);
  check("b", b);
  impl::check_state_apart("out", out.values, out.lse);
  impl::launch_merge(space, impl::state_pointers(a.values, a.lse, a.base),
                     impl::state_pointers(b.values, b.lse, b.base),
                     impl::state_pointers(out.values, out.lse, out.base), out.values.extent(0),
                     out.values.extent(1), out.values.extent(2));
}

}  // namespace chunked_prefill
