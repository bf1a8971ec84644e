// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/attention/gather_rows.hpp>
#include <chunked_prefill/attention/impl/attend.hpp>
#include <chunked_prefill/attention/impl/checks.hpp>
#include <chunked_prefill/attention/impl/copy_rows.hpp>
#include <chunked_prefill/attention/merge_states.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/metadata.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

// The loop that the metadata is for, in portable form: gather, up-project, attend, merge. In float,
// whatever the cache holds. For tests, engines without a GPU and small runs; kernels written for
// one GPU are many times faster.

namespace chunked_prefill {

/// What the loop works in, allocated once: keys and values of as many tokens as one loop may hold,
/// and one partial result.
template <class MemorySpace>
class AttentionWorkspace {
 public:
  using State = AttentionState<Array3D<float, MemorySpace>, Array2D<float, MemorySpace>>;

  /// For loops of up to `chunk_capacity` tokens and up to `query_tokens` query tokens.
  /// \throws InvalidArgument naming what is not positive or beyond INT32_MAX.
  AttentionWorkspace(const MlaShape& shape, std::int64_t chunk_capacity, std::int64_t query_tokens)
      : m_shape(shape) {
    impl::check_mla_shape(shape);
    impl::check_range("chunk_capacity", chunk_capacity, 1, INT32_MAX);
    impl::check_range("query_tokens", query_tokens, 0, INT32_MAX);
    const auto rows = static_cast<std::size_t>(chunk_capacity);
    const auto queries = static_cast<std::size_t>(query_tokens);
    const auto heads = static_cast<std::size_t>(shape.num_heads);
    const auto matrix = [](const std::string& label, std::size_t extent, std::int32_t columns) {
      return Array2D<float, MemorySpace>(Kokkos::view_alloc(Kokkos::WithoutInitializing, label),
                                         extent, static_cast<std::size_t>(columns));
    };
    m_latent = matrix("chunked_prefill::latent", rows, shape.latent_dim);
    m_rope = matrix("chunked_prefill::rope", rows, shape.rope_dim);
    m_key_values = matrix("chunked_prefill::key_values", rows, shape.key_value_columns());
    m_partial.values = decltype(m_partial.values)(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "chunked_prefill::partial_values"), queries,
        heads, static_cast<std::size_t>(shape.value_dim));
    m_partial.lse = decltype(m_partial.lse)(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "chunked_prefill::partial_lse"), queries,
        heads);
  }

  [[nodiscard]] const MlaShape& shape() const { return m_shape; }
  [[nodiscard]] std::int64_t chunk_capacity() const {
    return static_cast<std::int64_t>(m_latent.extent(0));
  }
  /// Memory that it holds, whatever the prefixes.
  [[nodiscard]] std::size_t bytes() const {
    return sizeof(float) * (m_latent.size() + m_rope.size() + m_key_values.size() +
                            m_partial.values.size() + m_partial.lse.size());
  }

  /// Room for the keys of `tokens` tokens.
  /// \throws InvalidArgument naming `tokens` when there is not as much.
  [[nodiscard]] impl::KeyBuffers<MemorySpace> keys(std::int64_t tokens) const {
    impl::check_range("tokens of a loop", tokens, 0, chunk_capacity());
    const auto first = std::pair<std::size_t, std::size_t>(0, static_cast<std::size_t>(tokens));
    return {Kokkos::subview(m_latent, first, Kokkos::ALL),
            Kokkos::subview(m_rope, first, Kokkos::ALL),
            Kokkos::subview(m_key_values, first, Kokkos::ALL)};
  }
  /// Room for a partial result of `query_tokens` tokens.
  [[nodiscard]] State partial(std::size_t query_tokens) const {
    impl::check_range("query tokens", static_cast<std::int64_t>(query_tokens), 0,
                      static_cast<std::int64_t>(m_partial.lse.extent(0)));
    const auto first = std::pair<std::size_t, std::size_t>(0, query_tokens);
    return {Kokkos::subview(m_partial.values, first, Kokkos::ALL, Kokkos::ALL),
            Kokkos::subview(m_partial.lse, first, Kokkos::ALL), LseBase::natural};
  }

 private:
  MlaShape m_shape;
  Array2D<float, MemorySpace> m_latent;
  Array2D<float, MemorySpace> m_rope;
  Array2D<float, MemorySpace> m_key_values;
  State m_partial;
};

/// Makes `state` that of queries that have seen no key.
template <ExecutionSpace Space, class Values, class Lse>
void clear_state(const Space& space, const AttentionState<Values, Lse>& state) {
  Kokkos::deep_copy(space, state.values, typename Values::value_type(0.0F));
  Kokkos::deep_copy(space, state.lse, -Kokkos::Experimental::infinity_v<float>);
}

/// What is done for the tokens of a loop, in this order.
enum class AttentionStage { gather, up_project, attend, merge };

namespace impl {
struct NothingAfterStage {
  void operator()(AttentionStage) const {}
};
}  // namespace impl

/// Merges into `state` the attention of the queries to the cached prefixes of their sequences, loop
/// after loop: gathers the loop's rows, up-projects them, attends, merges. Asynchronous with
/// respect to `space` as far as Kokkos Kernels' matrix product is; the work of a loop is bounded by
/// `workspace`.
///
/// \param metadata what `fill` built for `plan`, equal or packed, of all tokens or of one rank's:
///   the states of all ranks merged are the attention to the whole prefixes.
/// \param cache (num_slots, latent_dim + rope_dim) as for `gather_rows`; `cache_scale` too.
/// \param after_stage called with each AttentionStage of each loop when it is enqueued, such as to
///   fence and take the time.
/// \throws InvalidArgument naming what does not fit, before anything is enqueued: a loop that is
///   larger than `workspace`, extents of `queries`, `layer`, `cache` or `state`, a `metadata` of
///   another plan's loops and sequences.
template <ExecutionSpace Space, class MemorySpace, Index Slot, class Cache, class Values, class Lse,
          class AfterStage = impl::NothingAfterStage>
void attend_prefix(const Space& space, const ChunkPlan& plan,
                   const ChunkedPrefillMetadata<MemorySpace, Slot>& metadata, const Cache& cache,
                   float cache_scale, const MlaLayer<MemorySpace>& layer,
                   const QueryBatch<MemorySpace>& queries,
                   const AttentionWorkspace<MemorySpace>& workspace,
                   const AttentionState<Values, Lse>& state,
                   const AfterStage& after_stage = AfterStage()) {
  impl::check_attention(layer, queries, workspace.shape());
  impl::check_extent("queries.cum_query_lens", queries.cum_query_lens.extent(0),
                     static_cast<std::size_t>(plan.batch_size()) + 1);
  impl::check_range("metadata.batch_size()", metadata.batch_size(), plan.batch_size(),
                    plan.batch_size());
  impl::check_range("metadata.chunked_loop_num()", metadata.chunked_loop_num(),
                    plan.chunked_loop_num(), plan.chunked_loop_num());
  impl::check_rows("cache", cache, cache.extent(0),
                   static_cast<std::size_t>(layer.shape.latent_dim) +
                       static_cast<std::size_t>(layer.shape.rope_dim));
  const auto partial = workspace.partial(queries.query.extent(0));
  impl::check_state("state", state.values, state.lse, partial.values);
  impl::check_state_apart("state", state.values, state.lse);
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
    impl::check_extent("metadata.chunk_kv_indices(" + std::to_string(loop) + ")",
                       metadata.chunk_kv_indices(loop).extent(0),
                       workspace.keys(plan.tokens(loop)).latent.extent(0));
  }
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
    if (plan.tokens(loop) == 0) continue;
    const auto keys = workspace.keys(plan.tokens(loop));
    gather_rows(space, cache, metadata.chunk_kv_indices(loop), keys.latent, keys.rope, cache_scale);
    after_stage(AttentionStage::gather);
    impl::up_project(space, layer, keys);
    after_stage(AttentionStage::up_project);
    impl::attend(space, layer, queries, keys,
                 impl::KeyRanges{.cum_keys = metadata.cum_seq_lens(loop).data()}, partial.values,
                 partial.lse);
    after_stage(AttentionStage::attend);
    merge_states(space, state, partial, state);
    after_stage(AttentionStage::merge);
  }
}

/// Merges into `state` the causal attention of the queries to the new tokens of their sequences,
/// which are the queries' own: in pieces of at most `workspace.chunk_capacity()` tokens.
///
/// \param latent (query_tokens, latent_dim) of any Element type: with `rope`, the rows of the new
///   tokens, which need not be in the cache.
/// \param rope (query_tokens, rope_dim) of any Element type.
/// \param after_stage as for `attend_prefix`, of each piece.
/// \throws InvalidArgument as `attend_prefix`.
template <ExecutionSpace Space, class MemorySpace, class Latent, class Rope, class Values,
          class Lse, class AfterStage = impl::NothingAfterStage>
void attend_new_tokens(const Space& space, const Latent& latent, const Rope& rope,
                       const MlaLayer<MemorySpace>& layer, const QueryBatch<MemorySpace>& queries,
                       const AttentionWorkspace<MemorySpace>& workspace,
                       const AttentionState<Values, Lse>& state,
                       const AfterStage& after_stage = AfterStage()) {
  impl::check_attention(layer, queries, workspace.shape());
  const std::size_t tokens = queries.query.extent(0);
  impl::check_rows("latent", latent, tokens, static_cast<std::size_t>(layer.shape.latent_dim));
  impl::check_rows("rope", rope, tokens, static_cast<std::size_t>(layer.shape.rope_dim));
  const auto partial = workspace.partial(tokens);
  impl::check_state("state", state.values, state.lse, partial.values);
  impl::check_state_apart("state", state.values, state.lse);
  const auto most = static_cast<std::size_t>(workspace.chunk_capacity());
  for (std::size_t first = 0; first < tokens; first += most) {
    const std::pair piece(first, std::min(first + most, tokens));
    const auto keys = workspace.keys(static_cast<std::int64_t>(piece.second - piece.first));
    impl::copy_rows(space, Kokkos::subview(latent, piece, Kokkos::ALL), keys.latent);
    impl::copy_rows(space, Kokkos::subview(rope, piece, Kokkos::ALL), keys.rope);
    after_stage(AttentionStage::gather);
    impl::up_project(space, layer, keys);
    after_stage(AttentionStage::up_project);
    impl::attend(space, layer, queries, keys,
                 impl::KeyRanges{.first_new = static_cast<std::int32_t>(piece.first)},
                 partial.values, partial.lse);
    after_stage(AttentionStage::attend);
    merge_states(space, state, partial, state);
    after_stage(AttentionStage::merge);
  }
}

}  // namespace chunked_prefill
