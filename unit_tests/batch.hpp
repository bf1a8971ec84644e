// SPDX-License-Identifier: MIT
#pragma once

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
template <class Random>
void make_page_table(Batch& batch, Random& random) {
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

/// Of the first `tokens` tokens of a sequence, how many a rank holds: counted, one by one.
class HeldTokens {
 public:
  explicit HeldTokens(const cp::ContextShard& shard) : m_shard(shard) {}
  [[nodiscard]] std::int64_t operator()(std::int64_t tokens) {
    while (std::ssize(m_held) <= tokens) {
      m_held.push_back(m_held.back() + (holds(m_shard, std::ssize(m_held) - 1) ? 1 : 0));
    }
    return m_held[static_cast<std::size_t>(tokens)];
  }

 private:
  cp::ContextShard m_shard;
  std::vector<std::int64_t> m_held{0};
};

/// What a build must give, token by token from the definitions; shares no code with the library.
[[nodiscard]] inline Result oracle(const Batch& batch) {
  Result result;
  if (batch.prefix_lens.empty()) return result;
  HeldTokens held(batch.shard);
  for (const auto& loop :
       batch.policy == cp::Policy::packed ? packed_ranges(batch) : equal_ranges(batch)) {
    std::vector<std::int32_t> starts, ends, lens, cum{0};
    std::vector<std::int64_t> slots;
    for (std::size_t i = 0; i < loop.size(); ++i) {
      const auto [start, end] = loop[i];
      std::int32_t len = 0;
      for (std::int64_t position = start; position < end; ++position) {
        if (!holds(batch.shard, position)) continue;
        const std::int64_t place = held(position);
        const auto& row = batch.req_to_page[static_cast<std::size_t>(batch.req_pool_indices[i])];
        const std::int64_t page = row[static_cast<std::size_t>(place / batch.page_size)];
        slots.push_back(page * batch.page_size + place % batch.page_size);
        ++len;
      }
      starts.push_back(static_cast<std::int32_t>(held(start)));
      ends.push_back(static_cast<std::int32_t>(held(end)));
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

/// Which of the numbers that a plan must have a loop is another, counted in what its build must
/// give; empty when none is.
[[nodiscard]] inline std::string numbers_differ(const cp::ChunkPlan& plan, const Result& expected) {
  const auto& lens = expected.len_in_chunk;
  std::string difference;
  const auto differ = [&](const char* number, std::int64_t loop, std::int64_t got,
                          std::int64_t right) {
    if (got == right) return false;
    difference = number;
    if (loop >= 0) difference.append("(").append(std::to_string(loop)).append(")");
    difference += ": got " + std::to_string(got) + ", expected " + std::to_string(right);
    return true;
  };
  if (differ("chunked_loop_num", -1, plan.chunked_loop_num(), std::ssize(lens))) return difference;
  std::int64_t offset = 0;
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
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
    if (differ("tokens", loop, plan.tokens(loop), tokens) ||
        differ("offset", loop, plan.offset(loop), offset) ||
        differ("max_chunk_len", loop, plan.max_chunk_len(loop), longest) ||
        differ("seq_range.begin", loop, plan.seq_range(loop).begin, range.begin) ||
        differ("seq_range.end", loop, plan.seq_range(loop).end, range.end) ||
        differ("non_empty_seqs", loop, plan.non_empty_seqs(loop), live) ||
        differ("has_empty_seq", loop, plan.has_empty_seq(loop), live < plan.batch_size())) {
      return difference;
    }
    offset += tokens;
  }
  differ("total_tokens", -1, plan.total_tokens(), offset);
  return difference;
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

}  // namespace test
