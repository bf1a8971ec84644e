// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace chunked_prefill::impl {

inline void check_range(std::string_view argument, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
  if (value >= least && value <= most) return;
  throw InvalidArgument(std::string(argument), std::to_string(value) + " is outside [" +
                                                   std::to_string(least) + ", " +
                                                   std::to_string(most) + "]");
}

inline void check_extent(std::string_view argument, std::size_t extent, std::size_t expected) {
  if (extent == expected) return;
  throw InvalidArgument(std::string(argument), "extent " + std::to_string(extent) + " where " +
                                                   std::to_string(expected) + " is needed");
}

inline void check_at_least(std::string_view argument, std::size_t extent, std::size_t least) {
  if (extent >= least) return;
  throw InvalidArgument(std::string(argument), "extent " + std::to_string(extent) +
                                                   " where at least " + std::to_string(least) +
                                                   " is needed");
}

/// The kernels walk an array through its pointer. Rows and columns of a 2-D View are often strided.
template <class View>
void check_contiguous(std::string_view argument, const View& view) {
  if (view.span_is_contiguous()) return;
  throw InvalidArgument(std::string(argument),
                        "its elements are not side by side, a contiguous View is needed");
}

template <class View>
void check_extents(std::string_view argument, const View& view, std::size_t rows,
                   std::size_t columns) {
  check_contiguous(argument, view);
  if (view.extent(0) == rows && view.extent(1) == columns) return;
  throw InvalidArgument(std::string(argument), "extents (" + std::to_string(view.extent(0)) + ", " +
                                                   std::to_string(view.extent(1)) + ") where (" +
                                                   std::to_string(rows) + ", " +
                                                   std::to_string(columns) + ") are needed");
}

/// The kernels step from page to page of a row by one element.
template <class MemorySpace>
void check_page_stride(const PageTable<MemorySpace>& req_to_page) {
  if (req_to_page.extent(1) <= 1 || req_to_page.stride(1) == 1) return;
  throw InvalidArgument("req_to_page", "stride " + std::to_string(req_to_page.stride(1)) +
                                           " between the pages of a row where 1 is needed");
}

/// The device's inputs fit the plan that the host's lengths gave.
template <class MemorySpace, Index Length, Index RequestIndex>
void check_prefix(const ChunkPlan& plan,
                  const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix) {
  const auto batch_size = static_cast<std::size_t>(plan.batch_size());
  check_extent("prefix_lens", prefix.prefix_lens.extent(0), batch_size);
  check_extent("req_pool_indices", prefix.req_pool_indices.extent(0), batch_size);
  check_range("page_size", prefix.page_size, 1, INT32_MAX);
  check_page_stride(prefix.req_to_page);
  const std::int64_t pages = (plan.max_prefix_len() + prefix.page_size - 1) / prefix.page_size;
  const auto max_pages = static_cast<std::int64_t>(prefix.req_to_page.extent(1));
  if (plan.max_prefix_len() > 0 && (pages > max_pages || prefix.req_to_page.extent(0) == 0)) {
    throw InvalidArgument(
        "prefix_lens[" + std::to_string(plan.longest_sequence()) + "]",
        std::to_string(plan.max_prefix_len()) + " tokens need " + std::to_string(pages) +
            " pages of page_size " + std::to_string(prefix.page_size) + ", req_to_page has " +
            std::to_string(prefix.req_to_page.extent(0)) + " rows of " + std::to_string(max_pages));
  }
}

/// The last slot of a cache of `num_pages` pages fits `Slot`; 0 pages: not known.
template <Index Slot>
void check_slots_fit(std::int64_t num_pages, std::int64_t page_size) {
  check_range("num_pages", num_pages, 0, INT32_MAX + std::int64_t{1});
  const std::int64_t last_slot = num_pages * page_size - 1;  // below 2^63: both are at most 2^31
  if (last_slot <= std::numeric_limits<Slot>::max()) return;
  throw InvalidArgument("num_pages", std::to_string(num_pages) + " pages of page_size " +
                                         std::to_string(page_size) + " reach slot " +
                                         std::to_string(last_slot) +
                                         ", int32 slots end at 2147483647; use int64 slots");
}

}  // namespace chunked_prefill::impl
