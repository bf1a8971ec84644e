// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../execution_spaces.hpp"
#include "problem.hpp"

// Attention over chunks is attention.

namespace {

namespace cp = chunked_prefill;

template <class Space>
class PrefixAttention : public ::testing::Test {};
TYPED_TEST_SUITE(PrefixAttention, test::ExecutionSpaces, test::SpaceName);

constexpr double float_tolerance = 1e-5;
constexpr cp::MlaShape small{
    .num_heads = 3, .nope_dim = 8, .rope_dim = 4, .value_dim = 6, .latent_dim = 16};

test::Problem make(const cp::MlaShape& shape, std::vector<std::int32_t> prefix_lens,
                   std::vector<std::int32_t> new_lens, std::int64_t page_size) {
  test::Problem problem;
  problem.shape = shape;
  problem.prefix_lens = std::move(prefix_lens);
  problem.new_lens = std::move(new_lens);
  problem.page_size = page_size;
  problem.fill();
  return problem;
}

template <class Space>
void expect_equal(const test::Problem& problem, const test::Run& run,
                  const test::Unchunked& expected) {
  SCOPED_TRACE("page size " + std::to_string(problem.page_size) + ", capacity " +
               std::to_string(run.options.chunk_capacity) + ", grain " +
               std::to_string(run.options.grain) +
               (run.options.policy == cp::Policy::packed ? ", packed" : ", equal") + ", ranks " +
               std::to_string(run.world_size));
  const auto result = test::attended<Space, float>(problem, run);
  EXPECT_LT(test::largest_difference(result, expected), float_tolerance);
  for (std::size_t k = 0; k < expected.lse.size(); ++k) {
    ASSERT_NEAR(result.lse[k], expected.lse[k], 1e-4) << k;
  }
}

std::vector<test::Run> runs(const test::Problem& problem) {
  const auto batch_size = std::ssize(problem.prefix_lens);
  std::vector<test::Run> all;
  for (const std::int64_t capacity : {2 * batch_size, std::ptrdiff_t{100}, std::ptrdiff_t{5000}}) {
    all.push_back({.options = {.chunk_capacity = capacity}});
    all.push_back({.options = {.chunk_capacity = capacity, .policy = cp::Policy::packed}});
    if (capacity < problem.page_size) continue;
    all.push_back({.options = {.chunk_capacity = capacity,
                               .policy = cp::Policy::packed,
                               .grain = problem.page_size}});
  }
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    all.push_back(
        {.options = {.chunk_capacity = 64, .policy = policy}, .world_size = 3, .interleave = 5});
  }
  return all;
}

TYPED_TEST(PrefixAttention, ChunkedIsUnchunked) {
  for (const std::int64_t page_size : {1, 48, 64}) {
    const auto problem = make(small, {130, 0, 257, 1, 64}, {3, 4, 1, 5, 2}, page_size);
    const auto expected = test::unchunked(problem);
    for (const auto& run : runs(problem)) expect_equal<TypeParam>(problem, run, expected);
  }
}

// One loop, many, and one a token.
TYPED_TEST(PrefixAttention, OneTokenALoop) {
  const auto problem = make(small, {70}, {9}, 16);
  const auto expected = test::unchunked(problem);
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    for (const std::int64_t capacity : {1, 2, 70}) {
      const test::Run run{.options = {.chunk_capacity = capacity, .policy = policy}};
      expect_equal<TypeParam>(problem, run, expected);
    }
  }
  const auto several = make(small, {20, 0, 13}, {2, 3, 1}, 16);
  expect_equal<TypeParam>(several, {.options = {.chunk_capacity = 1, .policy = cp::Policy::packed}},
                          test::unchunked(several));
}

TYPED_TEST(PrefixAttention, EmptyPrefixes) {
  const auto problem = make(small, {0, 0}, {4, 3}, 16);
  expect_equal<TypeParam>(problem, {.options = {.chunk_capacity = 32}}, test::unchunked(problem));
}

// Long prefixes on small shapes: more keys than a block of the kernel, and than a loop.
TYPED_TEST(PrefixAttention, AtLength) {
  const auto problem =
      make({.num_heads = 2, .nope_dim = 4, .rope_dim = 2, .value_dim = 4, .latent_dim = 8},
           {9000, 300, 4097}, {2, 1, 2}, 64);
  const auto expected = test::unchunked(problem);
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    expect_equal<TypeParam>(problem, {.options = {.chunk_capacity = 2048, .policy = policy}},
                            expected);
  }
}

// DeepSeek V3: 128 heads of 128 + 64, values of 128, rows of 512 + 64.
TYPED_TEST(PrefixAttention, DeepSeek) {
  const auto problem = make({.num_heads = 128}, {13, 6}, {1, 1}, 4);
  const auto expected = test::unchunked(problem);
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    expect_equal<TypeParam>(problem, {.options = {.chunk_capacity = 8, .policy = policy}},
                            expected);
  }
}

// Two sequences whose prefixes begin alike are on the same pages.
TYPED_TEST(PrefixAttention, SharedPages) {
  auto problem = make(small, {100, 90}, {2, 3}, 16);
  std::copy_n(problem.rows[0].begin(), 80 * problem.row_dim(), problem.rows[1].begin());
  const auto expected = test::unchunked(problem);
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    expect_equal<TypeParam>(
        problem, {.options = {.chunk_capacity = 50, .policy = policy}, .share_pages = true},
        expected);
  }
}

// A cache of fewer bits is as far off as its rounding makes it, and no farther.
template <class Space, class Element>
void within_rounding(const test::CacheError& error, float scale) {
  const auto problem =
      make({.num_heads = 4, .nope_dim = 16, .rope_dim = 8, .value_dim = 16, .latent_dim = 32},
           {150, 0, 77}, {2, 2, 3}, 16);
  const auto expected = test::unchunked(problem, error);
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    const auto result = test::attended<Space, Element>(
        problem, {.options = {.chunk_capacity = 60, .policy = policy}, .cache_scale = scale});
    for (std::size_t k = 0; k < expected.values.size(); ++k) {
      ASSERT_NEAR(result.values[k], expected.values[k], expected.bounds[k] + float_tolerance) << k;
    }
    EXPECT_GT(test::largest_difference(result, expected), float_tolerance) << "is it that type?";
  }
}
TYPED_TEST(PrefixAttention, CachesOfFewerBits) {
  within_rounding<TypeParam, cp::BFloat16>({.relative = 0x1p-8}, 1);
  within_rounding<TypeParam, cp::Float16>({.relative = 0x1p-11, .absolute = 0x1p-25}, 1);
  within_rounding<TypeParam, cp::Float8E4M3>({.relative = 0x1p-4, .absolute = 0x1p-10 / 16},
                                             1.0F / 16);
}

// What does not fit is refused before anything is merged into the state.
template <class Space>
struct Step {
  using MemorySpace = typename Space::memory_space;
  test::Batch batch = test::make_batch({40, 8}, 32, 16);
  test::DeviceBatch<MemorySpace> device{batch};
  cp::ChunkPlan plan = cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 32});
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::Array2D<float, MemorySpace> cache{"test::cache", 1024, 20};
  cp::MlaLayer<MemorySpace> layer{small, cp::Array2D<float, MemorySpace>("test::kv_b", 16, 42), 1};
  cp::QueryBatch<MemorySpace> queries{
      cp::Array3D<float, MemorySpace>("test::query", 3, 3, 12),
      test::to_device<std::int32_t, MemorySpace>(std::vector<std::int32_t>{0, 1, 3})};
  cp::AttentionWorkspace<MemorySpace> workspace{small, 32, 3};
  typename cp::AttentionWorkspace<MemorySpace>::State state{
      cp::Array3D<float, MemorySpace>("test::values", 3, 3, 6),
      cp::Array2D<float, MemorySpace>("test::lse", 3, 3)};

  Step() {
    cp::fill(Space(), plan, device.prefix(), metadata);
    Kokkos::deep_copy(state.lse, 77);
  }
  std::string refused(bool of_new_tokens = false) {
    try {
      if (of_new_tokens) {
        const auto rows = [&](std::size_t columns) {
          return cp::Array2D<float, MemorySpace>("test::rows", queries.query.extent(0), columns);
        };
        cp::attend_new_tokens(Space(), rows(16), rows(4), layer, queries, workspace, state);
      } else {
        cp::attend_prefix(Space(), plan, metadata, cache, 1, layer, queries, workspace, state);
      }
    } catch (const cp::InvalidArgument& error) {
      const auto lse = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.lse);
      for (std::size_t k = 0; k < lse.size(); ++k) EXPECT_EQ(lse.data()[k], 77);
      return error.what();
    }
    Kokkos::fence();
    return "none";
  }
};

TYPED_TEST(PrefixAttention, Refuses) {
  using MemorySpace = typename TypeParam::memory_space;
  using Step = Step<TypeParam>;
  EXPECT_EQ(Step().refused(), "none");
  EXPECT_EQ(Step().refused(true), "none");
  {
    Step step;  // loops of 24, 16 and 8 tokens are fine, and the first of another plan is not
    step.workspace = cp::AttentionWorkspace<MemorySpace>(small, 23, 3);
    EXPECT_EQ(step.refused(), "tokens of a loop: 24 is outside [0, 23]");
  }
  {
    Step step;
    step.plan = cp::plan_chunks(std::vector{40, 8}, {.chunk_capacity = 34});
    EXPECT_EQ(step.refused(), "metadata.chunk_kv_indices(0): extent 24 where 25 is needed");
    step.plan = cp::plan_chunks(std::vector{40, 8}, {.chunk_capacity = 16});
    EXPECT_EQ(step.refused(), "metadata.chunked_loop_num(): 3 is outside [5, 5]");
    step.plan = cp::plan_chunks(std::vector{40}, {.chunk_capacity = 16});
    EXPECT_EQ(step.refused(), "queries.cum_query_lens: extent 3 where 2 is needed");
  }
  {
    Step step;
    step.cache = cp::Array2D<float, MemorySpace>("test::cache", 64, 19);
    EXPECT_EQ(step.refused(), "cache: extents (64, 19) where (64, 20) are needed");
  }
  for (const bool of_new_tokens : {false, true}) {
    Step step;
    step.state.values = cp::Array3D<float, MemorySpace>("test::values", 2, 3, 6);
    EXPECT_EQ(step.refused(of_new_tokens), "state.values: extent 2 where 3 is needed");
    step.queries.cum_query_lens = {};
    EXPECT_EQ(step.refused(of_new_tokens),
              "queries.cum_query_lens.extent(0): 0 is outside [2, 2147483647]");
    step = Step();
    step.layer.kv_b = cp::Array2D<float, MemorySpace>("test::kv_b", 16, 41);
    EXPECT_EQ(step.refused(of_new_tokens),
              "layer.kv_b: extents (16, 41) where (16, 42) are needed");
    step = Step();
    step.workspace = cp::AttentionWorkspace<MemorySpace>(small, 32, 2);
    EXPECT_EQ(step.refused(of_new_tokens), "query tokens: 3 is outside [0, 2]");
  }
}

// What must not pass does not.
TYPED_TEST(PrefixAttention, MistakesAreSeen) {
  const auto problem = make(small, {100, 40}, {2, 3}, 16);
  const auto expected = test::unchunked(problem);
  const test::Run right{.options = {.chunk_capacity = 50}};
  const auto difference = [&](test::Run run) {
    return test::largest_difference(test::attended<TypeParam, float>(problem, run), expected);
  };
  EXPECT_LT(difference(right), float_tolerance);
  auto swapped = right;
  swapped.swap_pages = true;
  EXPECT_GT(difference(swapped), 100 * float_tolerance);
  auto dropped = right;
  dropped.drop_loop = true;
  EXPECT_GT(difference(dropped), 100 * float_tolerance);
  auto base = right;
  base.wrong_base = true;
  EXPECT_GT(difference(base), 100 * float_tolerance);
}

}  // namespace
