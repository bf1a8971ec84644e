// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
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
// elements, which need no selections; others are left to SmallFloat. Conversions give what
// SmallFloat does, bit for bit; merges too, but for compilers that fuse the two products of one and
// not of the other.

namespace chunked_prefill::impl {

/// The order of a word's elements that is counted on; hosts of another do without words.
inline constexpr bool words_fit = std::endian::native == std::endian::little;

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
struct Words {
  static constexpr int size = 32 / T::width;  ///< elements
  /// The same bits in each element of a word.
  static constexpr std::uint32_t of_each(std::uint32_t bits) {
    return T::width == 8 ? bits * 0x01010101 : bits * 0x00010001;
  }
  static constexpr std::uint32_t magnitudes = of_each(T::magnitude_mask);
  /// Carries what is not finite, and nothing else, into the sign.
  static constexpr std::uint32_t carry = of_each(T::sign_mask - 1 - T::most_finite);
  /// An element at a word's top, shifted right by `exponent_shift`, where a float has its sign,
  /// exponent and mantissa: that float, times 2^rebias, is the element's value.
  static constexpr std::uint32_t in_float =
      0x80000000 | ((T::magnitude_mask << (32 - T::width)) >> T::exponent_shift);
  static constexpr float unit = std::bit_cast<float>((127U + T::rebias) << 23);  ///< 2^rebias
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
  return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(top >> T::exponent_shift) &
                                 Words<T>::in_float);
}

/// Bits whose high half is the element nearest to `value`, of two the one with an even mantissa. A
/// large BFloat16 may round to infinity.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t rounded_high(float value) {
  static_assert(T::width == 16);
  const auto bits = Kokkos::bit_cast<std::uint32_t>(value);
  if constexpr (T::rebias == 0) {
    return bits + 0x7fff + ((bits >> 16) & 1);
  } else {
    // To add 1.5 * 2^(e + shift), and to subtract it again, leaves of a value with exponent e the
    // mantissa's bits that the element has; of one that is not normal, those of the smallest normal
    // number's exponent.
    constexpr std::int32_t smallest_normal = (T::rebias + 1) << 23;
    constexpr std::int32_t larger = (T::shift << 23) + (1 << 22);
    const auto exponent = static_cast<std::int32_t>(bits & 0x7f800000);
    const auto large = Kokkos::bit_cast<float>(Kokkos::max(exponent, smallest_normal) + larger);
    const float in_units = ((value + large) - large) * (1 / Words<T>::unit);
    return (Kokkos::bit_cast<std::uint32_t>(in_units) << T::exponent_shift) | (bits & 0x80000000);
  }
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t word_of(float low, float high) {
  return (rounded_high<T>(low) >> 16) | (rounded_high<T>(high) & 0xffff0000);
}

/// Merges the whole words of rows of BFloat16 or Float16, where all their elements are finite.
/// \param of_a, of_b weights of sum 1, so that the results are finite too; or NaN.
/// \returns how many elements that were.
template <class A, class B, class Out>
KOKKOS_FUNCTION std::int32_t merge_words(const A* a, const B* b, Out* to, std::int32_t dim,
                                         float of_a, float of_b) {
  if constexpr (words_fit && sizeof(Out) == 2 && std::is_same_v<A, Out> && std::is_same_v<B, Out>) {
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

/// Converts the whole words of a row of Float8E4M3 to BFloat16, where all its elements are finite.
/// \returns how many elements that were.
template <class From, class To>
KOKKOS_FUNCTION std::int32_t convert_words(const From* from, To* to, std::int32_t columns,
                                           float scale) {
  if constexpr (words_fit && std::is_same_v<From, Float8E4M3> && std::is_same_v<To, BFloat16>) {
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
