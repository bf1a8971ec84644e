// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <chunked_prefill/impl/divisor.hpp>
#include <random>

namespace {

using chunked_prefill::impl::Divisor;

void expect_divides(std::int32_t divisor, std::int64_t dividend) {
  if (dividend < 0 || dividend > INT32_MAX) return;
  const auto n = static_cast<std::int32_t>(dividend);
  ASSERT_EQ(Divisor(divisor).quotient(n), n / divisor) << n << " / " << divisor;
}

void expect_divides_around(std::int32_t divisor) {
  for (const std::int64_t multiple :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, INT32_MAX / std::int64_t{divisor} / 2,
        INT32_MAX / std::int64_t{divisor}}) {
    for (const std::int64_t off : {-1, 0, 1}) expect_divides(divisor, multiple * divisor + off);
  }
  for (const std::int64_t n : {INT32_MAX, INT32_MAX - 1}) expect_divides(divisor, n);
}

TEST(Divisor, EverySmallDivisor) {
  for (std::int32_t divisor = 1; divisor <= 4096; ++divisor) {
    expect_divides_around(divisor);
    for (std::int64_t n = 0; n <= 4 * std::int64_t{divisor}; n += 1 + divisor / 64) {
      expect_divides(divisor, n);
    }
  }
}

TEST(Divisor, AroundPowersOfTwo) {
  for (int bit = 1; bit < 31; ++bit) {
    for (const std::int32_t off : {-1, 0, 1}) expect_divides_around((1 << bit) + off);
  }
  expect_divides_around(INT32_MAX);
}

TEST(Divisor, Drawn) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int32_t> positive(1, INT32_MAX);
  for (int k = 0; k < 200000; ++k) {
    const std::int32_t divisor = positive(random) >> (positive(random) % 31);
    if (divisor > 0) expect_divides(divisor, positive(random));
  }
}

}  // namespace
