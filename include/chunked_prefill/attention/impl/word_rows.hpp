// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/attention/impl/packs.hpp>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#define CHUNKED_PREFILL_F16C
#endif

// Rows on hosts, in words of 32 bits that hold several elements. Compilers make vectors of a loop
// that takes words apart by shifts and masks; single elements would take shuffles. Only finite
// elements, which need no selections; others are left to SmallFloat, whose results these are, bit
// for bit.

namespace chunked_prefill::impl {

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t load_word(const void* from) {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
KOKKOS_FORCEINLINE_FUNCTION void store_word(std::uint32_t word, void* to) {
  std::memcpy(to, &word, sizeof(word));
}

/// How elements lie in a word.
template <class T>
struct Words;
template <>
struct Words<BFloat16> {
  static constexpr int size = 2;  ///< elements
  static constexpr std::uint32_t magnitudes = 0x7fff7fff;
  static constexpr std::uint32_t carry = 0x00800080;  ///< of what is not finite, into the sign
  static constexpr int shift = 0;                     ///< to a float's exponent, from the top
  static constexpr std::uint32_t in_float = 0xffff0000;
  static constexpr float unit = 1;  ///< of that float
};
template <>
struct Words<Float16> {
  static constexpr int size = 2;
  static constexpr std::uint32_t magnitudes = 0x7fff7fff;
  static constexpr std::uint32_t carry = 0x04000400;
  static constexpr int shift = 3;
  static constexpr std::uint32_t in_float = 0x8fffe000;
  static constexpr float unit = 0x1p112F;
};
template <>
struct Words<Float8E4M3> {
  static constexpr int size = 4;
  static constexpr std::uint32_t magnitudes = 0x7f7f7f7f;
  static constexpr std::uint32_t carry = 0x01010101;
  static constexpr int shift = 4;
  static constexpr std::uint32_t in_float = 0x87f00000;
  static constexpr float unit = 0x1p120F;
};

/// Whether the first `count` elements of rows, whole words, are finite.
template <class T, class... More>
KOKKOS_FORCEINLINE_FUNCTION bool are_finite(std::int32_t count, const T* row, const More*... more) {
  const auto sum = [](const T* at) {
    return (load_word(at) & Words<T>::magnitudes) + Words<T>::carry;
  };
  std::uint32_t sums = 0;
  for (std::int32_t k = 0; k < count; k += Words<T>::size) {
    sums |= (sum(row + k) | ... | sum(more + k));
  }
  return (sums & ~Words<T>::magnitudes) == 0;
}

/// Element `k` of a word, in `unit`s.
template <class T, int k>
KOKKOS_FORCEINLINE_FUNCTION float element(std::uint32_t word) {
  const auto top = static_cast<std::int32_t>(word << (32 - 32 / Words<T>::size * (k + 1)));
  return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(top >> Words<T>::shift) &
                                 Words<T>::in_float);
}

/// Bits whose high half is the element nearest to `value`, which may round to infinity in BFloat16.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t rounded_high(float value) {
  const auto bits = Kokkos::bit_cast<std::uint32_t>(value);
  if constexpr (std::is_same_v<T, BFloat16>) {
    return bits + 0x7fff + ((bits >> 16) & 1);
  } else {
    // What has 1.5 * 2^13 times the value's power of two added, or that of the smallest normal
    // number, ends with the last bit of the element.
    constexpr std::int32_t smallest = 0x38800000;
    constexpr std::int32_t times = 0x06c00000;
    const auto power = static_cast<std::int32_t>(bits & 0x7f800000);
    const auto large = Kokkos::bit_cast<float>(Kokkos::max(power, smallest) + times);
    const float in_units = ((value + large) - large) * (1 / Words<T>::unit);
    return (Kokkos::bit_cast<std::uint32_t>(in_units) << Words<T>::shift) | (bits & 0x80000000);
  }
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t word_of(float low, float high) {
  return (rounded_high<T>(low) >> 16) | (rounded_high<T>(high) & 0xffff0000);
}

/// Merges the whole words of rows with such a form, where all their elements are finite.
/// \param of_a, of_b weights of sum 1, so that the results are finite too; or NaN.
/// \returns how many elements that were.
template <class A, class B, class Out>
KOKKOS_FUNCTION std::int32_t merge_words(const A* a, const B* b, Out* to, std::int32_t dim,
                                         float of_a, float of_b) {
  if constexpr (sizeof(Out) == 2 && std::is_same_v<A, Out> && std::is_same_v<B, Out>) {
    const std::int32_t count = dim / 2 * 2;
    if (Kokkos::isnan(of_a) || !are_finite(count, a, b)) return 0;
#if defined(CHUNKED_PREFILL_F16C)
    // Instructions that compilers do not find, for half of the time.
    if constexpr (std::is_same_v<Out, Float16>) {
      const auto eight = [](const Float16* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      };
      std::int32_t k = 0;
      for (; k + 8 <= count; k += 8) {
        _mm_storeu_si128(
            reinterpret_cast<__m128i*>(to + k),
            _mm256_cvtps_ph(of_a * eight(a + k) + of_b * eight(b + k), _MM_FROUND_TO_NEAREST_INT));
      }
      return k;
    }
#endif
    of_a *= Words<Out>::unit;
    of_b *= Words<Out>::unit;
    CHUNKED_PREFILL_INDEPENDENT
    for (std::int32_t k = 0; k < count; k += 2) {
      const std::uint32_t word_a = load_word(a + k);
      const std::uint32_t word_b = load_word(b + k);
      const float low = of_a * element<A, 0>(word_a) + of_b * element<B, 0>(word_b);
      const float high = of_a * element<A, 1>(word_a) + of_b * element<B, 1>(word_b);
      store_word(word_of<Out>(low, high), to + k);
    }
    return count;
  }
  return 0;
}

/// Converts the whole words of a row with such a form, where all its elements are finite.
/// \returns how many elements that were.
template <class From, class To>
KOKKOS_FUNCTION std::int32_t convert_words(const From* from, To* to, std::int32_t columns,
                                           float scale) {
  if constexpr (std::is_same_v<From, Float8E4M3> && std::is_same_v<To, BFloat16>) {
    const std::int32_t count = columns / 4 * 4;
    const float unit = Words<From>::unit * scale;
    if (!Kokkos::isfinite(unit) || !are_finite(count, from)) return 0;
    const auto convert = [&](const auto& word_of_two) {
      CHUNKED_PREFILL_INDEPENDENT
      for (std::int32_t k = 0; k < count; k += 4) {
        const std::uint32_t word = load_word(from + k);
        store_word(word_of_two(element<From, 0>(word) * unit, element<From, 1>(word) * unit),
                   to + k);
        store_word(word_of_two(element<From, 2>(word) * unit, element<From, 3>(word) * unit),
                   to + k + 2);
      }
    };
    if (scale == 1.0F) {  // exact
      convert([](float low, float high) {
        return (Kokkos::bit_cast<std::uint32_t>(low) >> 16) | Kokkos::bit_cast<std::uint32_t>(high);
      });
    } else {
      convert([](float low, float high) { return word_of<To>(low, high); });
    }
    return count;
  }
  return 0;
}

}  // namespace chunked_prefill::impl
