// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../batch.hpp"
#include "../draw.hpp"
#include "address_sanitizer.hpp"
#include "image.hpp"

namespace test {

/// Hands batches to every entry point of the library and compares all that comes back with the
/// serial oracle. Views, plan and metadata are kept from batch to batch.
template <class Space>
class Checker {
 public:
  using MemorySpace = typename Space::memory_space;

  explicit Checker(const Space& space = Space()) : m_space(space) {}

  /// The first difference in words, empty when there is none.
  [[nodiscard]] std::string check(const Case& of) {
    try {
      return of.wide_slots ? with_slots<std::int64_t>(of) : with_slots<std::int32_t>(of);
    } catch (const cp::Error& error) {
      return std::string("refused: ") + error.what();
    }
  }

 private:
  template <class T>
  using Array = Image::Array<T>;

  struct TableArrays {
    Array<std::int32_t> starts, ends, len_in_chunk, cum_seq_lens;
  };
  template <class Slot>
  struct OutputArrays {
    TableArrays table;
    Array<std::int64_t> offsets;
    Array<Slot> slots;
  };
  template <class Length, class RequestIndex>
  struct InputArrays {
    Array<Length> prefix_lens;
    Array<RequestIndex> requests;
    Array<RequestIndex> padded_requests;  ///< junk for sequences of length 0
    Array<std::int32_t> page_ids;
  };
  /// One loop's gather.
  template <class Slot>
  struct GatherArrays {
    std::size_t loop;
    Array<std::int32_t> starts, cum_seq_lens;
    Array<Slot> slots;
  };

  template <class Slot>
  std::string with_slots(const Case& of) {
    if (of.wide_lengths) {
      return of.wide_requests ? run<Slot, std::int64_t, std::int64_t>(of)
                              : run<Slot, std::int64_t, std::int32_t>(of);
    }
    return of.wide_requests ? run<Slot, std::int32_t, std::int64_t>(of)
                            : run<Slot, std::int32_t, std::int32_t>(of);
  }

  template <class Slot, class Length, class RequestIndex>
  std::string run(const Case& of) {
    const Batch& batch = of.batch;
    const Result expected = oracle(batch);
    const std::vector<Length> lens(batch.prefix_lens.begin(), batch.prefix_lens.end());
    cp::plan_chunks(std::span(lens), batch.options(), m_plan);
    if (auto difference = numbers_differ(m_plan, expected); !difference.empty()) {
      return "plan_chunks: " + difference;
    }
    const std::size_t sequences = lens.size();
    const std::size_t loops = expected.starts.size();
    const auto tokens = static_cast<std::size_t>(m_plan.total_tokens());
    const cp::ChunkShape shape = shape_of(of);
    const bool bounded = is_small(shape.chunked_loop_num, sequences);
    // The steps alone know no packed splits and no ranks.
    const bool whole =
        batch.policy == cp::Policy::equal && batch.shard.world_size == 1 && sequences > 0;

    // Where everything lies.
    Draw draw(of.layout);
    m_image.clear();
    const auto input = add_inputs<Length, RequestIndex>(of, draw);
    const auto planned = add_outputs<Slot>("fill(plan)", loops, sequences, tokens, draw);
    const auto owned =
        add_outputs<Slot>("fill(plan), kept metadata", loops, sequences, tokens, draw);
    OutputArrays<Slot> replayed;
    if (bounded) {
      replayed = add_outputs<Slot>("fill(shape)", static_cast<std::size_t>(shape.chunked_loop_num),
                                   sequences, static_cast<std::size_t>(shape.total_tokens), draw);
    }
    TableArrays chunked;
    const std::size_t chunked_loops = loops + static_cast<std::size_t>(draw(0, 2));
    if (whole) chunked = add_table("chunking", chunked_loops, sequences, draw);
    std::optional<GatherArrays<Slot>> gather;
    if (loops > 0) gather = add_gather<Slot>(expected, draw);
    m_image.reset();

    // What is in it before and after.
    put_inputs(of, input);
    expect_outputs(of, expected, planned, loops);
    expect_outputs(of, expected, owned, loops);
    if (bounded) {
      expect_outputs(of, expected, replayed, static_cast<std::size_t>(shape.chunked_loop_num));
    }
    if (whole) expect_table(of, expected, chunked, chunked_loops);
    if (gather) expect_gather(expected, *gather);

    to_device();
    const auto requests = on_device(input.requests);
    const auto lengths = on_device(input.prefix_lens);
    const std::size_t rows = batch.req_to_page.size();
    const std::size_t width = rows == 0 ? 0 : batch.req_to_page[0].size();
    const auto table = cp::page_table<MemorySpace>(on_device(input.page_ids).data(), rows, width,
                                                   width + static_cast<std::size_t>(of.spare));
    const std::int64_t num_pages = draw.one_in(2)  ? 0
                                   : of.wide_slots ? std::int64_t{INT32_MAX} + 1
                                                   : INT32_MAX / batch.page_size;
    using Prefix = cp::PagedPrefix<MemorySpace, Length, RequestIndex>;
    const Prefix prefix{lengths, table, requests, batch.page_size, num_pages};

    std::string difference = fill_planned<Slot>(prefix, planned);
    if (difference.empty()) {
      difference = fill_owned<Slot>(prefix, lens, batch, expected, owned, draw(0, 15));
    }
    if (difference.empty() && bounded) {
      const Prefix padded{lengths, table, on_device(input.padded_requests), batch.page_size,
                          num_pages};
      difference = fill_replayed<Slot>(padded, shape, replayed);
    }
    if (!difference.empty()) return difference;
    if (whole) {
      const std::int64_t chunk_len = batch.chunk_capacity / static_cast<std::int64_t>(sequences);
      if (draw.one_in(16)) {
        copy_table(
            cp::chunking(m_space, lengths, static_cast<std::int64_t>(chunked_loops), chunk_len),
            chunked);
      } else {
        cp::chunking(m_space, lengths, chunk_len, chunks_of(chunked, chunked_loops, sequences));
      }
    }
    if (gather) {
      cp::create_chunked_cache_kv_indices_paged(m_space, table, requests, on_device(gather->starts),
                                                on_device(gather->cum_seq_lens),
                                                on_device(gather->slots), batch.page_size);
    }
    return m_image.difference(to_host());
  }

  /// Tables stay small: bounds on a long batch with a large grain have many loops.
  static bool is_small(std::int64_t loops, std::size_t sequences) {
    return loops * static_cast<std::int64_t>(sequences) <= 60000;
  }

  static cp::ChunkShape shape_of(const Case& of) {
    const auto sequences = std::ssize(of.batch.prefix_lens);
    const std::int64_t longest = of.longest() + of.more_longest;
    return cp::bounding_shape(
        {.batch_size = sequences,
         .max_prefix_len = longest,
         .total_tokens = std::min(of.tokens() + of.more_tokens, sequences * longest)},
        of.batch.options());
  }

  template <class Length, class RequestIndex>
  InputArrays<Length, RequestIndex> add_inputs(const Case& of, Draw& draw) {
    const std::size_t sequences = of.batch.prefix_lens.size();
    const std::size_t rows = of.batch.req_to_page.size();
    const std::size_t width = rows == 0 ? 0 : of.batch.req_to_page[0].size();
    const std::size_t page_ids =
        rows == 0 ? 0 : rows * width + (rows - 1) * static_cast<std::size_t>(of.spare);
    const char* const build = "inputs";
    return {.prefix_lens = add<Length>(build, "prefix_lens", sequences, draw),
            .requests = add<RequestIndex>(build, "req_pool_indices", sequences, draw),
            .padded_requests = add<RequestIndex>(build, "padded req_pool_indices", sequences, draw),
            .page_ids = add<std::int32_t>(build, "req_to_page", page_ids, draw)};
  }
  TableArrays add_table(const char* build, std::size_t loops, std::size_t sequences, Draw& draw) {
    const std::size_t chunks = loops * sequences;
    return {.starts = add<std::int32_t>(build, "starts", chunks, draw),
            .ends = add<std::int32_t>(build, "ends", chunks, draw),
            .len_in_chunk = add<std::int32_t>(build, "len_in_chunk", chunks, draw),
            .cum_seq_lens = add<std::int32_t>(build, "cum_seq_lens", chunks + loops, draw)};
  }
  template <class Slot>
  OutputArrays<Slot> add_outputs(const char* build, std::size_t loops, std::size_t sequences,
                                 std::size_t tokens, Draw& draw) {
    return {.table = add_table(build, loops, sequences, draw),
            .offsets = add<std::int64_t>(build, "offsets", loops == 0 ? 0 : loops + 1, draw),
            .slots = add<Slot>(build, "chunk_kv_indices", tokens, draw)};
  }
  /// The output has room for the loop, for less or for more.
  template <class Slot>
  GatherArrays<Slot> add_gather(const Result& expected, Draw& draw) {
    const auto loop = static_cast<std::size_t>(draw(0, std::ssize(expected.starts) - 1));
    const std::size_t sequences = expected.starts[loop].size();
    const std::size_t tokens = expected.chunk_kv_indices[loop].size();
    const auto less = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(tokens)));
    const std::size_t rooms[] = {tokens, tokens, less, tokens + 5};
    const char* const build = "create_chunked_cache_kv_indices_paged";
    return {.loop = loop,
            .starts = add<std::int32_t>(build, "chunk_starts", sequences, draw),
            .cum_seq_lens = add<std::int32_t>(build, "chunk_cum_seq_lens", sequences + 1, draw),
            .slots = add<Slot>(build, "chunk_kv_indices", draw.of(rooms), draw)};
  }
  template <class T>
  Array<T> add(const char* build, const char* name, std::size_t count, Draw& draw) {
    return m_image.template add<T>(build, name, count, static_cast<std::size_t>(draw(2, 9)));
  }

  template <class Length, class RequestIndex>
  void put_inputs(const Case& of, const InputArrays<Length, RequestIndex>& input) {
    const Batch& batch = of.batch;
    m_image.put(input.prefix_lens, batch.prefix_lens);
    m_image.put(input.requests, batch.req_pool_indices);
    m_values.assign(batch.req_pool_indices.begin(), batch.req_pool_indices.end());
    for (std::size_t i = 0; i < m_values.size(); ++i) {
      if (batch.prefix_lens[i] == 0) m_values[i] = i % 2 == 0 ? INT32_MAX : -1;
    }
    m_image.put(input.padded_requests, m_values);
    m_values.clear();
    for (std::size_t row = 0; row < batch.req_to_page.size(); ++row) {
      if (row > 0) m_values.insert(m_values.end(), static_cast<std::size_t>(of.spare), -9);
      m_values.insert(m_values.end(), batch.req_to_page[row].begin(), batch.req_to_page[row].end());
    }
    m_image.put(input.page_ids, m_values);
  }

  /// Rows of the batch's loops, then of loops in which every sequence has ended.
  void expect_table(const Case& of, const Result& expected, const TableArrays& arrays,
                    std::size_t loops) {
    write_rows(m_image.expected(arrays.starts), expected.starts);
    write_rows(m_image.expected(arrays.ends), expected.ends);
    write_rows(m_image.expected(arrays.len_in_chunk), expected.len_in_chunk);
    write_rows(m_image.expected(arrays.cum_seq_lens), expected.cum_seq_lens);
    const Batch& batch = of.batch;
    const std::size_t sequences = batch.prefix_lens.size();
    HeldTokens held(batch.shard);
    for (std::size_t loop = expected.starts.size(); loop < loops; ++loop) {
      for (std::size_t i = 0; i < sequences; ++i) {
        const std::int64_t length = batch.prefix_lens[i];
        std::int64_t start = length;
        if (batch.policy == cp::Policy::equal) {
          start = static_cast<std::int64_t>(loop) *
                  (batch.chunk_capacity / std::ssize(batch.prefix_lens));
        }
        const std::size_t at = loop * sequences + i;
        m_image.expected(arrays.starts)[at] = static_cast<std::int32_t>(held(start));
        m_image.expected(arrays.ends)[at] = static_cast<std::int32_t>(held(length));
        m_image.expected(arrays.len_in_chunk)[at] = 0;
      }
      const auto cum = m_image.expected(arrays.cum_seq_lens);
      std::ranges::fill(cum.subspan(loop * (sequences + 1), sequences + 1), 0);
    }
  }
  template <class Slot>
  void expect_outputs(const Case& of, const Result& expected, const OutputArrays<Slot>& arrays,
                      std::size_t loops) {
    expect_table(of, expected, arrays.table, loops);
    write_rows(m_image.expected(arrays.slots), expected.chunk_kv_indices);
    const auto offsets = m_image.expected(arrays.offsets);
    std::int64_t offset = 0;
    for (std::size_t loop = 0; loop < offsets.size(); ++loop) {
      offsets[loop] = offset;
      if (loop < expected.chunk_kv_indices.size())
        offset += std::ssize(expected.chunk_kv_indices[loop]);
    }
  }
  template <class Slot>
  void expect_gather(const Result& expected, const GatherArrays<Slot>& arrays) {
    m_image.put(arrays.starts, expected.starts[arrays.loop]);
    m_image.put(arrays.cum_seq_lens, expected.cum_seq_lens[arrays.loop]);
    const auto& slots = expected.chunk_kv_indices[arrays.loop];
    const auto room = m_image.expected(arrays.slots);
    std::transform(slots.begin(), slots.begin() + std::min(std::ssize(slots), std::ssize(room)),
                   room.begin(), [](std::int64_t slot) { return static_cast<Slot>(slot); });
  }
  template <class T, class Value>
  static void write_rows(std::span<T> elements, const Rows<Value>& rows) {
    auto at = elements.begin();
    for (const auto& row : rows) {
      at = std::ranges::transform(row, at, [](Value value) { return static_cast<T>(value); }).out;
    }
  }

  /// Into an engine's buffers of just the size.
  template <class Slot, class Prefix>
  std::string fill_planned(const Prefix& prefix, const OutputArrays<Slot>& arrays) {
    if (cp::required_sizes(m_plan) != sizes_of(arrays)) return "required_sizes(plan): another size";
    cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata(buffers_of(arrays));
    cp::fill(m_space, m_plan, prefix, metadata);
    return views_differ(metadata);
  }
  /// As a captured build, of which the host learns the batch afterwards.
  template <class Slot, class Prefix>
  std::string fill_replayed(const Prefix& prefix, const cp::ChunkShape& shape,
                            const OutputArrays<Slot>& arrays) {
    if (cp::required_sizes(shape) != sizes_of(arrays)) return "required_sizes(shape): another size";
    cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata(buffers_of(arrays));
    cp::fill(m_space, shape, prefix, metadata);
    metadata.resize_within(m_plan, shape);
    return views_differ(metadata);
  }
  /// Into buffers that grow and stay, through any of the calls that build.
  template <class Slot, class Prefix, class Length>
  std::string fill_owned(const Prefix& prefix, const std::vector<Length>& lens, const Batch& batch,
                         const Result& expected, const OutputArrays<Slot>& arrays,
                         std::int64_t call) {
    auto& metadata = std::get<cp::ChunkedPrefillMetadata<MemorySpace, Slot>>(m_kept);
    cp::Chunks<MemorySpace> chunks;
    if (call == 0) {
      const auto built = cp::get_chunks_paged(m_space, prefix, lens, batch.options(), metadata);
      chunks = built.chunks;
      if (auto difference = list_differs(built.chunk_kv_indices_list, metadata);
          !difference.empty()) {
        return "get_chunks_paged: " + difference;
      }
      const auto& host = built.chunks_host;
      if (to_host_rows(host.starts) != expected.starts ||
          to_host_rows(host.ends) != expected.ends ||
          to_host_rows(host.len_in_chunk) != expected.len_in_chunk ||
          to_host_rows(host.cum_seq_lens) != expected.cum_seq_lens) {
        return "get_chunks_paged: the host's chunks are others";
      }
    } else if (call == 1) {
      const auto built = cp::build_chunked_prefill_metadata_arrays(m_space, prefix, lens,
                                                                   batch.options(), metadata);
      chunks = metadata.chunks();
      chunks.len_in_chunk = built.chunked_seq_len;
      chunks.cum_seq_lens = built.cu_chunked_seq_len;
      if (auto difference = list_differs(built.chunk_kv_indices_list, metadata);
          !difference.empty()) {
        return "build_chunked_prefill_metadata_arrays: " + difference;
      }
      if (built.max_chunk_len_per_loop != expected.max_chunk_len_per_loop) {
        return "build_chunked_prefill_metadata_arrays: another max_chunk_len_per_loop";
      }
    } else {
      cp::fill(m_space, m_plan, prefix, metadata);
      chunks = metadata.chunks();
    }
    copy_table(chunks, arrays.table);
    copy(metadata.offsets(), arrays.offsets);
    copy(metadata.chunk_kv_indices(), arrays.slots);
    return views_differ(metadata);
  }

  /// The Views of the plan's loops are where its numbers say.
  template <class Slot>
  std::string views_differ(const cp::ChunkedPrefillMetadata<MemorySpace, Slot>& metadata) const {
    if (metadata.chunked_loop_num() != m_plan.chunked_loop_num() ||
        metadata.batch_size() != m_plan.batch_size()) {
      return "metadata: of another shape than the plan";
    }
    const std::int32_t last = m_plan.chunked_loop_num() - 1;
    if (last < 0) return "";
    const auto slots = metadata.chunk_kv_indices(last);
    if (slots.data() != metadata.chunk_kv_indices().data() + m_plan.offset(last) ||
        static_cast<std::int64_t>(slots.extent(0)) != m_plan.tokens(last)) {
      return "metadata: the last loop's slots are elsewhere";
    }
    return "";
  }
  template <class Slot>
  std::string list_differs(const std::vector<cp::Array1D<Slot, MemorySpace>>& list,
                           const cp::ChunkedPrefillMetadata<MemorySpace, Slot>& metadata) const {
    if (std::ssize(list) != m_plan.chunked_loop_num()) return "as many Views as no plan has loops";
    for (std::int32_t loop = 0; loop < m_plan.chunked_loop_num(); ++loop) {
      const auto& slots = list[static_cast<std::size_t>(loop)];
      if (slots.data() != metadata.chunk_kv_indices().data() + m_plan.offset(loop) ||
          static_cast<std::int64_t>(slots.extent(0)) != m_plan.tokens(loop)) {
        return "chunk_kv_indices_list[" + std::to_string(loop) + "] is elsewhere";
      }
    }
    return "";
  }

  template <class Slot>
  static cp::MetadataSizes sizes_of(const OutputArrays<Slot>& arrays) {
    return {.starts = arrays.table.starts.count,
            .cum_seq_lens = arrays.table.cum_seq_lens.count,
            .offsets = arrays.offsets.count,
            .chunk_kv_indices = arrays.slots.count};
  }
  template <class Slot>
  cp::MetadataBuffers<MemorySpace, Slot> buffers_of(const OutputArrays<Slot>& arrays) const {
    return {.starts = on_device(arrays.table.starts),
            .ends = on_device(arrays.table.ends),
            .len_in_chunk = on_device(arrays.table.len_in_chunk),
            .cum_seq_lens = on_device(arrays.table.cum_seq_lens),
            .offsets = on_device(arrays.offsets),
            .chunk_kv_indices = on_device(arrays.slots)};
  }
  cp::Chunks<MemorySpace> chunks_of(const TableArrays& arrays, std::size_t loops,
                                    std::size_t sequences) const {
    const auto table = [&](const Array<std::int32_t>& array, std::size_t columns) {
      return cp::Array2D<std::int32_t, MemorySpace>(on_device(array).data(), loops, columns);
    };
    return {.starts = table(arrays.starts, sequences),
            .ends = table(arrays.ends, sequences),
            .len_in_chunk = table(arrays.len_in_chunk, sequences),
            .cum_seq_lens = table(arrays.cum_seq_lens, sequences + 1)};
  }

  template <class T>
  cp::Array1D<T, MemorySpace> on_device(const Array<T>& array) const {
    return cp::array_view<MemorySpace>(reinterpret_cast<T*>(m_device.data() + array.at),
                                       array.count);
  }
  void copy_table(const cp::Chunks<MemorySpace>& chunks, const TableArrays& arrays) const {
    copy(chunks.starts, arrays.starts);
    copy(chunks.ends, arrays.ends);
    copy(chunks.len_in_chunk, arrays.len_in_chunk);
    copy(chunks.cum_seq_lens, arrays.cum_seq_lens);
  }
  /// From Views of any rank; an array that is smaller or larger stays guard words.
  template <class View, class T>
  void copy(const View& from, const Array<T>& to) const {
    if (from.size() != to.count || to.count == 0) return;
    Kokkos::deep_copy(m_space, on_device(to), cp::array_view<MemorySpace>(from.data(), to.count));
  }
  void to_device() {
    permit_gaps();  // of a check that found a difference early
    const std::size_t bytes = m_image.given().size();
    if (m_device.extent(0) < bytes) {
      m_device = {};
      m_device =
          Bytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, "test::image"), bytes * 3 / 2);
    }
    Kokkos::deep_copy(m_space, cp::array_view<MemorySpace>(m_device.data(), bytes),
                      HostBytes(m_image.given().data(), bytes));
    forbid_gaps();
  }
  std::span<const std::byte> to_host() {
    m_actual.resize(m_image.given().size());
    permit_gaps();
    Kokkos::deep_copy(m_space,
                      Kokkos::View<std::byte*, Kokkos::LayoutRight, Kokkos::HostSpace>(
                          m_actual.data(), m_actual.size()),
                      cp::array_view<MemorySpace>(m_device.data(), m_actual.size()));
    m_space.fence("test::Checker");
    return m_actual;
  }

  // A sanitizer sees reads between the arrays, which no value shows.
  static constexpr bool sanitized =
      under_address_sanitizer && std::is_same_v<MemorySpace, Kokkos::HostSpace>;
  void forbid_gaps() const {
    if (!sanitized) return;
    m_space.fence("test::Checker");
    m_image.for_each_gap([&](std::size_t begin, std::size_t end) {
      forbid_access(m_device.data() + begin, end - begin);
    });
  }
  void permit_gaps() const {
    if (!sanitized) return;
    m_space.fence("test::Checker");
    permit_access(m_device.data(), m_device.extent(0));
  }

  using Bytes = cp::Array1D<std::byte, MemorySpace>;
  using HostBytes = Kokkos::View<const std::byte*, Kokkos::LayoutRight, Kokkos::HostSpace>;

  Space m_space;
  cp::ChunkPlan m_plan;
  std::tuple<cp::ChunkedPrefillMetadata<MemorySpace, std::int32_t>,
             cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t>>
      m_kept;
  Image m_image;
  Bytes m_device;
  std::vector<std::byte> m_actual;
  std::vector<std::int64_t> m_values;
};

}  // namespace test
