// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <cstdint>
#include <type_traits>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// How a host thread writes slots in order: into memory that the caches hold, or past them.

namespace chunked_prefill::impl {

/// Slots of a cache line of the host.
template <class Slot>
inline constexpr std::int32_t line = 64 / sizeof(Slot);

/// The slot `count` after `slot`; beyond the type it wraps.
template <class Slot>
KOKKOS_FUNCTION constexpr Slot plus(Slot slot, std::int32_t count) {
  using Unsigned = std::make_unsigned_t<Slot>;
  return static_cast<Slot>(static_cast<Unsigned>(slot) + static_cast<Unsigned>(count));
}

#if defined(__SSE2__)
/// `count` lines of slots that follow one another, from `first` on. What compilers make of a plain
/// loop is up to a third slower, and none of them stores past the caches by itself.
template <bool past_caches, Index Slot>
inline void write_lines(Slot first, std::int32_t count, Slot* out) {
  constexpr bool narrow = sizeof(Slot) == sizeof(std::int32_t);
  const auto all = [](Slot slot) {
    return narrow ? _mm_set1_epi32(static_cast<std::int32_t>(slot)) : _mm_set1_epi64x(slot);
  };
  const auto sum = [](__m128i a, __m128i b) {
    return narrow ? _mm_add_epi32(a, b) : _mm_add_epi64(a, b);
  };
  const auto store = [](__m128i* to, __m128i slots) {
    past_caches ? _mm_stream_si128(to, slots) : _mm_storeu_si128(to, slots);
  };
  constexpr Slot pack = 16 / sizeof(Slot);
  __m128i slots = sum(all(first), narrow ? _mm_setr_epi32(0, 1, 2, 3) : _mm_set_epi64x(1, 0));
  auto* to = reinterpret_cast<__m128i*>(out);
  for (std::int32_t k = 0; k < count; ++k, to += 4) {
    store(to, slots);
    store(to + 1, sum(slots, all(pack)));
    store(to + 2, sum(slots, all(2 * pack)));
    store(to + 3, sum(slots, all(3 * pack)));
    slots = sum(slots, all(4 * pack));
  }
}
#endif

/// Writes where it is told.
template <Index Slot>
class PlainWriter {
 public:
  KOKKOS_FUNCTION explicit PlainWriter(Slot* out) : m_out(out) {}

  /// `count` slots that follow one another, from `first` on.
  KOKKOS_FUNCTION void run(Slot first, std::int32_t count) {
    std::int32_t k = 0;
#if defined(__SSE2__)
    KOKKOS_IF_ON_HOST(
        (write_lines<false>(first, count / line<Slot>, m_out); k = count - count % line<Slot>;))
#endif
    for (; k < count; ++k) m_out[k] = plus(first, k);
    m_out += count;
  }
  /// `count` page ids of pages of one token.
  KOKKOS_FUNCTION void ids(const std::int32_t* page_ids, std::int32_t count) {
    for (std::int32_t k = 0; k < count; ++k) m_out[k] = page_ids[k];
    m_out += count;
  }
  KOKKOS_FUNCTION void finish() {}

 private:
  Slot* m_out;
};

/// Writes past the caches, which do not read the memory first that way: whole lines, the first and
/// the last of an output excepted. Pays for outputs that are larger than the caches.
template <Index Slot>
class StreamingWriter {
 public:
  KOKKOS_FUNCTION explicit StreamingWriter(Slot* out)
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
