// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <concepts>
#include <cstdint>

// CUDA converts these in one instruction or two, the portable form beside it takes ten: too many
// for kernels that only copy.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define CHUNKED_PREFILL_CUDA_CONVERSIONS
#endif
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace chunked_prefill {

/// An element of a cache or an output as it lies in memory, of a type that not every compiler has:
/// a sign, `exponent_bits` and `mantissa_bits`. Same layout as the CUDA and PyTorch types of that
/// name, so that a pointer to theirs may be cast. Arithmetic is done in float.
///
/// \tparam has_infinity whether the largest exponent is that of infinities and NaN; otherwise it
///   holds numbers too, and NaN alone where all bits are set.
template <class Bits, int exponent_bits, int mantissa_bits, bool has_infinity>
struct SmallFloat {
  static constexpr int width = 1 + exponent_bits + mantissa_bits;
  static_assert(width == 8 * sizeof(Bits));
  /// Bits of mantissa and exponent that a float has more.
  static constexpr int shift = 23 - mantissa_bits;
  static constexpr int exponent_shift = 8 - exponent_bits;
  /// What a float's exponent has more.
  static constexpr int rebias = 127 - ((1 << (exponent_bits - 1)) - 1);
  static constexpr std::uint32_t sign_mask = std::uint32_t{1} << (width - 1);
  static constexpr std::uint32_t magnitude_mask = sign_mask - 1;
  static constexpr std::uint32_t infinity = ((std::uint32_t{1} << exponent_bits) - 1)
                                            << mantissa_bits;
  static constexpr std::uint32_t most_finite = has_infinity ? infinity - 1 : magnitude_mask - 1;

  Bits bits;

  SmallFloat() = default;
  /// The nearest value, of two the one with an even mantissa. Beyond the range: infinity, or the
  /// largest number where there is none.
  KOKKOS_FUNCTION explicit SmallFloat(float value) : bits(rounded(value)) {}

  /// Exact.
  KOKKOS_FUNCTION explicit operator float() const {
#if defined(CHUNKED_PREFILL_CUDA_CONVERSIONS)
    if constexpr (width == 8) {
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
    } else if constexpr (exponent_bits == 5) {
      return __half2float(__ushort_as_half(bits));
    }
#endif
    const std::uint32_t magnitude = bits & magnitude_mask;
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & sign_mask) << (32 - width);
    std::uint32_t wide = magnitude << shift;
    if constexpr (rebias > 0) {
      // The product with a power of two moves the exponent, and makes normal what was not.
      wide = Kokkos::bit_cast<std::uint32_t>(Kokkos::bit_cast<float>(wide) * scale_up());
      const std::uint32_t not_finite = has_infinity ? float_infinity : ~(std::uint32_t{1} << 31);
      wide |= magnitude > most_finite ? not_finite : 0;
    }
    return Kokkos::bit_cast<float>(wide | sign);
  }

 private:
  static constexpr std::uint32_t not_a_number = magnitude_mask;
  static constexpr std::uint32_t float_infinity = 0x7f800000;

  KOKKOS_FUNCTION static float scale_up() {
    return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(127 + rebias) << 23);
  }
  /// `value` without its last `shift` bits, to nearest even.
  KOKKOS_FUNCTION static std::uint32_t shifted(std::uint32_t value) {
    const std::uint32_t odd = (value >> shift) & 1;
    return (value + (std::uint32_t{1} << (shift - 1)) - 1 + odd) >> shift;
  }
  /// The greater of `value` and 0, by its sign: compilers make branches of comparisons that a sum
  /// in float follows, which might trap.
  KOKKOS_FUNCTION static std::int32_t not_negative(std::int32_t value) {
    return value & ~(value >> 31);
  }
  /// Without a branch, so that compilers vectorise it.
  KOKKOS_FUNCTION static Bits rounded(float value) {
#if defined(CHUNKED_PREFILL_CUDA_CONVERSIONS)
    if constexpr (width == 8) {
      return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    } else if constexpr (exponent_bits == 5) {
      return __half_as_ushort(__float2half_rn(value));
    } else {
      return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    }
#endif
    const auto wide = Kokkos::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = wide >> 31 << (width - 1);
    const std::uint32_t magnitude = wide & ~(std::uint32_t{1} << 31);
    std::uint32_t result = 0;
    if constexpr (rebias == 0) {
      result = shifted(magnitude);
    } else {
      // A sum with a power of two whose last bit is worth that of the result, which has the
      // exponent of the value or, below the smallest normal number, of that.
      constexpr auto beyond = static_cast<std::int32_t>((infinity >> mantissa_bits) + rebias + 1)
                              << 23;
      const std::int32_t capped =
          beyond - not_negative(beyond - static_cast<std::int32_t>(magnitude));
      const std::int32_t exponent = rebias + 1 + not_negative((capped >> 23) - (rebias + 1));
      const std::int32_t unit = (exponent + shift) << 23;
      const std::int32_t units = Kokkos::bit_cast<std::int32_t>(Kokkos::bit_cast<float>(capped) +
                                                                Kokkos::bit_cast<float>(unit)) -
                                 unit;
      result = static_cast<std::uint32_t>(units + ((exponent - rebias - 1) << mantissa_bits));
    }
    result = result > most_finite ? (has_infinity ? infinity : most_finite) : result;
    const std::uint32_t nan = magnitude > float_infinity ? not_a_number : 0;
    return static_cast<Bits>(sign | result | nan);
  }
};

using BFloat16 = SmallFloat<std::uint16_t, 8, 7, true>;
using Float16 = SmallFloat<std::uint16_t, 5, 10, true>;
/// The "fn" kind that engines cache in: no infinity, largest number 448.
using Float8E4M3 = SmallFloat<std::uint8_t, 4, 3, false>;

/// Types of the elements of caches, partial outputs and buffers.
template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, BFloat16> || std::same_as<T, Float16> ||
    std::same_as<T, Float8E4M3>;

}  // namespace chunked_prefill
