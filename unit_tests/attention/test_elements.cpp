// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/elements.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../execution_spaces.hpp"

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
T from_bits(std::uint32_t bits) {
  T element;
  element.bits = static_cast<decltype(element.bits)>(bits);
  return element;
}
template <class T>
constexpr std::uint32_t patterns = 1u << (8 * sizeof(T));

template <class T>
struct ToFloats {
  const T* elements;
  float* values;
  KOKKOS_FUNCTION void operator()(std::size_t k) const {
    values[k] = static_cast<float>(elements[k]);
  }
};
template <class T>
struct FromFloats {
  const float* values;
  T* elements;
  KOKKOS_FUNCTION void operator()(std::size_t k) const { elements[k] = T(values[k]); }
};

/// Each element of `from` converted on `Space`.
template <class Space, class To, template <class> class Convert, class T, class From>
std::vector<To> converted(const std::vector<From>& from) {
  using MemorySpace = typename Space::memory_space;
  const Kokkos::View<From*, MemorySpace> input("test::input", from.size());
  const Kokkos::View<To*, MemorySpace> output("test::output", from.size());
  Kokkos::deep_copy(input, Kokkos::View<const From*, Kokkos::HostSpace>(from.data(), from.size()));
  Kokkos::parallel_for(Kokkos::RangePolicy<Space>(0, from.size()),
                       Convert<T>{input.data(), output.data()});
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), output);
  return {host.data(), host.data() + host.size()};
}

template <class Space>
class Elements : public ::testing::Test {};
TYPED_TEST_SUITE(Elements, test::ExecutionSpaces, test::SpaceName);

template <class Space, class T>
void every_pattern_as_float() {
  std::vector<T> all;
  for (std::uint32_t bits = 0; bits < patterns<T>; ++bits) all.push_back(from_bits<T>(bits));
  const auto values = converted<Space, float, ToFloats, T>(all);
  const auto back = converted<Space, T, FromFloats, T>(values);
  for (std::uint32_t bits = 0; bits < patterns<T>; ++bits) {
    const double expected = value_of(format<T>, bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(values[bits])) << bits;
    } else {
      ASSERT_EQ(values[bits], expected) << bits;
      ASSERT_EQ(std::signbit(values[bits]), std::signbit(expected)) << bits;
      if (std::isinf(expected)) continue;
      ASSERT_EQ(back[bits].bits, bits) << "and back";
    }
  }
}
TYPED_TEST(Elements, EveryPatternAsFloat) {
  every_pattern_as_float<TypeParam, cp::BFloat16>();
  every_pattern_as_float<TypeParam, cp::Float16>();
  every_pattern_as_float<TypeParam, cp::Float8E4M3>();
}

// Values between two neighbours, at their middle, and just beside it.
template <class Space, class T>
void nearest_of_a_float() {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::uint32_t positive = patterns<T> / 2;
  std::vector<float> values;
  std::vector<std::uint32_t> expected;
  const auto expect = [&](float value, std::uint32_t bits) {
    values.push_back(value);
    expected.push_back(bits);
  };
  for (std::uint32_t bits = 0; bits + 1 < positive; ++bits) {
    const double low = value_of(format<T>, bits);
    const double high = value_of(format<T>, bits + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2);
    if (middle != (low + high) / 2) continue;  // not a float
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    expect(middle, even);
    expect(std::nextafter(middle, 0.0F), bits);
    expect(std::nextafter(middle, infinity), bits + 1);
    expect(-middle, even + positive);
  }
  const auto results = converted<Space, T, FromFloats, T>(values);
  for (std::size_t k = 0; k < values.size(); ++k) {
    ASSERT_EQ(results[k].bits, expected[k]) << values[k];
  }
}
TYPED_TEST(Elements, NearestOfAFloat) {
  nearest_of_a_float<TypeParam, cp::BFloat16>();
  nearest_of_a_float<TypeParam, cp::Float16>();
  nearest_of_a_float<TypeParam, cp::Float8E4M3>();
}

template <class Space, class T>
std::vector<float> rounded(const std::vector<float>& values) {
  return converted<Space, float, ToFloats, T>(converted<Space, T, FromFloats, T>(values));
}
TYPED_TEST(Elements, BeyondTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto fp16 = rounded<TypeParam, cp::Float16>({65519, 65520, -infinity, nan});
  EXPECT_EQ(fp16[0], 65504);
  EXPECT_EQ(fp16[1], infinity);
  EXPECT_EQ(fp16[2], -infinity);
  EXPECT_TRUE(std::isnan(fp16[3]));
  const auto bf16 = rounded<TypeParam, cp::BFloat16>({3.4e38F, infinity, nan});
  EXPECT_EQ(bf16[0], infinity);
  EXPECT_EQ(bf16[1], infinity);
  EXPECT_TRUE(std::isnan(bf16[2]));
  const auto fp8 = rounded<TypeParam, cp::Float8E4M3>({449, 1e30F, -infinity, nan});
  EXPECT_EQ(fp8[0], 448);
  EXPECT_EQ(fp8[1], 448);
  EXPECT_EQ(fp8[2], -448);
  EXPECT_TRUE(std::isnan(fp8[3]));
}

}  // namespace
