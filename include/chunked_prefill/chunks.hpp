// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/instantiations.hpp>
#include <cstdint>
#include <string>

namespace chunked_prefill {

/// Which tokens of which sequence belong to which loop. Row `c` is loop `c`; all arrays are int32
/// and contiguous. Of a ContextShard the rank's own tokens: positions count them alone, as its
/// pages hold them one behind another.
///
/// Example: prefix_lens {0, 300, 0, 64}, split equally with chunk_len 256
///
///     starts        {{0, 0, 0, 0},       {256, 256, 256, 256}}
///     ends          {{0, 256, 0, 64},    {0, 300, 0, 64}}
///     len_in_chunk  {{0, 256, 0, 64},    {0, 44, 0, 0}}
///     cum_seq_lens  {{0, 0, 256, 256, 320}, {0, 0, 44, 44, 44}}
template <class MemorySpace>
struct Chunks {
  /// (chunked_loop_num, batch_size) first position of the chunk. Equal: `loop * chunk_len`, of
  /// a shard what it holds of that many. Packed: where the loops before end.
  Array2D<std::int32_t, MemorySpace> starts;
  /// (chunked_loop_num, batch_size) one past its last position. Equal: `min(prefix_len, start +
  /// chunk_len)`, of a shard what it holds of that many, which is less than `starts` where the
  /// prefix ended in an earlier loop. Packed: the `starts` of the next loop.
  Array2D<std::int32_t, MemorySpace> ends;
  /// (chunked_loop_num, batch_size) tokens of the chunk: `max(0, ends - starts)`.
  Array2D<std::int32_t, MemorySpace> len_in_chunk;
  /// (chunked_loop_num, batch_size + 1) exclusive sums of `len_in_chunk` along each row; the last
  /// column is the loop's total.
  Array2D<std::int32_t, MemorySpace> cum_seq_lens;

  [[nodiscard]] std::int32_t chunked_loop_num() const {
    return static_cast<std::int32_t>(starts.extent(0));
  }
  [[nodiscard]] std::int32_t batch_size() const {
    return static_cast<std::int32_t>(starts.extent(1));
  }
};

namespace impl {

template <class MemorySpace>
ChunkTable chunk_table(const Chunks<MemorySpace>& chunks) {
  return {.batch_size = chunks.batch_size(),
          .chunked_loop_num = chunks.chunked_loop_num(),
          .starts = chunks.starts.data(),
          .ends = chunks.ends.data(),
          .len_in_chunk = chunks.len_in_chunk.data(),
          .cum_seq_lens = chunks.cum_seq_lens.data()};
}

template <class MemorySpace, ExecutionSpace Space>
Chunks<MemorySpace> make_chunks(const Space& space, std::size_t chunked_loop_num,
                                std::size_t batch_size) {
  const auto table = [&](const std::string& label, std::size_t columns) {
    return Array2D<std::int32_t, MemorySpace>(
        Kokkos::view_alloc(space, Kokkos::WithoutInitializing, label), chunked_loop_num, columns);
  };
  return {.starts = table("chunked_prefill::starts", batch_size),
          .ends = table("chunked_prefill::ends", batch_size),
          .len_in_chunk = table("chunked_prefill::len_in_chunk", batch_size),
          .cum_seq_lens = table("chunked_prefill::cum_seq_lens", batch_size + 1)};
}

}  // namespace impl

/// Splits every prefix into chunks of `chunk_len` tokens and writes the chunk table.
///
/// Asynchronous with respect to `space`; one kernel, none for an empty table. Runs on any execution
/// space: the host's twin of a device table comes from this function on a host space, and equals
/// it bit for bit.
///
/// \param prefix_lens (batch_size) int32 or int64, tokens, contiguous, none negative.
/// \param chunk_len tokens, positive.
/// \param chunks all four arrays sized (chunked_loop_num, batch_size [+ 1]); must not overlap
///   `prefix_lens`.
/// \throws InvalidArgument naming the argument when `chunk_len` is not positive, when a start or
///   a loop's total can be beyond int32, when an array is not contiguous or extents disagree.
template <ExecutionSpace Space, class Lens, class MemorySpace>
void chunking(const Space& space, const Lens& prefix_lens, std::int64_t chunk_len,
              const Chunks<MemorySpace>& chunks) {
  using Length = typename Lens::non_const_value_type;
  static_assert(Index<Length>, "prefix_lens: elements must be int32 or int64");
  static_assert(
      AccessibleFrom<MemorySpace, Space> && AccessibleFrom<typename Lens::memory_space, Space>,
      "the execution space cannot reach the memory of prefix_lens or chunks");
  const std::size_t loops = chunks.starts.extent(0);
  const std::size_t batch_size = prefix_lens.extent(0);
  impl::check_array("prefix_lens", prefix_lens);
  impl::check_split(batch_size, loops, chunk_len);
  impl::check_table("chunks.starts", chunks.starts, loops, batch_size);
  impl::check_table("chunks.ends", chunks.ends, loops, batch_size);
  impl::check_table("chunks.len_in_chunk", chunks.len_in_chunk, loops, batch_size);
  impl::check_table("chunks.cum_seq_lens", chunks.cum_seq_lens, loops, batch_size + 1);
  impl::launch(
      space,
      impl::ChunkRows{.prefix_lens = impl::IndexArray(prefix_lens.data()),
                      .split = {.batch_size = chunks.batch_size(),
                                .chunk_len = impl::Divisor(static_cast<std::int32_t>(chunk_len)),
                                .max_prefix_len = INT32_MAX},
                      .table = impl::chunk_table(chunks)});
}

/// The same into a table of its own, allocated in the memory of `prefix_lens`, which may wait for
/// the device.
template <ExecutionSpace Space, class Lens>
[[nodiscard]] Chunks<typename Lens::memory_space> chunking(const Space& space,
                                                           const Lens& prefix_lens,
                                                           std::int64_t chunked_loop_num,
                                                           std::int64_t chunk_len) {
  using MemorySpace = typename Lens::memory_space;
  const std::size_t batch_size = prefix_lens.extent(0);
  impl::check_array("prefix_lens", prefix_lens);
  impl::check_range("chunked_loop_num", chunked_loop_num, 0, INT32_MAX);
  impl::check_split(batch_size, static_cast<std::size_t>(chunked_loop_num), chunk_len);
  const auto chunks =
      impl::make_chunks<MemorySpace>(space, static_cast<std::size_t>(chunked_loop_num), batch_size);
  chunking(space, prefix_lens, chunk_len, chunks);
  return chunks;
}

}  // namespace chunked_prefill
