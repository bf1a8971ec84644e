// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstdint>
#include <random>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

namespace test {

namespace cp = chunked_prefill;

template <class T>
using Rows = std::vector<std::vector<T>>;

/// A prefill step's input on the host.
struct Batch {
  std::vector<std::int32_t> prefix_lens;
  std::int64_t chunk_capacity = 0;
  std::int64_t page_size = 0;
  Rows<std::int32_t> req_to_page;
  std::vector<std::int32_t> req_pool_indices;
  cp::Policy policy = cp::Policy::equal;
  std::int64_t grain = 1;
  cp::ContextShard shard = {};

  [[nodiscard]] cp::PlanOptions options() const {
    return {.chunk_capacity = chunk_capacity, .policy = policy, .grain = grain, .shard = shard};
  }
};

/// A build's output on the host, in the terms of the golden vectors.
struct Result {
  Rows<std::int32_t> starts, ends, len_in_chunk, cum_seq_lens;
  std::vector<std::int32_t> max_chunk_len_per_loop;
  Rows<std::int64_t> chunk_kv_indices;
  friend bool operator==(const Result&, const Result&) = default;
};

/// Sequence `i` on row `batch_size - 1 - i` of a table of distinct page ids that no position
/// predicts; a few rows and columns more than needed.
inline void make_page_table(Batch& batch, std::mt19937& random) {
  const auto batch_size = batch.prefix_lens.size();
  const auto longest = batch.prefix_lens.empty() ? 0 : *std::ranges::max_element(batch.prefix_lens);
  const auto width =
      static_cast<std::size_t>((longest + batch.page_size - 1) / batch.page_size + 2);
  const auto height = batch_size + 3;
  std::vector<std::int32_t> pages(width * height);
  for (std::size_t k = 0; k < pages.size(); ++k) pages[k] = static_cast<std::int32_t>(k);
  std::ranges::shuffle(pages, random);
  batch.req_to_page.assign(height, {});
  for (std::size_t r = 0; r < height; ++r) {
    batch.req_to_page[r].assign(pages.begin() + static_cast<std::ptrdiff_t>(r * width),
                                pages.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
  }
  batch.req_pool_indices.resize(batch_size);
  for (std::size_t i = 0; i < batch_size; ++i) {
    batch.req_pool_indices[i] = static_cast<std::int32_t>(batch_size - 1 - i);
  }
}

[[nodiscard]] inline Batch make_batch(std::vector<std::int32_t> prefix_lens,
                                      std::int64_t chunk_capacity, std::int64_t page_size) {
  Batch batch{.prefix_lens = std::move(prefix_lens),
              .chunk_capacity = chunk_capacity,
              .page_size = page_size,
              .req_to_page = {},
              .req_pool_indices = {},
              .policy = cp::Policy::equal,
              .grain = 1,
              .shard = {}};
  std::mt19937 random(2026);
  make_page_table(batch, random);
  return batch;
}

/// Positions [start, end) of each sequence in each loop.
using Ranges = Rows<std::pair<std::int64_t, std::int64_t>>;

/// An equal split, from the definition.
[[nodiscard]] inline Ranges equal_ranges(const Batch& batch) {
  Ranges ranges;
  const std::int64_t chunk_len =
      batch.chunk_capacity / static_cast<std::int64_t>(batch.prefix_lens.size());
  const std::int64_t longest = *std::ranges::max_element(batch.prefix_lens);
  for (std::int64_t start = 0; start < longest; start += chunk_len) {
    auto& loop = ranges.emplace_back();
    for (const std::int64_t length : batch.prefix_lens) {
      loop.emplace_back(start, std::min(length, start + chunk_len));
    }
  }
  return ranges;
}

/// A packed split: grain after grain goes into the loop at hand, or the next when that is full. The
/// last grain of a sequence takes as much room as any.
[[nodiscard]] inline Ranges packed_ranges(const Batch& batch) {
  Ranges ranges;
  std::int64_t room = 0;
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    const std::int64_t length = batch.prefix_lens[i];
    for (std::int64_t position = 0; position < length; position += batch.grain) {
      if (room < batch.grain) {
        auto& loop = ranges.emplace_back();
        for (std::size_t j = 0; j < batch.prefix_lens.size(); ++j) {
          const std::int64_t at = j < i ? batch.prefix_lens[j] : j == i ? position : 0;
          loop.emplace_back(at, at);
        }
        room = batch.chunk_capacity;
      }
      ranges.back()[i].second = std::min(position + batch.grain, length);
      room -= batch.grain;
    }
  }
  return ranges;
}

/// Whether the rank of `batch` holds the token at `position` of a sequence.
[[nodiscard]] inline bool holds(const cp::ContextShard& shard, std::int64_t position) {
  return position / shard.interleave % shard.world_size == shard.rank;
}

/// What a build must give, token by token from the definitions; shares no code with the library.
[[nodiscard]] inline Result oracle(const Batch& batch) {
  Result result;
  if (batch.prefix_lens.empty()) return result;
  // Of the first n tokens of a sequence the rank holds held[n].
  std::vector<std::int64_t> held{0};
  const auto held_of = [&](std::int64_t tokens) {
    while (std::ssize(held) <= tokens) {
      held.push_back(held.back() + (holds(batch.shard, std::ssize(held) - 1) ? 1 : 0));
    }
    return held[static_cast<std::size_t>(tokens)];
  };
  for (const auto& loop :
       batch.policy == cp::Policy::packed ? packed_ranges(batch) : equal_ranges(batch)) {
    std::vector<std::int32_t> starts, ends, lens, cum{0};
    std::vector<std::int64_t> slots;
    for (std::size_t i = 0; i < loop.size(); ++i) {
      const auto [start, end] = loop[i];
      std::int32_t len = 0;
      for (std::int64_t position = start; position < end; ++position) {
        if (!holds(batch.shard, position)) continue;
        const std::int64_t place = held_of(position);
        const auto& row = batch.req_to_page[static_cast<std::size_t>(batch.req_pool_indices[i])];
        const std::int64_t page = row[static_cast<std::size_t>(place / batch.page_size)];
        slots.push_back(page * batch.page_size + place % batch.page_size);
        ++len;
      }
      starts.push_back(static_cast<std::int32_t>(held_of(start)));
      ends.push_back(static_cast<std::int32_t>(held_of(end)));
      lens.push_back(len);
      cum.push_back(cum.back() + len);
    }
    result.max_chunk_len_per_loop.push_back(*std::ranges::max_element(lens));
    result.starts.push_back(starts);
    result.ends.push_back(ends);
    result.len_in_chunk.push_back(lens);
    result.cum_seq_lens.push_back(cum);
    result.chunk_kv_indices.push_back(slots);
  }
  return result;
}

/// The numbers that a plan must have a loop, counted in what its build must give.
inline void expect_numbers(const cp::ChunkPlan& plan, const Result& expected) {
  const auto& lens = expected.len_in_chunk;
  ASSERT_EQ(plan.chunked_loop_num(), std::ssize(lens));
  std::int64_t offset = 0;
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
    SCOPED_TRACE("loop " + std::to_string(loop));
    std::int64_t tokens = 0;
    std::int32_t longest = 0, live = 0;
    cp::SeqRange range;
    for (std::int32_t i = 0; i < plan.batch_size(); ++i) {
      const std::int32_t length = lens[static_cast<std::size_t>(loop)][static_cast<std::size_t>(i)];
      if (length == 0) continue;
      if (live == 0) range.begin = i;
      range.end = i + 1;
      ++live;
      tokens += length;
      longest = std::max(longest, length);
    }
    ASSERT_EQ(plan.tokens(loop), tokens);
    ASSERT_EQ(plan.offset(loop), offset);
    ASSERT_EQ(plan.max_chunk_len(loop), longest);
    ASSERT_EQ(plan.seq_range(loop), range);
    ASSERT_EQ(plan.non_empty_seqs(loop), live);
    ASSERT_EQ(plan.has_empty_seq(loop), live < plan.batch_size());
    offset += tokens;
  }
  ASSERT_EQ(plan.total_tokens(), offset);
}

/// Copies `values` into device memory of element type `T`.
template <class T, class MemorySpace, class Value>
[[nodiscard]] cp::Array1D<T, MemorySpace> to_device(const std::vector<Value>& values,
                                                    const std::string& label = "test::values") {
  cp::Array1D<T, MemorySpace> device(label, values.size());
  const auto host = Kokkos::create_mirror_view(device);
  for (std::size_t k = 0; k < values.size(); ++k) host(k) = static_cast<T>(values[k]);
  Kokkos::deep_copy(device, host);
  return device;
}

template <class View>
[[nodiscard]] auto to_host(const View& device) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, device);
  return std::vector<typename View::non_const_value_type>(host.data(), host.data() + host.size());
}

template <class View>
[[nodiscard]] auto to_host_rows(const View& device) {
  const auto flat = to_host(device);
  Rows<typename View::non_const_value_type> rows;
  const auto columns = static_cast<std::ptrdiff_t>(device.extent(1));
  for (std::size_t r = 0; r < device.extent(0); ++r) {
    const auto first = flat.begin() + static_cast<std::ptrdiff_t>(r) * columns;
    rows.emplace_back(first, first + columns);
  }
  return rows;
}

/// A batch in device memory, its page table with `spare` elements of junk between rows.
template <class MemorySpace, class Length = std::int32_t, class RequestIndex = std::int32_t>
struct DeviceBatch {
  explicit DeviceBatch(const Batch& batch, std::size_t spare = 0)
      : prefix_lens(to_device<Length, MemorySpace>(batch.prefix_lens)),
        req_pool_indices(to_device<RequestIndex, MemorySpace>(batch.req_pool_indices)),
        rows(batch.req_to_page.size()),
        width(rows == 0 ? 0 : batch.req_to_page[0].size()),
        row_stride(width + spare),
        page_size(batch.page_size) {
    std::vector<std::int32_t> flat;
    for (const auto& row : batch.req_to_page) {
      flat.insert(flat.end(), row.begin(), row.end());
      flat.insert(flat.end(), spare, -12345678);
    }
    page_ids = to_device<std::int32_t, MemorySpace>(flat);
  }

  [[nodiscard]] cp::PagedPrefix<MemorySpace, Length, RequestIndex> prefix() const {
    return {prefix_lens, cp::page_table<MemorySpace>(page_ids.data(), rows, width, row_stride),
            req_pool_indices, page_size};
  }

  cp::Array1D<Length, MemorySpace> prefix_lens;
  cp::Array1D<RequestIndex, MemorySpace> req_pool_indices;
  cp::Array1D<std::int32_t, MemorySpace> page_ids;
  std::size_t rows, width, row_stride;
  std::int64_t page_size;
};

/// Reads back what `metadata` holds after `plan`.
template <class MemorySpace, class Slot>
[[nodiscard]] Result read_back(const cp::ChunkPlan& plan,
                               const cp::ChunkedPrefillMetadata<MemorySpace, Slot>& metadata) {
  const auto chunks = metadata.chunks();
  Result result{.starts = to_host_rows(chunks.starts),
                .ends = to_host_rows(chunks.ends),
                .len_in_chunk = to_host_rows(chunks.len_in_chunk),
                .cum_seq_lens = to_host_rows(chunks.cum_seq_lens),
                .max_chunk_len_per_loop = {plan.max_chunk_len_per_loop().begin(),
                                           plan.max_chunk_len_per_loop().end()},
                .chunk_kv_indices = {}};
  for (std::int32_t loop = 0; loop < metadata.chunked_loop_num(); ++loop) {
    const auto slots = to_host(metadata.chunk_kv_indices(loop));
    result.chunk_kv_indices.emplace_back(slots.begin(), slots.end());
  }
  return result;
}

/// Builds `batch` on `Space` and reads everything back.
template <class Space, class Slot = std::int32_t, class Length = std::int32_t,
          class RequestIndex = std::int32_t>
[[nodiscard]] Result build(const Batch& batch, std::size_t spare = 0) {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const DeviceBatch<MemorySpace, Length, RequestIndex> device(batch, spare);
  const cp::ChunkPlan plan = cp::plan_chunks(batch.prefix_lens, batch.options());
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata;
  cp::fill(space, plan, device.prefix(), metadata);
  space.fence();
  return read_back(plan, metadata);
}

/// A batch drawn from `seed`: skewed and equal, zero and long prefixes, lengths around multiples of
/// the page size and of the chunk, any page size.
[[nodiscard]] inline Batch random_batch(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  Batch batch;
  constexpr std::int64_t page_sizes[] = {1, 2, 3, 7, 16, 31, 48, 64, 100, 128};
  batch.page_size = page_sizes[draw(0, std::size(page_sizes) - 1)];
  const std::int64_t batch_size = draw(0, 3) == 0 ? draw(1, 300) : draw(1, 9);
  const std::int64_t chunk_len = draw(0, 2) == 0 ? draw(1, 3) : draw(1, 300);
  batch.chunk_capacity = batch_size * chunk_len + draw(0, batch_size - 1);
  const std::int64_t longest = std::min<std::int64_t>(draw(0, 2000), 200 * chunk_len);
  for (std::int64_t i = 0; i < batch_size; ++i) {
    std::int64_t length = 0;
    switch (draw(0, 4)) {
      case 0:
        length = 0;
        break;
      case 1:
        length = draw(0, longest);
        break;
      case 2:
        length = draw(0, 20) * chunk_len + draw(-1, 1);
        break;
      case 3:
        length = draw(0, 20) * batch.page_size + draw(-1, 1);
        break;
      default:
        length = longest;
        break;
    }
    batch.prefix_lens.push_back(
        static_cast<std::int32_t>(std::clamp<std::int64_t>(length, 0, longest)));
  }
  make_page_table(batch, random);
  return batch;
}

/// The same sequences packed, with this or another capacity and a grain of 1, the page size or any
/// other.
[[nodiscard]] inline Batch random_packed_batch(std::uint32_t seed) {
  Batch batch = random_batch(seed);
  std::mt19937 random(seed + 1);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  batch.policy = cp::Policy::packed;
  batch.chunk_capacity = draw(0, 1) == 0 ? batch.chunk_capacity : draw(20, 4000);
  const std::int64_t grains[] = {1, batch.page_size, draw(1, 200)};
  batch.grain = std::min(grains[draw(0, 2)], batch.chunk_capacity);
  return batch;
}

/// One rank's part of a drawn batch, under either policy.
[[nodiscard]] inline Batch random_shard(std::uint32_t seed) {
  Batch batch = seed % 2 == 0 ? random_batch(seed) : random_packed_batch(seed);
  std::mt19937 random(seed + 2);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return static_cast<std::int32_t>(
        std::uniform_int_distribution<std::int64_t>(least, most)(random));
  };
  batch.shard.world_size = draw(1, 9);
  batch.shard.rank = draw(0, batch.shard.world_size - 1);
  const std::int64_t interleaves[] = {1, batch.page_size, draw(1, 70), draw(1, 3000)};
  batch.shard.interleave = static_cast<std::int32_t>(interleaves[draw(0, 3)]);
  return batch;
}

}  // namespace test
