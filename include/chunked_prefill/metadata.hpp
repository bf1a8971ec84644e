// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/chunks.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace chunked_prefill {

/// Elements of each device array of a build.
struct MetadataSizes {
  std::size_t starts = 0;            ///< also of `ends` and `len_in_chunk`; int32
  std::size_t cum_seq_lens = 0;      ///< int32
  std::size_t offsets = 0;           ///< int64
  std::size_t chunk_kv_indices = 0;  ///< slots, int32 or int64
  friend bool operator==(const MetadataSizes&, const MetadataSizes&) = default;
};

/// Sizes for every batch up to these bounds.
/// \throws InvalidArgument naming a bound that is negative, beyond INT32_MAX, or more tokens than
///   `batch_size` prefixes can have.
[[nodiscard]] MetadataSizes required_sizes(std::int64_t batch_size, std::int64_t chunked_loop_num,
                                           std::int64_t total_tokens);
/// Sizes for exactly this plan.
[[nodiscard]] MetadataSizes required_sizes(const ChunkPlan& plan);
/// Sizes for every batch within the bounds of `shape`.
[[nodiscard]] MetadataSizes required_sizes(const ChunkShape& shape);

/// The device memory of a build, flat. An engine fills this in with Views over memory of its own;
/// each array must be at least as large as `required_sizes` says, and none may overlap another.
template <class MemorySpace, Index Slot = std::int32_t>
struct MetadataBuffers {
  Array1D<std::int32_t, MemorySpace> starts;
  Array1D<std::int32_t, MemorySpace> ends;
  Array1D<std::int32_t, MemorySpace> len_in_chunk;
  Array1D<std::int32_t, MemorySpace> cum_seq_lens;
  Array1D<std::int64_t, MemorySpace> offsets;
  Array1D<Slot, MemorySpace> chunk_kv_indices;
};

/// What a prefill step hands to attention: the chunk table and the cache slots of every loop, on
/// the device, in buffers that are kept from step to step.
///
/// Accessors by loop refuse a `loop` outside [0, chunked_loop_num) with InvalidArgument.
///
/// The Views that the accessors return alias the buffers: they are valid until the next `fill`,
/// `reserve` or `resize` on the same object, and hold what `fill` wrote once its execution space
/// has run it. Not safe for use by several host threads at once; use one object a thread.
template <class MemorySpace, Index Slot = std::int32_t>
class ChunkedPrefillMetadata {
 public:
  using memory_space = MemorySpace;
  using slot_type = Slot;

  /// Owns its buffers, which start empty and grow when a batch needs more than they hold. Growing
  /// allocates and may wait for the device; `reserve` does it ahead of time.
  ChunkedPrefillMetadata() = default;

  /// Writes into an engine's buffers and allocates no device memory: a batch that does not fit is
  /// refused.
  explicit ChunkedPrefillMetadata(MetadataBuffers<MemorySpace, Slot> buffers)
      : m_buffers(std::move(buffers)), m_fixed(true) {}

  ChunkedPrefillMetadata(const ChunkedPrefillMetadata&) = delete;
  ChunkedPrefillMetadata& operator=(const ChunkedPrefillMetadata&) = delete;
  /// What is moved from is as default-constructed.
  ChunkedPrefillMetadata(ChunkedPrefillMetadata&& other) noexcept { *this = std::move(other); }
  ChunkedPrefillMetadata& operator=(ChunkedPrefillMetadata&& other) noexcept {
    m_buffers = std::exchange(other.m_buffers, {});
    m_fixed = std::exchange(other.m_fixed, false);
    m_shape = std::exchange(other.m_shape, {});
    m_offsets = std::exchange(other.m_offsets, {});
    return *this;
  }
  ~ChunkedPrefillMetadata() = default;

  /// Makes room for every batch up to `sizes`. Where that takes new memory the results of the last
  /// `fill` are gone, and there are no loops until the next.
  /// \throws InvalidArgument naming the buffer, when the buffers are an engine's and too small or
  ///   not aligned to their elements, or when a size is beyond what memory can hold. The object is
  ///   then as it was.
  void reserve(const MetadataSizes& sizes) {
    for_each_buffer(sizes, [&](const auto& buffer, const char* name, std::size_t size) {
      check_room(buffer, name, size);
    });
    for_each_buffer(sizes, [&](auto& buffer, const char* name, std::size_t size) {
      make_room(buffer, name, size);
    });
    m_offsets.reserve(sizes.offsets);
  }

  /// Takes the shape of `plan`, growing where needed; `fill` calls it. The contents are undefined
  /// until the kernels of `fill` have written them.
  void resize(const ChunkPlan& plan) {
    resize(plan.shape());
    m_offsets.assign(plan.offsets().begin(), plan.offsets().end());
  }
  /// The same for a shape of which no batch is known yet: where its loops begin among the slots is
  /// on the device alone, in `offsets()`.
  void resize(const ChunkShape& shape) {
    reserve(required_sizes(shape));
    m_shape = shape;
    m_offsets.clear();
  }
  /// Takes the shape of `plan` in the buffers of a build that was captured for `shape` and is
  /// replayed with the batch of `plan`.
  ///
  /// \throws InvalidArgument naming what of `plan` is beyond `shape`; its batch size or chunk
  ///   length where that is another, its policy, grain and shard included; `shape` when the buffers
  ///   are too small for it, since those of a captured build stay where they are.
  void resize_within(const ChunkPlan& plan, const ChunkShape& shape) {
    impl::check_within(plan.shape(), shape);
    const MetadataSizes held{
        .starts = std::min({m_buffers.starts.extent(0), m_buffers.ends.extent(0),
                            m_buffers.len_in_chunk.extent(0)}),
        .cum_seq_lens = m_buffers.cum_seq_lens.extent(0),
        .offsets = m_buffers.offsets.extent(0),
        .chunk_kv_indices = m_buffers.chunk_kv_indices.extent(0)};
    const MetadataSizes needed = required_sizes(shape);
    if (held.starts < needed.starts || held.cum_seq_lens < needed.cum_seq_lens ||
        held.offsets < needed.offsets || held.chunk_kv_indices < needed.chunk_kv_indices) {
      throw InvalidArgument("shape", "this object's buffers never held a build of it");
    }
    resize(plan);
  }

  [[nodiscard]] std::int32_t chunked_loop_num() const { return m_shape.chunked_loop_num; }
  [[nodiscard]] std::int32_t batch_size() const { return m_shape.batch_size; }

  /// The chunk table, (chunked_loop_num, batch_size [+ 1]).
  [[nodiscard]] Chunks<MemorySpace> chunks() const {
    const auto columns = static_cast<std::size_t>(batch_size());
    return {.starts = table(m_buffers.starts, columns),
            .ends = table(m_buffers.ends, columns),
            .len_in_chunk = table(m_buffers.len_in_chunk, columns),
            .cum_seq_lens = table(m_buffers.cum_seq_lens, columns + 1)};
  }
  /// (batch_size) first position of each sequence in loop `loop`, and one past its last.
  [[nodiscard]] Array1D<std::int32_t, MemorySpace> starts(std::int32_t loop) const {
    return row(m_buffers.starts, loop, static_cast<std::size_t>(batch_size()));
  }
  [[nodiscard]] Array1D<std::int32_t, MemorySpace> ends(std::int32_t loop) const {
    return row(m_buffers.ends, loop, static_cast<std::size_t>(batch_size()));
  }
  /// (batch_size) tokens of each sequence in loop `loop`.
  [[nodiscard]] Array1D<std::int32_t, MemorySpace> len_in_chunk(std::int32_t loop) const {
    return row(m_buffers.len_in_chunk, loop, static_cast<std::size_t>(batch_size()));
  }
  /// (batch_size + 1) cumulative lengths of loop `loop`, as variable-length attention takes them.
  [[nodiscard]] Array1D<std::int32_t, MemorySpace> cum_seq_lens(std::int32_t loop) const {
    return row(m_buffers.cum_seq_lens, loop, static_cast<std::size_t>(batch_size()) + 1);
  }
  /// Cache slots of loop `loop`: sequence after sequence, `cum_seq_lens(loop)` says where each
  /// begins. A part of `chunk_kv_indices()`.
  /// \throws InvalidArgument naming `loop`, also when no plan has told where loops begin: after
  ///   `fill` with a shape, until `resize_within`.
  [[nodiscard]] Array1D<Slot, MemorySpace> chunk_kv_indices(std::int32_t loop) const {
    if (m_offsets.empty()) {
      throw InvalidArgument("loop", std::to_string(loop) +
                                        ", and no plan has told where loops begin among the slots");
    }
    impl::check_range("loop", loop, 0, std::int64_t{chunked_loop_num()} - 1);
    return Array1D<Slot, MemorySpace>(
        m_buffers.chunk_kv_indices.data() + m_offsets[loop],
        static_cast<std::size_t>(m_offsets[loop + 1] - m_offsets[loop]));
  }
  /// (total_tokens) cache slots of all loops, loop after loop.
  [[nodiscard]] Array1D<Slot, MemorySpace> chunk_kv_indices() const {
    return Array1D<Slot, MemorySpace>(m_buffers.chunk_kv_indices.data(),
                                      static_cast<std::size_t>(m_shape.total_tokens));
  }
  /// `chunk_kv_indices(loop)` of every loop; throws as that does.
  [[nodiscard]] std::vector<Array1D<Slot, MemorySpace>> chunk_kv_indices_list() const {
    std::vector<Array1D<Slot, MemorySpace>> list;
    list.reserve(static_cast<std::size_t>(chunked_loop_num()));
    for (std::int32_t loop = 0; loop < chunked_loop_num(); ++loop) {
      list.push_back(chunk_kv_indices(loop));
    }
    return list;
  }
  /// (chunked_loop_num + 1) where each loop begins in `chunk_kv_indices()`, on the device; empty
  /// when there are no loops. The host's copy is `ChunkPlan::offsets`.
  [[nodiscard]] Array1D<std::int64_t, MemorySpace> offsets() const {
    return Array1D<std::int64_t, MemorySpace>(m_buffers.offsets.data(),
                                              required_sizes(m_shape).offsets);
  }

 private:
  /// Calls `use(buffer, name, elements)` for each buffer.
  template <class Use>
  void for_each_buffer(const MetadataSizes& sizes, const Use& use) {
    use(m_buffers.starts, "starts", sizes.starts);
    use(m_buffers.ends, "ends", sizes.starts);
    use(m_buffers.len_in_chunk, "len_in_chunk", sizes.starts);
    use(m_buffers.cum_seq_lens, "cum_seq_lens", sizes.cum_seq_lens);
    use(m_buffers.offsets, "offsets", sizes.offsets);
    use(m_buffers.chunk_kv_indices, "chunk_kv_indices", sizes.chunk_kv_indices);
  }
  template <class T>
  void check_room(const Array1D<T, MemorySpace>& buffer, const char* name, std::size_t size) const {
    const std::size_t held = buffer.extent(0);
    if (m_fixed && (held < size || !impl::is_aligned(buffer.data()))) {
      const std::string argument = std::string("buffers.") + name;
      impl::check_at_least(argument, held, size);
      impl::check_aligned(argument, buffer.data());
    }
    if (held < size) impl::check_countable<T>(std::string("sizes.") + name, size);
  }
  template <class T>
  void make_room(Array1D<T, MemorySpace>& buffer, const char* name, std::size_t size) {
    const std::size_t held = buffer.extent(0);
    if (held >= size) return;
    // The old results go first: nobody reads them in half-grown buffers, and old and new memory are
    // never held together.
    m_offsets.clear();
    m_shape = {};
    buffer = {};
    // Half as much again, so that slowly growing batches do not allocate at every step.
    buffer = Array1D<T, MemorySpace>(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string("chunked_prefill::") + name),
        std::max(size, held + held / 2));
  }
  template <class T>
  [[nodiscard]] Array2D<T, MemorySpace> table(const Array1D<T, MemorySpace>& buffer,
                                              std::size_t columns) const {
    return Array2D<T, MemorySpace>(buffer.data(), static_cast<std::size_t>(chunked_loop_num()),
                                   columns);
  }
  template <class T>
  [[nodiscard]] Array1D<T, MemorySpace> row(const Array1D<T, MemorySpace>& buffer,
                                            std::int32_t loop, std::size_t columns) const {
    impl::check_range("loop", loop, 0, std::int64_t{chunked_loop_num()} - 1);
    return Array1D<T, MemorySpace>(buffer.data() + static_cast<std::size_t>(loop) * columns,
                                   columns);
  }

  MetadataBuffers<MemorySpace, Slot> m_buffers;
  bool m_fixed = false;  ///< the buffers are an engine's
  ChunkShape m_shape;
  std::vector<std::int64_t> m_offsets;  ///< the plan's; empty without one
};

}  // namespace chunked_prefill
