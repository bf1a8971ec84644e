// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/attention/attention_state.hpp>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/attention/impl/packs.hpp>
#include <chunked_prefill/attention/impl/word_rows.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill::impl {

/// An AttentionState as kernels walk it.
template <class T>
struct StatePointers {
  T* values;
  std::int64_t token_stride;  ///< of values, elements
  std::int64_t head_stride;
  std::conditional_t<std::is_const_v<T>, const float*, float*> lse;
  std::int64_t lse_token_stride;
  std::int64_t lse_head_stride;
  LseBase base;

  KOKKOS_FUNCTION T* row(std::int32_t token, std::int32_t head) const {
    return values + token * token_stride + head * head_stride;
  }
  KOKKOS_FUNCTION auto& lse_of(std::int32_t token, std::int32_t head) const {
    return lse[token * lse_token_stride + head * lse_head_stride];
  }
};
template <class Values, class Lse>
auto state_pointers(const Values& values, const Lse& lse, LseBase base) {
  return StatePointers<typename Values::value_type>{
      .values = values.data(),
      .token_stride = static_cast<std::int64_t>(values.stride(0)),
      .head_stride = static_cast<std::int64_t>(values.stride(1)),
      .lse = lse.data(),
      .lse_token_stride = static_cast<std::int64_t>(lse.stride(0)),
      .lse_head_stride = static_cast<std::int64_t>(lse.stride(1)),
      .base = base};
}

/// The weights with which two states are merged.
struct MergeWeights {
  enum Kind { sum, first, second, neither } kind;
  float of_a;
  float of_b;
  float lse;

  KOKKOS_FUNCTION static float in_base(float lse, LseBase from, LseBase to) {
    constexpr float log2_e = 1.4426950408889634F;
    constexpr float ln_2 = 0.6931471805599453F;
    if (from == to) return lse;
    return to == LseBase::two ? lse * log2_e : lse * ln_2;
  }
  KOKKOS_FUNCTION static MergeWeights make(float lse_a, float lse_b, LseBase base) {
    const bool has_a = !Kokkos::isinf(lse_a);
    const bool has_b = !Kokkos::isinf(lse_b);
    if (!has_a || !has_b) {
      const float left = has_a ? lse_a : lse_b;
      if (Kokkos::isnan(left)) return {sum, left, left, left};
      if (has_a) return {first, 1, 0, lse_a};
      if (has_b) return {second, 0, 1, lse_b};
      return {neither, 0, 0, -Kokkos::Experimental::infinity_v<float>};
    }
    // Both scaled by the greater exponential, which is 1 then.
    const float apart = lse_a - lse_b;
    const float less = power(-Kokkos::fabs(apart), base);
    const float all = 1 + less;
    return {
        sum, (apart < 0 ? less : 1) / all, (apart > 0 ? less : 1) / all,
        Kokkos::max(lse_a, lse_b) + (base == LseBase::two ? Kokkos::log2(all) : Kokkos::log(all))};
  }

 private:
  KOKKOS_FUNCTION static float power(float exponent, LseBase base) {
    return base == LseBase::two ? Kokkos::exp2(exponent) : Kokkos::exp(exponent);
  }
};

/// Merges two states, `size` elements at a time. A team has some (token, head) rows: first their
/// values, then, when all of it have read the LSEs, those, which may be written in place.
template <class A, class B, class Out, int size>
struct MergeStates {
  StatePointers<const A> a;
  StatePointers<const B> b;
  StatePointers<Out> out;
  std::int32_t rows;  ///< tokens * heads
  Divisor heads;
  Divisor packs;  ///< of a row
  std::int32_t rows_per_team;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t first = std::int64_t{team.league_rank()} * rows_per_team;
    const auto count = static_cast<std::int32_t>(
        Kokkos::min(std::int64_t{rows_per_team}, std::int64_t{rows} - first));
    if constexpr (runs_on_host<typename Team::execution_space>) {
      for (std::int32_t k = 0; k < count; ++k) {
        const Row row = row_at(static_cast<std::int32_t>(first) + k);
        const MergeWeights weights = weights_of(row);
        write_row(row, weights);
        out.lse_of(row.token, row.head) = weights.lse;
      }
    } else {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, count * packs.value()),
                           [&](const std::int32_t k) {
                             const std::int32_t in_team = packs.quotient(k);
                             const Row row = row_at(static_cast<std::int32_t>(first) + in_team);
                             const std::int32_t pack = k - in_team * packs.value();
                             write_pack(row, weights_of(row), pack);
                           });
      team.team_barrier();
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, count), [&](const std::int32_t k) {
        const Row row = row_at(static_cast<std::int32_t>(first) + k);
        out.lse_of(row.token, row.head) = weights_of(row).lse;
      });
    }
  }

 private:
  struct Row {
    std::int32_t token;
    std::int32_t head;
  };
  KOKKOS_FUNCTION Row row_at(std::int32_t row) const {
    const std::int32_t token = heads.quotient(row);
    return {.token = token, .head = row - token * heads.value()};
  }
  KOKKOS_FUNCTION MergeWeights weights_of(const Row& row) const {
    return MergeWeights::make(
        MergeWeights::in_base(a.lse_of(row.token, row.head), a.base, out.base),
        MergeWeights::in_base(b.lse_of(row.token, row.head), b.base, out.base), out.base);
  }
  KOKKOS_FUNCTION static Out merged(const MergeWeights& weights, A from_a, B from_b) {
    return static_cast<Out>(weights.of_a * static_cast<float>(from_a) +
                            weights.of_b * static_cast<float>(from_b));
  }
  /// Device: pack `pack` of a row.
  KOKKOS_FUNCTION void write_pack(const Row& row, const MergeWeights& weights,
                                  std::int32_t pack) const {
    const auto load = [&](const auto& state) {
      using T = std::remove_reference_t<decltype(*state.values)>;
      using Packed = ElementPack<std::remove_const_t<T>, size>;
      return reinterpret_cast<const Packed*>(state.row(row.token, row.head))[pack];
    };
    ElementPack<Out, size> result;
    if (weights.kind == MergeWeights::sum) {
      const ElementPack<A, size> some_a = load(a);
      const ElementPack<B, size> some_b = load(b);
      for (int k = 0; k < size; ++k) result.of[k] = merged(weights, some_a.of[k], some_b.of[k]);
    } else if (weights.kind == MergeWeights::first) {
      const ElementPack<A, size> some = load(a);
      for (int k = 0; k < size; ++k) result.of[k] = converted<Out>(some.of[k]);
    } else if (weights.kind == MergeWeights::second) {
      const ElementPack<B, size> some = load(b);
      for (int k = 0; k < size; ++k) result.of[k] = converted<Out>(some.of[k]);
    } else {
      for (int k = 0; k < size; ++k) result.of[k] = Out(0.0F);
    }
    reinterpret_cast<ElementPack<Out, size>*>(out.row(row.token, row.head))[pack] = result;
  }
  /// Host: a row, element after element.
  KOKKOS_FUNCTION void write_row(const Row& row, const MergeWeights& weights) const {
    const A* const from_a = a.row(row.token, row.head);
    const B* const from_b = b.row(row.token, row.head);
    Out* const to = out.row(row.token, row.head);
    const std::int32_t dim = packs.value() * size;
    if (weights.kind == MergeWeights::sum) {
      const std::int32_t done = merge_words(from_a, from_b, to, dim, weights.of_a, weights.of_b);
      CHUNKED_PREFILL_INDEPENDENT
      for (std::int32_t k = done; k < dim; ++k) to[k] = merged(weights, from_a[k], from_b[k]);
    } else if (weights.kind == MergeWeights::first) {
      CHUNKED_PREFILL_INDEPENDENT
      for (std::int32_t k = 0; k < dim; ++k) to[k] = converted<Out>(from_a[k]);
    } else if (weights.kind == MergeWeights::second) {
      CHUNKED_PREFILL_INDEPENDENT
      for (std::int32_t k = 0; k < dim; ++k) to[k] = converted<Out>(from_b[k]);
    } else {
      for (std::int32_t k = 0; k < dim; ++k) to[k] = Out(0.0F);
    }
  }
};

template <int size, ExecutionSpace Space, class A, class B, class Out>
void launch_merge_packs(const Space& space, const StatePointers<A>& a, const StatePointers<B>& b,
                        const StatePointers<Out>& out, std::size_t tokens, std::size_t heads,
                        std::size_t dim) {
  using Kernel = MergeStates<std::remove_const_t<A>, std::remove_const_t<B>, Out, size>;
  const auto packs = static_cast<std::int32_t>(dim) / size;
  Kernel kernel{.a = {a.values, a.token_stride, a.head_stride, a.lse, a.lse_token_stride,
                      a.lse_head_stride, a.base},
                .b = {b.values, b.token_stride, b.head_stride, b.lse, b.lse_token_stride,
                      b.lse_head_stride, b.base},
                .out = out,
                .rows = static_cast<std::int32_t>(tokens * heads),
                .heads = Divisor(static_cast<std::int32_t>(heads)),
                .packs = Divisor(packs),
                .rows_per_team = std::max(packs_per_team<Space> / packs, 1)};
  launch_teams("chunked_prefill::merge_states", space, ceil_div(kernel.rows, kernel.rows_per_team),
               pack_team_size<Space>, kernel);
}

template <ExecutionSpace Space, class A, class B, class Out>
void launch_merge(const Space& space, const StatePointers<A>& a, const StatePointers<B>& b,
                  const StatePointers<Out>& out, std::size_t tokens, std::size_t heads,
                  std::size_t dim) {
  if (tokens * heads == 0) return;
  constexpr int size = pack_size<Space, A, B, Out>;
  const auto whole = [&](const auto& state) {
    return are_whole_packs(state.values, size, dim, static_cast<std::size_t>(state.token_stride),
                           static_cast<std::size_t>(state.head_stride));
  };
  if (whole(a) && whole(b) && whole(out)) {
    launch_merge_packs<size>(space, a, b, out, tokens, heads, dim);
  } else {
    launch_merge_packs<1>(space, a, b, out, tokens, heads, dim);
  }
}

}  // namespace chunked_prefill::impl
