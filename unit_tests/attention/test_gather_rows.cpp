// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <chunked_prefill/attention/gather_rows.hpp>
#include <cmath>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../execution_spaces.hpp"

namespace {

namespace cp = chunked_prefill;

template <class Space>
class GatherRows : public ::testing::Test {};
TYPED_TEST_SUITE(GatherRows, test::ExecutionSpaces, test::SpaceName);

/// A matrix whose rows lie `gap` elements apart, from `shift` elements into its memory on.
template <class Space, class T>
struct Matrix {
  using MemorySpace = typename Space::memory_space;
  using View = Kokkos::View<T**, Kokkos::LayoutStride, MemorySpace>;

  Matrix(std::size_t rows, std::size_t columns, std::size_t gap = 0, std::size_t shift = 0)
      : memory("test::matrix", shift + rows * (columns + gap)),
        view(memory.data() + shift, Kokkos::LayoutStride(rows, columns + gap, columns, 1)) {
    Kokkos::deep_copy(memory, T(-77.0F));
  }
  using HostView = Kokkos::View<T**, Kokkos::LayoutStride, Kokkos::HostSpace>;
  /// A copy of the memory, and the rows in it.
  [[nodiscard]] std::pair<Kokkos::View<T*, Kokkos::HostSpace>, HostView> on_host() const {
    const auto copy = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), memory);
    const auto first = view.data() - memory.data();
    return {copy, HostView(copy.data() + first, Kokkos::LayoutStride(view.extent(0), view.stride(0),
                                                                     view.extent(1), 1))};
  }
  Kokkos::View<T*, MemorySpace> memory;
  View view;
};

struct Shape {
  std::size_t tokens, latent_dim, rope_dim, gap, shift;
};

template <class Space, class From, class Latent, class Rope, class Slot>
void gathered(const Shape& shape, float scale) {
  SCOPED_TRACE(std::to_string(shape.tokens) + " rows of " + std::to_string(shape.latent_dim) +
               " + " + std::to_string(shape.rope_dim) + ", gap " + std::to_string(shape.gap));
  constexpr std::size_t slots_num = 300;
  const std::size_t columns = shape.latent_dim + shape.rope_dim;
  std::mt19937 random(static_cast<std::uint32_t>(shape.tokens + columns));
  const Matrix<Space, From> cache(slots_num, columns, shape.gap, shape.shift);
  const auto [cache_memory, cache_host] = cache.on_host();
  std::normal_distribution<float> normal;
  for (std::size_t r = 0; r < slots_num; ++r) {
    for (std::size_t k = 0; k < columns; ++k) cache_host(r, k) = From(4 * normal(random));
  }
  Kokkos::deep_copy(cache.memory, cache_memory);
  const Kokkos::View<Slot*, typename Space::memory_space> slots("test::slots", shape.tokens);
  const auto slots_host = Kokkos::create_mirror_view(slots);
  for (std::size_t k = 0; k < shape.tokens; ++k) {
    slots_host(k) = static_cast<Slot>(random() % slots_num);
  }
  Kokkos::deep_copy(slots, slots_host);
  const Matrix<Space, Latent> latent(shape.tokens, shape.latent_dim, shape.gap, shape.shift);
  const Matrix<Space, Rope> rope(shape.tokens, shape.rope_dim, shape.gap, shape.shift);

  const Space space;
  cp::gather_rows(space, cache.view, slots, latent.view, rope.view, scale);
  space.fence();
  const auto& rows = cache_host;  // a structured binding is not captured
  const auto expect_part = [&](const auto& matrix, std::size_t first, std::size_t count) {
    using To = typename std::remove_cvref_t<decltype(matrix)>::View::value_type;
    const auto [memory, host] = matrix.on_host();
    for (std::size_t k = 0; k < shape.tokens; ++k) {
      for (std::size_t j = 0; j < count; ++j) {
        const From from = rows(static_cast<std::size_t>(slots_host(k)), first + j);
        const float value = static_cast<float>(from) * scale;
        ASSERT_EQ(static_cast<float>(host(k, j)), static_cast<float>(To(value))) << k << ' ' << j;
      }
    }
    // Nothing before, between and behind the rows.
    for (std::size_t at = 0; at < memory.extent(0); ++at) {
      const bool inside = at >= shape.shift && (at - shape.shift) % (count + shape.gap) < count;
      if (inside) continue;
      ASSERT_EQ(static_cast<float>(memory(at)), static_cast<float>(To(-77.0F))) << at;
    }
  };
  expect_part(latent, 0, shape.latent_dim);
  expect_part(rope, shape.latent_dim, shape.rope_dim);
}

template <class Space, class From, class To>
void shapes(float scale) {
  for (const Shape& shape :
       {Shape{1, 1, 1, 0, 0}, Shape{1000, 512, 64, 0, 0}, Shape{77, 512, 64, 64, 0},
        Shape{50, 512, 64, 16, 16}, Shape{33, 512, 64, 3, 0}, Shape{40, 32, 16, 0, 1},
        Shape{19, 7, 5, 2, 0}, Shape{12, 16, 0, 0, 0}}) {
    gathered<Space, From, To, To, std::int32_t>(shape, scale);
    gathered<Space, From, To, To, std::int64_t>(shape, scale);
  }
}

TYPED_TEST(GatherRows, SameType) {
  shapes<TypeParam, float, float>(1);
  shapes<TypeParam, cp::BFloat16, cp::BFloat16>(1);
  shapes<TypeParam, cp::Float16, cp::Float16>(1);
  shapes<TypeParam, cp::Float8E4M3, cp::Float8E4M3>(1);
}
TYPED_TEST(GatherRows, Converted) {
  shapes<TypeParam, cp::BFloat16, float>(1);
  shapes<TypeParam, cp::Float16, float>(1);
  shapes<TypeParam, cp::Float8E4M3, float>(0.0625F);
  shapes<TypeParam, cp::Float8E4M3, cp::BFloat16>(1.7F);
  shapes<TypeParam, cp::Float8E4M3, cp::Float16>(1);
  shapes<TypeParam, float, cp::BFloat16>(1);
}
TYPED_TEST(GatherRows, LatentAndRopeOfDifferentTypes) {
  gathered<TypeParam, cp::Float8E4M3, cp::BFloat16, float, std::int32_t>({60, 512, 64, 0, 0}, 2);
}

TYPED_TEST(GatherRows, NothingToDo) {
  gathered<TypeParam, float, float, float, std::int32_t>({0, 512, 64, 0, 0}, 1);
}

TYPED_TEST(GatherRows, Refuses) {
  const Matrix<TypeParam, float> cache(10, 12), latent(3, 8), rope(3, 4), wide(3, 5), tall(4, 4);
  const Kokkos::View<std::int32_t*, typename TypeParam::memory_space> slots("test::slots", 3);
  const auto words = [&](const auto& from, const auto& to, const auto& to_rope) {
    try {
      cp::gather_rows(TypeParam(), from, slots, to, to_rope);
    } catch (const cp::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(words(cache.view, latent.view, rope.view), "none");
  EXPECT_EQ(words(cache.view, latent.view, wide.view),
            "cache: extents (10, 12) where (10, 13) are needed");
  EXPECT_EQ(words(cache.view, latent.view, tall.view),
            "rope: extents (4, 4) where (3, 4) are needed");
  const typename Matrix<TypeParam, float>::View across(latent.memory.data(),
                                                       Kokkos::LayoutStride(3, 1, 8, 3));
  EXPECT_EQ(words(cache.view, across, rope.view),
            "latent: stride 3 between the elements of a row where 1 is needed");
  const typename Matrix<TypeParam, float>::View overlapping(latent.memory.data(),
                                                            Kokkos::LayoutStride(3, 7, 8, 1));
  EXPECT_EQ(words(cache.view, overlapping, rope.view),
            "latent: rows of 8 elements overlap at stride 7");
}

}  // namespace
