// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chunked_prefill/attention/merge_states.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../execution_spaces.hpp"

namespace {

namespace cp = chunked_prefill;
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Where the arrays of a state lie: tokens and heads any distance apart, the LSE by heads or by
/// tokens.
struct Strides {
  std::size_t head_gap = 0;
  std::size_t token_gap = 0;
  bool lse_by_heads = false;
};

/// A copy of memory on the host, seen with strides.
template <class Elements>
struct OnHost {
  using View = Kokkos::View<Elements, Kokkos::LayoutStride, Kokkos::HostSpace>;
  using Element = typename View::value_type;

  template <class Memory>
  OnHost(const Memory& of, const Kokkos::LayoutStride& layout)
      : memory(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), of)),
        view(memory.data(), layout) {}
  template <class... Index>
  Element& operator()(Index... index) const {
    return view(index...);
  }

  Kokkos::View<Element*, Kokkos::HostSpace> memory;
  View view;
};

/// A partial result in memory of `Space`, and on the host.
template <class Space, class T>
class State {
 public:
  using MemorySpace = typename Space::memory_space;
  using Values = Kokkos::View<T***, Kokkos::LayoutStride, MemorySpace>;
  using Lse = Kokkos::View<float**, Kokkos::LayoutStride, MemorySpace>;

  State(std::size_t tokens, std::size_t heads, std::size_t dim, cp::LseBase base, Strides strides)
      : m_values("test::values", tokens * token_stride(heads, dim, strides) + 1),
        m_lse("test::lse", tokens * heads),
        state{
            Values(m_values.data(), Kokkos::LayoutStride(tokens, token_stride(heads, dim, strides),
                                                         heads, dim + strides.head_gap, dim, 1)),
            Lse(m_lse.data(), strides.lse_by_heads ? Kokkos::LayoutStride(tokens, 1, heads, tokens)
                                                   : Kokkos::LayoutStride(tokens, heads, heads, 1)),
            base} {
    Kokkos::deep_copy(m_values, T(-77.0F));
  }

  [[nodiscard]] auto values() const {
    return OnHost<T***>(m_values, extents(state.values, std::make_index_sequence<3>()));
  }
  [[nodiscard]] auto lse() const {
    return OnHost<float**>(m_lse, extents(state.lse, std::make_index_sequence<2>()));
  }
  template <class Fill>
  void set(const Fill& fill) {
    const auto values_host = values();
    const auto lse_host = lse();
    fill(values_host, lse_host);
    Kokkos::deep_copy(m_values, values_host.memory);
    Kokkos::deep_copy(m_lse, lse_host.memory);
  }
  /// All of the memory, gaps included.
  [[nodiscard]] auto whole() const {
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), m_values);
  }

 private:
  static std::size_t token_stride(std::size_t heads, std::size_t dim, const Strides& strides) {
    return heads * (dim + strides.head_gap) + strides.token_gap;
  }
  /// Extents and strides of a View.
  template <class View, std::size_t... rank>
  static Kokkos::LayoutStride extents(const View& view, std::index_sequence<rank...>) {
    Kokkos::LayoutStride layout;
    ((layout.dimension[rank] = view.extent(rank), layout.stride[rank] = view.stride(rank)), ...);
    return layout;
  }

  Kokkos::View<T*, MemorySpace> m_values;
  Kokkos::View<float*, MemorySpace> m_lse;

 public:
  cp::AttentionState<Values, Lse> state;
};

double in_natural(float lse, cp::LseBase base) {
  return base == cp::LseBase::natural ? lse : lse * std::numbers::ln2;
}

/// Half a unit in the last place: of a normal number, relative, and of the smallest.
struct Rounding {
  double relative;
  double absolute;
};
template <class T>
constexpr Rounding rounding = {0, 0};  // what float itself does is allowed for all
template <>
constexpr Rounding rounding<cp::BFloat16> = {0x1p-8, 0};
template <>
constexpr Rounding rounding<cp::Float16> = {0x1p-11, 0x1p-25};
template <>
constexpr Rounding rounding<cp::Float8E4M3> = {0x1p-4, 0x1p-10};

template <class Space>
class MergeStates : public ::testing::Test {};
TYPED_TEST_SUITE(MergeStates, test::ExecutionSpaces, test::SpaceName);

/// Draws states of some empty heads; merges; compares with the definition in double.
template <class Space, class A, class B, class Out>
void drawn(std::size_t tokens, std::size_t heads, std::size_t dim, cp::LseBase base_a,
           cp::LseBase base_b, cp::LseBase base_out, Strides strides) {
  SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(heads) + " x " +
               std::to_string(dim));
  std::mt19937 random(static_cast<std::uint32_t>(tokens * 31 + dim));
  State<Space, A> a(tokens, heads, dim, base_a, strides);
  State<Space, B> b(tokens, heads, dim, base_b, {});
  State<Space, Out> out(tokens, heads, dim, base_out, strides);
  const auto draw = [&](const auto& values, const auto& lse) {
    std::normal_distribution<float> normal;
    using T = typename std::remove_cvref_t<decltype(values)>::Element;
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t h = 0; h < heads; ++h) {
        const auto kind = random() % 8;
        lse(t, h) = kind == 0 ? -infinity : kind == 1 ? infinity : 5 * normal(random) + 10;
        for (std::size_t k = 0; k < dim; ++k) {
          // What an empty state holds is never looked at.
          values(t, h, k) = T(kind < 2 ? std::nanf("") : normal(random));
        }
      }
    }
  };
  a.set(draw);
  b.set(draw);
  const Space space;
  cp::merge_states(space, a.state, b.state, out.state);
  space.fence();

  const auto va = a.values();
  const auto vb = b.values();
  const auto vo = out.values();
  const auto la = a.lse(), lb = b.lse(), lo = out.lse();
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      const double wa = std::isinf(la(t, h)) ? 0 : std::exp(in_natural(la(t, h), base_a));
      const double wb = std::isinf(lb(t, h)) ? 0 : std::exp(in_natural(lb(t, h), base_b));
      if (wa + wb == 0) {
        ASSERT_EQ(lo(t, h), -infinity);
      } else {
        ASSERT_NEAR(in_natural(lo(t, h), base_out), std::log(wa + wb), 1e-5);
      }
      for (std::size_t k = 0; k < dim; ++k) {
        double expected = 0;
        double size = 0;
        if (wa > 0) expected += wa / (wa + wb) * double(float(va(t, h, k)));
        if (wb > 0) expected += wb / (wa + wb) * double(float(vb(t, h, k)));
        if (wa > 0) size += wa / (wa + wb) * std::abs(double(float(va(t, h, k))));
        if (wb > 0) size += wb / (wa + wb) * std::abs(double(float(vb(t, h, k))));
        const double bound =
            rounding<Out>.relative * std::abs(expected) + rounding<Out>.absolute + 1e-5 * size;
        ASSERT_NEAR(double(float(vo(t, h, k))), expected, bound) << t << ' ' << h << ' ' << k;
      }
    }
  }
  // Nothing between the heads and tokens was written.
  if (strides.head_gap > 0) {
    const auto whole = out.whole();
    for (std::size_t h = 0; h < heads; ++h) {
      ASSERT_EQ(float(whole(h * (dim + strides.head_gap) + dim)), float(Out(-77.0F)));
    }
  }
}

template <class Space, class T>
void shapes() {
  const Strides together, apart{.head_gap = 8, .token_gap = 16, .lse_by_heads = true},
      odd{.head_gap = 1, .token_gap = 3, .lse_by_heads = true};
  using enum cp::LseBase;
  drawn<Space, T, T, T>(1, 1, 1, natural, natural, natural, together);
  for (const std::size_t dim : {32u, 48u, 64u, 96u, 128u, 256u, 33u}) {
    drawn<Space, T, T, T>(13, 4, dim, natural, natural, natural, together);
    drawn<Space, T, T, T>(5, 16, dim, two, two, two, apart);
    drawn<Space, T, T, T>(3, 7, dim, natural, two, natural, odd);
  }
  for (const std::size_t tokens : {256u, 613u, 1024u}) {
    drawn<Space, T, T, T>(tokens, 8, 16, two, natural, two, apart);
  }
  drawn<Space, T, float, T>(9, 8, 64, natural, natural, two, together);
  drawn<Space, float, T, float>(9, 8, 64, two, natural, natural, apart);
}

TYPED_TEST(MergeStates, AgreesWithTheDefinition) {
  shapes<TypeParam, float>();
  shapes<TypeParam, cp::BFloat16>();
  shapes<TypeParam, cp::Float16>();
  shapes<TypeParam, cp::Float8E4M3>();
}

/// Two states of one token, one head and two values.
template <class Space, class T = float>
struct Pair {
  State<Space, T> a{1, 1, 2, cp::LseBase::natural, {}};
  State<Space, T> b{1, 1, 2, cp::LseBase::natural, {}};
  State<Space, T> out{1, 1, 2, cp::LseBase::natural, {}};

  static void set(State<Space, T>& state, T first, T second, float lse) {
    state.set([&](const auto& values, const auto& lses) {
      values(0, 0, 0) = first;
      values(0, 0, 1) = second;
      lses(0, 0) = lse;
    });
  }
  void merge() {
    const Space space;
    cp::merge_states(space, a.state, b.state, out.state);
    space.fence();
  }
};

// Two states with value 0 and LSE -inf (or what is left of a kernel that wrote nothing).
TYPED_TEST(MergeStates, TwoEmptyStatesAreEmpty) {
  Pair<TypeParam> pair;
  for (const float lse_a : {-infinity, infinity}) {
    for (const float junk : {0.0F, std::nanf(""), infinity}) {
      pair.set(pair.a, junk, 0, lse_a);
      pair.set(pair.b, 0, junk, -infinity);
      pair.merge();
      EXPECT_EQ(pair.out.values()(0, 0, 0), 0);
      EXPECT_EQ(pair.out.values()(0, 0, 1), 0);
      EXPECT_EQ(pair.out.lse()(0, 0), -infinity);
    }
  }
}

template <class Space, class T>
void unchanged() {
  Pair<Space, T> pair;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    T first, second;
    std::memset(&first, static_cast<int>(random() % 256), sizeof(T));
    std::memset(&second, static_cast<int>(random() % 256), sizeof(T));
    const auto lse = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 0x7f800000));
    for (const bool a_is_empty : {false, true}) {
      pair.set(a_is_empty ? pair.a : pair.b, T(std::nanf("")), T(0), -infinity);
      auto& other = a_is_empty ? pair.b : pair.a;
      pair.set(other, first, second, lse);
      pair.merge();
      const auto values = pair.out.values();
      EXPECT_EQ(std::memcmp(&values(0, 0, 0), &first, sizeof(T)), 0);
      EXPECT_EQ(std::memcmp(&values(0, 0, 1), &second, sizeof(T)), 0);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(pair.out.lse()(0, 0)),
                std::bit_cast<std::uint32_t>(lse));
    }
  }
}
TYPED_TEST(MergeStates, AnEmptyStateLeavesTheOtherBitForBit) {
  unchanged<TypeParam, float>();
  unchanged<TypeParam, cp::BFloat16>();
  unchanged<TypeParam, cp::Float16>();
  unchanged<TypeParam, cp::Float8E4M3>();
}

// By hand: equal LSEs weigh alike; ln 3 more weighs 3 to 1.
TYPED_TEST(MergeStates, ByHand) {
  Pair<TypeParam> pair;
  pair.set(pair.a, 1, 2, 0);
  pair.set(pair.b, 3, 6, 0);
  pair.merge();
  EXPECT_FLOAT_EQ(pair.out.values()(0, 0, 0), 2);
  EXPECT_FLOAT_EQ(pair.out.values()(0, 0, 1), 4);
  EXPECT_FLOAT_EQ(pair.out.lse()(0, 0), std::log(2.0F));
  pair.set(pair.b, 5, 6, std::log(3.0F));
  pair.merge();
  EXPECT_FLOAT_EQ(pair.out.values()(0, 0, 0), 4);
  EXPECT_FLOAT_EQ(pair.out.values()(0, 0, 1), 5);
  EXPECT_FLOAT_EQ(pair.out.lse()(0, 0), std::log(4.0F));
  pair.set(pair.b, 5, 6, 1e30F);  // and nothing overflows
  pair.merge();
  EXPECT_EQ(pair.out.values()(0, 0, 0), 5);
  EXPECT_EQ(pair.out.lse()(0, 0), 1e30F);
}

TYPED_TEST(MergeStates, NanStaysNan) {
  Pair<TypeParam> pair;
  const float nan = std::nanf("");
  for (const float other : {0.0F, -infinity, infinity, nan}) {
    for (const bool first : {false, true}) {
      pair.set(pair.a, 1, 2, first ? nan : other);
      pair.set(pair.b, 3, 6, first ? other : nan);
      pair.merge();
      EXPECT_TRUE(std::isnan(pair.out.values()(0, 0, 0))) << other;
      EXPECT_TRUE(std::isnan(pair.out.lse()(0, 0))) << other;
    }
  }
}

// N partial results in any order, in place: the same within rounding.
TYPED_TEST(MergeStates, ManyInAnyOrderInPlace) {
  constexpr std::size_t tokens = 7, heads = 3, dim = 64, count = 9;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<State<TypeParam, float>> states;
  for (std::size_t s = 0; s < count; ++s) {
    states.emplace_back(tokens, heads, dim, cp::LseBase::natural, Strides{});
    states.back().set([&](const auto& values, const auto& lse) {
      for (std::size_t t = 0; t < tokens; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          lse(t, h) = random() % 4 == 0 ? -infinity : 3 * normal(random);
          for (std::size_t k = 0; k < dim; ++k) values(t, h, k) = 1 + normal(random) / 8;
        }
      }
    });
  }
  const TypeParam space;
  std::vector<std::size_t> order(count);
  for (std::size_t s = 0; s < count; ++s) order[s] = s;
  std::vector<float> first;
  for (int turn = 0; turn < 6; ++turn) {
    State<TypeParam, float> sum(tokens, heads, dim, cp::LseBase::natural, {});
    sum.set([&](const auto&, const auto& lse) {
      for (std::size_t t = 0; t < tokens; ++t) {
        for (std::size_t h = 0; h < heads; ++h) lse(t, h) = -infinity;
      }
    });
    for (const std::size_t s : order) {
      if (turn % 2 == 0) {
        cp::merge_states(space, sum.state, states[s].state, sum.state);
      } else {
        cp::merge_states(space, states[s].state, sum.state, sum.state);
      }
    }
    space.fence();
    const auto values = sum.values();
    const auto lse = sum.lse();
    std::vector<float> result;
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t h = 0; h < heads; ++h) {
        result.push_back(lse(t, h));
        for (std::size_t k = 0; k < dim; ++k) result.push_back(values(t, h, k));
      }
    }
    if (first.empty()) first = result;
    for (std::size_t k = 0; k < result.size(); ++k) ASSERT_NEAR(result[k], first[k], 4e-6);
    std::ranges::shuffle(order, random);
  }
}

TYPED_TEST(MergeStates, NothingToDo) {
  State<TypeParam, float> empty(0, 4, 8, cp::LseBase::natural, {});
  cp::merge_states(TypeParam(), empty.state, empty.state, empty.state);
}

TYPED_TEST(MergeStates, Refuses) {
  const auto words = [](const auto& a, const auto& b, const auto& out) {
    try {
      cp::merge_states(TypeParam(), a.state, b.state, out.state);
    } catch (const cp::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const State<TypeParam, float> right(2, 3, 8, cp::LseBase::natural, {});
  const State<TypeParam, float> short_dim(2, 3, 7, cp::LseBase::natural, {});
  const State<TypeParam, float> tokens(1, 3, 8, cp::LseBase::natural, {});
  EXPECT_EQ(words(right, right, right), "none");
  EXPECT_EQ(words(short_dim, right, right), "a.values: extent 7 where 8 is needed");
  EXPECT_EQ(words(right, tokens, right), "b.values: extent 1 where 2 is needed");
  const State<TypeParam, float> nothing(2, 3, 0, cp::LseBase::natural, {});
  EXPECT_EQ(words(nothing, nothing, nothing), "out.values.extent(2): 0 is outside [1, 2147483647]");
  auto lse = right;
  lse.state.lse = tokens.state.lse;
  EXPECT_EQ(words(right, right, lse), "out.lse: extent 1 where 2 is needed");
  auto strided = right;
  strided.state.values = typename State<TypeParam, float>::Values(
      strided.state.values.data(), Kokkos::LayoutStride(2, 24, 3, 1, 8, 3));
  EXPECT_EQ(words(right, strided, right),
            "b.values: stride 3 between the elements of a head where 1 is needed");
  // An input may be one head for all, an output not; its tokens may be on either side of its heads.
  using Values = typename State<TypeParam, float>::Values;
  using Lse = typename State<TypeParam, float>::Lse;
  auto overlapping = right;
  const auto values = [&](std::size_t token_stride, std::size_t head_stride) {
    overlapping.state.values = Values(right.state.values.data(),
                                      Kokkos::LayoutStride(2, token_stride, 3, head_stride, 8, 1));
  };
  values(24, 0);
  EXPECT_EQ(words(overlapping, right, right), "none");
  EXPECT_EQ(words(right, right, overlapping),
            "out.values: heads of 8 elements overlap at stride 0");
  values(23, 8);
  EXPECT_EQ(words(right, right, overlapping),
            "out.values: tokens of 24 elements overlap at stride 23");
  values(8, 15);
  EXPECT_EQ(words(right, right, overlapping),
            "out.values: heads of 16 elements overlap at stride 15");
  values(8, 16);
  EXPECT_EQ(words(right, right, overlapping), "none");
  overlapping.state.lse = Lse(right.state.lse.data(), Kokkos::LayoutStride(2, 0, 3, 1));
  EXPECT_EQ(words(overlapping, right, right), "none");
  EXPECT_EQ(words(right, right, overlapping), "out.lse: tokens of 1 elements overlap at stride 0");
}

}  // namespace
