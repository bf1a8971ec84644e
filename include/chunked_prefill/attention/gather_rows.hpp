// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/attention/impl/checks.hpp>
#include <chunked_prefill/attention/impl/gather_kernel.hpp>
#include <chunked_prefill/concepts.hpp>
#include <type_traits>

namespace chunked_prefill {

/// Copies the cached rows of one loop side by side, split into latent and rope part:
///
///     latent(k, j) = cache(chunk_kv_indices(k), j) * scale
///     rope(k, j)   = cache(chunk_kv_indices(k), latent_dim + j) * scale
///
/// converted to the outputs' types; where type and scale are as they were, bit for bit.
/// Asynchronous with respect to `space`; one kernel. Slots are taken as they are and must be rows
/// of `cache`.
///
/// \param cache (num_slots, latent_dim + rope_dim) of an Element type, elements of a row side by
///   side, rows any distance apart: the paged cache, slot after slot.
/// \param chunk_kv_indices (tokens) int32 or int64 slots, `metadata.chunk_kv_indices(loop)`.
/// \param latent (tokens, latent_dim) of an Element type, such as 512 for DeepSeek.
/// \param rope (tokens, rope_dim) of the same or another, such as 64.
/// \param scale of an fp8 cache's tensor; 1 otherwise.
/// \throws InvalidArgument naming the array when extents disagree, when elements of a row are not
///   side by side, or when rows of an output overlap.
template <ExecutionSpace Space, class Cache, class Slots, class Latent, class Rope>
void gather_rows(const Space& space, const Cache& cache, const Slots& chunk_kv_indices,
                 const Latent& latent, const Rope& rope, float scale = 1) {
  static_assert(AccessibleFrom<typename Cache::memory_space, Space> &&
                    AccessibleFrom<typename Slots::memory_space, Space> &&
                    AccessibleFrom<typename Latent::memory_space, Space> &&
                    AccessibleFrom<typename Rope::memory_space, Space>,
                "the execution space cannot reach the memory of an argument");
  static_assert(Slots::rank() == 1 && Index<typename Slots::non_const_value_type>,
                "chunk_kv_indices: a rank-1 View of int32 or int64 is needed");
  impl::check_array("chunk_kv_indices", chunk_kv_indices);
  impl::check_rows("cache", cache, cache.extent(0), latent.extent(1) + rope.extent(1));
  impl::check_rows("latent", latent, chunk_kv_indices.extent(0), latent.extent(1));
  impl::check_rows("rope", rope, chunk_kv_indices.extent(0), rope.extent(1));
  impl::check_rows_apart("latent", latent);
  impl::check_rows_apart("rope", rope);
  impl::launch_gather(space, impl::row_matrix(cache), chunk_kv_indices.data(),
                      impl::row_matrix(latent), impl::row_matrix(rope), chunk_kv_indices.extent(0),
                      scale);
}

}  // namespace chunked_prefill
