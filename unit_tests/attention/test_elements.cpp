// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chunked_prefill/attention/elements.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace {

namespace cp = chunked_prefill;

/// A format by its definition.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};
template <class T>
constexpr Format format = {};
template <>
constexpr Format format<cp::BFloat16> = {8, 7, true};
template <>
constexpr Format format<cp::Float16> = {5, 10, true};
template <>
constexpr Format format<cp::Float8E4M3> = {4, 3, false};

/// The number that `bits` stand for.
double value_of(const Format& format, std::uint32_t bits) {
  const std::uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const std::uint32_t exponent = bits >> format.mantissa_bits & ((1u << format.exponent_bits) - 1);
  const double sign = (bits >> (format.mantissa_bits + format.exponent_bits)) != 0 ? -1 : 1;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const bool is_top = exponent == (1u << format.exponent_bits) - 1;
  if (is_top && format.has_infinity) {
    if (mantissa != 0) return std::numeric_limits<double>::quiet_NaN();
    return sign * std::numeric_limits<double>::infinity();
  }
  if (is_top && mantissa == (1u << format.mantissa_bits) - 1) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << format.mantissa_bits),
                           static_cast<int>(exponent) - bias - format.mantissa_bits);
}

template <class T>
class Elements : public ::testing::Test {};
using Types = ::testing::Types<cp::BFloat16, cp::Float16, cp::Float8E4M3>;
TYPED_TEST_SUITE(Elements, Types);

template <class T>
T from_bits(std::uint32_t bits) {
  T element;
  element.bits = static_cast<decltype(element.bits)>(bits);
  return element;
}
template <class T>
constexpr std::uint32_t patterns = 1u << (8 * sizeof(T));

TYPED_TEST(Elements, EveryPatternAsFloat) {
  for (std::uint32_t bits = 0; bits < patterns<TypeParam>; ++bits) {
    const double expected = value_of(format<TypeParam>, bits);
    const auto value = static_cast<float>(from_bits<TypeParam>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      ASSERT_EQ(TypeParam(value).bits, bits) << "and back";
    }
  }
}

// Values between two neighbours, at their middle, and just beside it; beyond the largest.
TYPED_TEST(Elements, NearestOfAFloat) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto next = [](float value, float to) { return std::nextafter(value, to); };
  const std::uint32_t positive = patterns<TypeParam> / 2;
  for (std::uint32_t bits = 0; bits + 1 < positive; ++bits) {
    const double low = value_of(format<TypeParam>, bits);
    const double high = value_of(format<TypeParam>, bits + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2);
    if (middle != (low + high) / 2) continue;  // not a float
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(TypeParam(middle).bits, even) << middle;
    ASSERT_EQ(TypeParam(next(middle, 0)).bits, bits) << middle;
    ASSERT_EQ(TypeParam(next(middle, infinity)).bits, bits + 1) << middle;
    ASSERT_EQ(TypeParam(-middle).bits, even + positive) << middle;
  }
}

TEST(Element, BeyondTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(cp::Float16(65519.0F)), 65504.0F);
  EXPECT_EQ(static_cast<float>(cp::Float16(65520.0F)), infinity);
  EXPECT_EQ(static_cast<float>(cp::Float16(-infinity)), -infinity);
  EXPECT_EQ(static_cast<float>(cp::BFloat16(3.4e38F)), infinity);
  EXPECT_EQ(static_cast<float>(cp::BFloat16(infinity)), infinity);
  EXPECT_EQ(static_cast<float>(cp::Float8E4M3(449.0F)), 448.0F);
  EXPECT_EQ(static_cast<float>(cp::Float8E4M3(1e30F)), 448.0F);
  EXPECT_EQ(static_cast<float>(cp::Float8E4M3(-infinity)), -448.0F);
  EXPECT_TRUE(std::isnan(static_cast<float>(cp::Float8E4M3(std::nanf("")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(cp::Float16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(cp::BFloat16(std::nanf("")))));
}

}  // namespace
