// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/store.hpp>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// How a host thread writes slots in order: into memory that the caches hold, or past them.

namespace chunked_prefill::impl {

/// Slots of a cache line of the host.
template <class Slot>
inline constexpr std::int32_t line = 64 / sizeof(Slot);

#if defined(__SSE2__)
// What compilers make of a plain loop is up to a third slower, and none of them stores past the
// caches by itself.

/// 16 bytes of slots that follow one another, from `first` on.
template <Index Slot>
inline __m128i pack_from(Slot first) {
  if constexpr (sizeof(Slot) == sizeof(std::int32_t)) {
    return _mm_add_epi32(_mm_set1_epi32(first), _mm_setr_epi32(0, 1, 2, 3));
  } else {
    return _mm_add_epi64(_mm_set1_epi64x(first), _mm_set_epi64x(1, 0));
  }
}

/// `count` lines of slots that follow one another, from `first` on.
template <bool past_caches, Index Slot>
inline void write_lines(Slot first, std::int32_t count, Slot* out) {
  constexpr std::int32_t pack = line<Slot> / 4;
  const auto add = [](__m128i slots, std::int32_t by) {
    return sizeof(Slot) == sizeof(std::int32_t) ? _mm_add_epi32(slots, _mm_set1_epi32(by))
                                                : _mm_add_epi64(slots, _mm_set1_epi64x(by));
  };
  const auto store = [](__m128i* to, __m128i slots) {
    past_caches ? _mm_stream_si128(to, slots) : _mm_storeu_si128(to, slots);
  };
  auto* to = reinterpret_cast<__m128i*>(out);
  __m128i slots = pack_from(first);
  for (std::int32_t k = 0; k < count; ++k, to += 4) {
    store(to, slots);
    store(to + 1, add(slots, pack));
    store(to + 2, add(slots, 2 * pack));
    store(to + 3, add(slots, 3 * pack));
    slots = add(slots, 4 * pack);
  }
}
#endif

/// Writes where it is told.
template <Index Slot>
class PlainWriter {
 public:
  /// \param size slots that will be written from `out` on.
  KOKKOS_FUNCTION PlainWriter(Slot* out, std::int32_t size) : m_out(out), m_left(size) {}

  /// `count` slots that follow one another, from `first` on.
  KOKKOS_FUNCTION void run(Slot first, std::int32_t count) {
    std::int32_t k = 0;
#if defined(__SSE2__)
    // The last line may reach into what the next run writes.
    KOKKOS_IF_ON_HOST(
        (const std::int32_t lines = Kokkos::min(lines_of(std::uint32_t(count) + line<Slot> - 1),
                                                lines_of(std::uint32_t(m_left)));
         write_lines<false>(first, lines, m_out); k = lines * line<Slot>;))
#endif
    for (; k < count; ++k) m_out[k] = plus(first, k);
    advance(count);
  }
  /// `count` page ids of pages of one token.
  KOKKOS_FUNCTION void ids(const std::int32_t* page_ids, std::int32_t count) {
    if constexpr (sizeof(Slot) == sizeof(std::int32_t)) {
      KOKKOS_IF_ON_HOST(
          (std::memcpy(m_out, page_ids, static_cast<std::size_t>(count) * sizeof(Slot));))
    } else {
      for (std::int32_t k = 0; k < count; ++k) m_out[k] = page_ids[k];
    }
    advance(count);
  }
  KOKKOS_FUNCTION void finish() {}

 private:
  /// Whole lines of `size` slots. Unsigned, which divides faster.
  static std::int32_t lines_of(std::uint32_t size) {
    return static_cast<std::int32_t>(size / line<Slot>);
  }
  KOKKOS_FUNCTION void advance(std::int32_t count) {
    m_out += count;
    m_left -= count;
  }

  Slot* m_out;
  std::int32_t m_left;
};

/// Writes past the caches, which do not read the memory first that way: whole lines, the first and
/// the last of an output excepted. Pays for outputs that are larger than the caches.
template <Index Slot>
class StreamingWriter {
 public:
  KOKKOS_FUNCTION StreamingWriter(Slot* out, std::int32_t)
      : m_begin(
            static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(out) % 64 / sizeof(Slot))),
        m_end(m_begin),
        m_out(out - m_begin) {}

  KOKKOS_FUNCTION void run(Slot first, std::int32_t count) {
    for (std::int32_t k = 0; k < count;) {
#if defined(__SSE2__)
      if (m_end == 0 && count - k >= line<Slot>) {
        const std::int32_t lines = (count - k) / line<Slot>;
        KOKKOS_IF_ON_HOST((write_lines<true>(plus(first, k), lines, m_out);))
        m_out += lines * line<Slot>;
        k += lines * line<Slot>;
        continue;
      }
#endif
      const std::int32_t here = Kokkos::min(count - k, line<Slot> - m_end);
      for (std::int32_t j = 0; j < here; ++j) m_line[m_end + j] = plus(first, k + j);
      added(here);
      k += here;
    }
  }
  KOKKOS_FUNCTION void ids(const std::int32_t* page_ids, std::int32_t count) {
    for (std::int32_t k = 0; k < count;) {
      const std::int32_t here = Kokkos::min(count - k, line<Slot> - m_end);
      for (std::int32_t j = 0; j < here; ++j) m_line[m_end + j] = page_ids[k + j];
      added(here);
      k += here;
    }
  }
  /// Others see what was written before anything that the thread writes next.
  KOKKOS_FUNCTION void finish() {
    copy_line();
#if defined(__SSE2__)
    KOKKOS_IF_ON_HOST((_mm_sfence();))
#endif
  }

 private:
  KOKKOS_FUNCTION void added(std::int32_t count) {
    m_end += count;
    if (m_end < line<Slot>) return;
    if (m_begin == 0) {
      stream_line();
    } else {
      copy_line();
    }
    m_out += line<Slot>;
    m_begin = 0;
    m_end = 0;
  }
  KOKKOS_FUNCTION void stream_line() {
#if defined(__SSE2__)
    KOKKOS_IF_ON_HOST((for (int k = 0; k < 4; ++k) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(m_out) + k,
                       _mm_load_si128(reinterpret_cast<const __m128i*>(m_line) + k));
    }))
#else
    copy_line();
#endif
  }
  KOKKOS_FUNCTION void copy_line() {
    for (std::int32_t k = m_begin; k < m_end; ++k) m_out[k] = m_line[k];
  }

  std::int32_t m_begin;  ///< [m_begin, m_end) of the line are there
  std::int32_t m_end;
  Slot* m_out;  ///< where the line goes
  alignas(64) Slot m_line[line<Slot>];
};

}  // namespace chunked_prefill::impl
