// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/impl/check_range.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace chunked_prefill::impl {

inline void check_kokkos() {
  if (!Kokkos::is_initialized()) throw Error("Kokkos is not initialised, or finalised");
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

/// An engine's pointer can lie anywhere.
template <class T>
bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(T) == 0;
}
template <class T>
void check_aligned(std::string_view argument, const T* data) {
  if (is_aligned(data)) return;
  throw InvalidArgument(std::string(argument),
                        "its address is not a multiple of " + std::to_string(sizeof(T)) + " bytes");
}

/// The kernels walk an array through its pointer. Rows and columns of a 2-D View are often strided.
template <class View>
void check_array(std::string_view argument, const View& view) {
  static_assert(View::rank() == 1, "a rank-1 View is needed");
  if (view.extent(0) > 1 && view.stride(0) != 1) {
    throw InvalidArgument(std::string(argument),
                          "stride " + std::to_string(view.stride(0)) + " where 1 is needed");
  }
  check_aligned(argument, view.data());
}

/// `size` elements have a size in bytes.
template <class T>
void check_countable(std::string_view argument, std::size_t size) {
  if (size <= PTRDIFF_MAX / sizeof(T)) return;
  throw InvalidArgument(std::string(argument), std::to_string(size) + " is beyond " +
                                                   std::to_string(PTRDIFF_MAX / sizeof(T)));
}

template <class View>
void check_extents(std::string_view argument, const View& view, std::size_t rows,
                   std::size_t columns) {
  if (view.extent(0) == rows && view.extent(1) == columns) return;
  throw InvalidArgument(std::string(argument), "extents (" + std::to_string(view.extent(0)) + ", " +
                                                   std::to_string(view.extent(1)) + ") where (" +
                                                   std::to_string(rows) + ", " +
                                                   std::to_string(columns) + ") are needed");
}

/// A table that is one array, row after row.
template <class View>
void check_table(std::string_view argument, const View& view, std::size_t rows,
                 std::size_t columns) {
  if (!view.span_is_contiguous()) {
    throw InvalidArgument(std::string(argument), "row stride " + std::to_string(view.stride(0)) +
                                                     " where " + std::to_string(view.extent(1)) +
                                                     " is needed");
  }
  check_aligned(argument, view.data());
  check_extents(argument, view, rows, columns);
}

/// The last index of a View steps from one element to the next.
/// \param elements that step, such as `the pages of a row`.
template <class View>
void check_side_by_side(std::string_view argument, const View& view, const char* elements) {
  constexpr auto last = static_cast<int>(View::rank()) - 1;
  if (view.extent(last) <= 1 || view.stride(last) == 1) return;
  throw InvalidArgument(std::string(argument), "stride " + std::to_string(view.stride(last)) +
                                                   " between " + elements + " where 1 is needed");
}

/// An equal split whose positions and totals are int32.
inline void check_split(std::size_t batch_size, std::size_t chunked_loop_num,
                        std::int64_t chunk_len) {
  check_range("batch_size", static_cast<std::int64_t>(batch_size), 0, INT32_MAX);
  check_range("chunked_loop_num", static_cast<std::int64_t>(chunked_loop_num), 0, INT32_MAX);
  check_range("chunk_len", chunk_len, 1, INT32_MAX);
  check_range("batch_size * chunk_len", static_cast<std::int64_t>(batch_size) * chunk_len, 0,
              INT32_MAX);
  if (chunked_loop_num == 0) return;
  check_range("(chunked_loop_num - 1) * chunk_len",
              static_cast<std::int64_t>(chunked_loop_num - 1) * chunk_len, 0, INT32_MAX);
}

/// The kernels step from page to page of a row by one element; rows do not overlap.
template <class MemorySpace>
void check_page_table(const PageTable<MemorySpace>& req_to_page) {
  check_range("req_to_page.extent(0)", static_cast<std::int64_t>(req_to_page.extent(0)), 0,
              INT32_MAX);
  check_aligned("req_to_page", req_to_page.data());
  check_side_by_side("req_to_page", req_to_page, "the pages of a row");
  if (req_to_page.extent(0) > 1 && req_to_page.stride(0) < req_to_page.extent(1)) {
    throw InvalidArgument("req_to_page", "row stride " + std::to_string(req_to_page.stride(0)) +
                                             " is less than the " +
                                             std::to_string(req_to_page.extent(1)) +
                                             " pages of a row");
  }
}

inline void check_shard(const ContextShard& shard) {
  check_range("shard.world_size", shard.world_size, 1, INT32_MAX);
  check_range("shard.rank", shard.rank, 0, shard.world_size - std::int64_t{1});
  check_range("shard.interleave", shard.interleave, 1, INT32_MAX / shard.world_size);
}

/// A shape that somebody else than `plan_chunks` and `bounding_shape` may have put together.
inline void check_shape(const ChunkShape& shape) {
  check_range("shape.batch_size", shape.batch_size, 0, INT32_MAX);
  check_range("shape.max_prefix_len", shape.max_prefix_len, 0,
              shape.batch_size == 0 ? 0 : INT32_MAX);
  check_shard(shape.shard);
  const std::int64_t longest = shape.shard.local_tokens(shape.max_prefix_len);
  check_range("shape.total_tokens", shape.total_tokens, longest, shape.batch_size * longest);
  check_range("shape.grain", shape.grain, 1, shape.policy == Policy::packed ? INT32_MAX : 1);
  if (shape.max_prefix_len == 0) {
    check_range("shape.chunked_loop_num", shape.chunked_loop_num, 0, 0);
  } else if (shape.policy == Policy::packed) {
    check_range("shape.chunk_len", shape.chunk_len, shape.grain, INT32_MAX);
    check_range("shape.chunk_len % shape.grain", shape.chunk_len % shape.grain, 0, 0);
    check_range("shape.chunked_loop_num", shape.chunked_loop_num,
                (shape.total_tokens - 1) / shape.chunk_len + 1, INT32_MAX - 1);
  } else {
    check_range("shape.chunk_len", shape.chunk_len, 1, INT32_MAX / shape.batch_size);
    const std::int64_t loops = (shape.max_prefix_len - 1) / shape.chunk_len + std::int64_t{1};
    check_range("shape.chunked_loop_num", shape.chunked_loop_num, loops, loops);
  }
}

/// A plan cuts as the shape of a captured build does, for the same rank.
inline void check_same_split(const ChunkShape& plan, const ChunkShape& shape) {
  if (plan.policy != shape.policy) {
    throw InvalidArgument("plan.policy", std::string(name(plan.policy)) + " where the shape is " +
                                             name(shape.policy));
  }
  const auto check_same = [](const char* argument, std::int32_t value, std::int32_t expected) {
    check_range(argument, value, expected, expected);
  };
  check_same("plan.grain", plan.grain, shape.grain);
  check_same("plan.shard.world_size", plan.shard.world_size, shape.shard.world_size);
  check_same("plan.shard.rank", plan.shard.rank, shape.shard.rank);
  check_same("plan.shard.interleave", plan.shard.interleave, shape.shard.interleave);
}

/// The batch of a plan, of shape `live`, is within the bounds that `shape` was made for.
inline void check_within(const ChunkShape& live, const ChunkShape& shape) {
  check_range("plan.batch_size", live.batch_size, shape.batch_size, shape.batch_size);
  check_same_split(live, shape);
  check_range("plan.chunk_len", live.chunk_len, shape.chunk_len, shape.chunk_len);
  check_range("plan.chunked_loop_num", live.chunked_loop_num, 0, shape.chunked_loop_num);
  check_range("plan.max_prefix_len", live.max_prefix_len, 0, shape.max_prefix_len);
  check_range("plan.total_tokens", live.total_tokens, 0, shape.total_tokens);
}

/// The device's inputs fit the plan that the host's lengths gave.
/// \param longest names the argument that says how long the longest prefix is.
template <class MemorySpace, Index Length, Index RequestIndex, class Name>
void check_prefix(const ChunkShape& shape,
                  const PagedPrefix<MemorySpace, Length, RequestIndex>& prefix,
                  const Name& longest) {
  const auto batch_size = static_cast<std::size_t>(shape.batch_size);
  check_array("prefix_lens", prefix.prefix_lens);
  check_array("req_pool_indices", prefix.req_pool_indices);
  check_extent("prefix_lens", prefix.prefix_lens.extent(0), batch_size);
  check_extent("req_pool_indices", prefix.req_pool_indices.extent(0), batch_size);
  check_range("page_size", prefix.page_size, 1, INT32_MAX);
  check_page_table(prefix.req_to_page);
  const std::int64_t tokens = shape.shard.local_tokens(shape.max_prefix_len);
  const std::int64_t pages = (tokens + prefix.page_size - 1) / prefix.page_size;
  const auto max_pages = static_cast<std::int64_t>(prefix.req_to_page.extent(1));
  if (tokens > 0 && (pages > max_pages || prefix.req_to_page.extent(0) == 0)) {
    const std::string of_rank =
        shape.shard.world_size == 1 ? "" : " of rank " + std::to_string(shape.shard.rank);
    throw InvalidArgument(longest(), std::to_string(tokens) + " tokens" + of_rank + " need " +
                                         std::to_string(pages) + " pages of page_size " +
                                         std::to_string(prefix.page_size) + ", req_to_page has " +
                                         std::to_string(prefix.req_to_page.extent(0)) +
                                         " rows of " + std::to_string(max_pages));
  }
}

/// Pages of which every slot fits `Slot`; ids are int32.
template <Index Slot>
constexpr std::int64_t pages_that_fit(std::int64_t page_size) {
  constexpr std::int64_t most = std::int64_t{INT32_MAX} + 1;
  return sizeof(Slot) == sizeof(std::int32_t) ? most / page_size : most;
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
