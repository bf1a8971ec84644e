// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/attention/impl/word_rows.hpp>
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

// Words of a host's rows, of any length, beside the same elements one by one.
template <class T>
void one_is_not_finite() {
  for (const std::int32_t count : {4, 64, 100}) {
    for (std::uint32_t bits = 0; bits < patterns<T>; ++bits) {
      const T element = from_bits<T>(bits);
      std::vector<T> row(static_cast<std::size_t>(count), from_bits<T>(1));
      row[bits % static_cast<std::uint32_t>(count)] = element;
      ASSERT_EQ(cp::impl::are_finite(count, row.data()), std::isfinite(static_cast<float>(element)))
          << bits;
    }
  }
}
TEST(WordRows, AreFinite) {
  one_is_not_finite<cp::BFloat16>();
  one_is_not_finite<cp::Float16>();
  one_is_not_finite<cp::Float8E4M3>();
}

TEST(WordRows, ConvertedAsElements) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<cp::Float8E4M3> row;  // of all numbers
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7f) != 0x7f) row.push_back(from_bits<cp::Float8E4M3>(bits));
  }
  const auto convert = [&](std::int32_t count, float scale) {
    std::vector<cp::BFloat16> to(row.size(), cp::BFloat16(-77.0F));
    const std::int32_t done = cp::impl::convert_words(row.data(), to.data(), count, scale);
    for (std::int32_t k = 0; k < done; ++k) {
      const cp::BFloat16 expected(static_cast<float>(row[k]) * scale);
      EXPECT_EQ(to[k].bits, expected.bits) << k << " by " << scale;
    }
    EXPECT_TRUE(done == 254 || to[done].bits == cp::BFloat16(-77.0F).bits);
    return done;
  };
  for (const float scale : {1.0F, 0.37F, -3.0F, 1e-39F, 1e-36F, 0.0F, 127.0F}) {
    for (const std::int32_t count : {0, 3, 64, 126, 254}) {
      EXPECT_EQ(convert(count, scale), count / 4 * 4);
    }
  }
  for (const float scale : {1e37F, -infinity, std::nanf("")}) EXPECT_EQ(convert(254, scale), 0);
}

// The nearest elements of floats, of every exponent, where those are finite.
template <class T>
void rounded_as_elements() {
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 0x80) {
    const auto value = Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const T expected(value);
    if (!std::isfinite(static_cast<float>(expected))) continue;
    ASSERT_EQ(cp::impl::word_of<T>(value, -value), expected.bits | T(-value).bits << 16) << value;
  }
}
TEST(WordRows, RoundedAsElements) {
  rounded_as_elements<cp::BFloat16>();
  rounded_as_elements<cp::Float16>();
}

// Rows of every number, merged in place. The products with these weights are exact, so that a
// compiler may make fused operations of either.
template <class T>
void merged_as_elements() {
  std::vector<T> all;
  for (std::uint32_t bits = 0; bits < patterns<T>; ++bits) {
    const T element = from_bits<T>(bits);
    if (std::isfinite(static_cast<float>(element))) all.push_back(element);
  }
  const T most = all[all.size() / 2 - 1];
  const std::vector<T> numbers = {T(0.0F), T(-0.0F), T(1.0F), T(-1.5F), from_bits<T>(1), most};
  const auto merge = [](std::vector<T>& to, const std::vector<T>& b, float of_a) {
    const auto dim = static_cast<std::int32_t>(to.size());
    return cp::impl::merge_words(to.data(), b.data(), to.data(), dim, of_a, 1 - of_a);
  };
  for (const float of_a : {0.375F, 0.625F, 0x1p-10F, 1 - 0x1p-10F, 0.0F, 1.0F}) {
    for (std::size_t turn = 0; turn < numbers.size(); ++turn) {
      std::vector<T> to(all), b;
      to.push_back(most);  // of no whole word
      for (std::size_t k = 0; k < to.size(); ++k) b.push_back(numbers[(k + turn) % numbers.size()]);
      EXPECT_EQ(merge(to, b, std::nanf("")), 0);
      ASSERT_EQ(merge(to, b, of_a), all.size());
      for (std::size_t k = 0; k < all.size(); ++k) {
        const T expected(of_a * static_cast<float>(all[k]) + (1 - of_a) * static_cast<float>(b[k]));
        ASSERT_EQ(to[k].bits, expected.bits) << all[k].bits << " and " << b[k].bits;
      }
      ASSERT_EQ(to.back().bits, most.bits);
    }
  }
}
TEST(WordRows, MergedAsElements) {
  merged_as_elements<cp::BFloat16>();
  merged_as_elements<cp::Float16>();
}

}  // namespace
