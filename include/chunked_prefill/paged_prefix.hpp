// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill {

/// A page table (max_requests, max_pages) of int32 page ids. The pages of one request lie side by
/// side; rows may be any distance apart.
template <class MemorySpace>
using PageTable = Kokkos::View<const std::int32_t**, Kokkos::LayoutStride, MemorySpace,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Wraps an engine's page table: `max_requests` rows of `max_pages` ids, `row_stride` elements from
/// one row to the next (at least `max_pages`). Nothing is copied or owned.
template <class MemorySpace>
[[nodiscard]] PageTable<MemorySpace> page_table(const std::int32_t* page_ids,
                                                std::size_t max_requests, std::size_t max_pages,
                                                std::size_t row_stride) {
  return PageTable<MemorySpace>(page_ids,
                                Kokkos::LayoutStride(max_requests, row_stride, max_pages, 1));
}

/// Wraps `count` elements of an engine's memory as a contiguous array; nothing is copied or owned.
template <class MemorySpace, class T>
[[nodiscard]] Array1D<T, MemorySpace> array_view(T* elements, std::size_t count) {
  return Array1D<T, MemorySpace>(elements, count);
}

/// Where the cached prefixes of a batch are: what the kernels read.
///
/// Holds no reference counts: the arrays must outlive the work enqueued with them. Made from three
/// Views of any managed or unmanaged kind, of which the memory space and types are deduced:
///
///     PagedPrefix prefix{prefix_lens, req_to_page, req_pool_indices, page_size};
template <class MemorySpace, Index Length = std::int32_t, Index RequestIndex = std::int32_t>
struct PagedPrefix {
  using memory_space = MemorySpace;
  /// Takes a View of any layout; `fill` refuses one whose elements are not side by side.
  template <class T>
  using Input = Kokkos::View<const T*, Kokkos::LayoutStride, MemorySpace,
                             Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  /// (batch_size) cached tokens of each sequence, on all ranks; the same values as the host's.
  Input<Length> prefix_lens;
  /// (max_requests, max_pages) page ids, of the rank's own cache. Only the pages that a prefix
  /// covers are read.
  PageTable<MemorySpace> req_to_page;
  /// (batch_size) each sequence's row of `req_to_page`.
  Input<RequestIndex> req_pool_indices;
  /// Tokens a page holds, positive; powers of two are not special.
  std::int64_t page_size = 0;
  /// Pages of the cache that `req_to_page` points into, where known (0: not known). With it, slots
  /// that would not fit the slot type are refused before anything is enqueued.
  std::int64_t num_pages = 0;
};

template <class Lens, class Table, class Requests, class... Sizes>
PagedPrefix(Lens, Table, Requests, Sizes...)
    -> PagedPrefix<typename Table::memory_space, typename Lens::non_const_value_type,
                   typename Requests::non_const_value_type>;

}  // namespace chunked_prefill
