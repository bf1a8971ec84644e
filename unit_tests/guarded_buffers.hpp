// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include "batch.hpp"

namespace test {

/// An engine's buffers cut out of one allocation each with guard words on both sides.
template <class MemorySpace, class Slot>
struct GuardedBuffers {
  static constexpr int guard = -77777;

  explicit GuardedBuffers(const cp::MetadataSizes& sizes, std::size_t guard_words)
      : words(guard_words),
        starts("test::starts", sizes.starts + 2 * words),
        ends("test::ends", sizes.starts + 2 * words),
        len_in_chunk("test::len_in_chunk", sizes.starts + 2 * words),
        cum_seq_lens("test::cum_seq_lens", sizes.cum_seq_lens + 2 * words),
        offsets("test::offsets", sizes.offsets + 2 * words),
        slots("test::slots", sizes.chunk_kv_indices + 2 * words) {
    reset();
  }

  /// Guard words everywhere.
  void reset() const {
    Kokkos::deep_copy(starts, guard);
    Kokkos::deep_copy(ends, guard);
    Kokkos::deep_copy(len_in_chunk, guard);
    Kokkos::deep_copy(cum_seq_lens, guard);
    Kokkos::deep_copy(offsets, guard);
    Kokkos::deep_copy(slots, guard);
  }

  template <class T>
  [[nodiscard]] auto inner(const cp::Array1D<T, MemorySpace>& whole) const {
    return cp::array_view<MemorySpace>(whole.data() + words, whole.extent(0) - 2 * words);
  }
  [[nodiscard]] cp::MetadataBuffers<MemorySpace, Slot> buffers() const {
    return {.starts = inner(starts),
            .ends = inner(ends),
            .len_in_chunk = inner(len_in_chunk),
            .cum_seq_lens = inner(cum_seq_lens),
            .offsets = inner(offsets),
            .chunk_kv_indices = inner(slots)};
  }

  template <class T>
  void expect_guards(const cp::Array1D<T, MemorySpace>& whole, std::size_t written) const {
    const auto host = to_host(whole);
    for (std::size_t k = 0; k < host.size(); ++k) {
      if (k < words || k >= words + written) {
        ASSERT_EQ(host[k], guard) << whole.label() << " element " << k;
      } else {
        ASSERT_NE(host[k], guard) << whole.label() << " element " << k << " was not written";
      }
    }
  }
  /// Nothing was written.
  void expect_untouched() const { expect_only_written({}); }
  /// Everything `sizes` asks for was written, and nothing else.
  void expect_only_written(const cp::MetadataSizes& sizes) const {
    expect_guards(starts, sizes.starts);
    expect_guards(ends, sizes.starts);
    expect_guards(len_in_chunk, sizes.starts);
    expect_guards(cum_seq_lens, sizes.cum_seq_lens);
    expect_guards(offsets, sizes.offsets);
    expect_guards(slots, sizes.chunk_kv_indices);
  }

  std::size_t words;
  cp::Array1D<std::int32_t, MemorySpace> starts, ends, len_in_chunk, cum_seq_lens;
  cp::Array1D<std::int64_t, MemorySpace> offsets;
  cp::Array1D<Slot, MemorySpace> slots;
};

}  // namespace test
