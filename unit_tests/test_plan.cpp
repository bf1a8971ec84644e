// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "batch.hpp"
#include "draw.hpp"

// The planner needs no Kokkos; these tests use none.

namespace {

namespace cp = chunked_prefill;
using Lens = std::vector<std::int32_t>;

template <class T>
std::vector<T> vector(std::span<const T> values) {
  return {values.begin(), values.end()};
}

TEST(GetMaxChunkCapacity, IsTheProduct) {
  EXPECT_EQ(cp::get_max_chunk_capacity(), 32768);
  EXPECT_EQ(cp::get_max_chunk_capacity({.chunked_prefill_size = 100, .mla_chunk_multiplier = 7}),
            700);
  EXPECT_EQ(
      cp::get_max_chunk_capacity({.chunked_prefill_size = INT32_MAX, .mla_chunk_multiplier = 1}),
      INT32_MAX);
}

TEST(PlanChunks, WorkedByHand) {
  const auto plan = cp::plan_chunks(Lens{0, 300, 0, 64}, {.chunk_capacity = 1024});
  EXPECT_EQ(plan.batch_size(), 4);
  EXPECT_EQ(plan.chunk_capacity(), 1024);
  EXPECT_EQ(plan.chunk_len(), 256);
  EXPECT_EQ(plan.chunked_loop_num(), 2);
  EXPECT_EQ(plan.total_tokens(), 364);
  EXPECT_EQ(plan.max_prefix_len(), 300);
  EXPECT_EQ(plan.longest_sequence(), 1);
  EXPECT_EQ(vector(plan.tokens_per_loop()), (std::vector<std::int64_t>{320, 44}));
  EXPECT_EQ(vector(plan.offsets()), (std::vector<std::int64_t>{0, 320, 364}));
  EXPECT_EQ(vector(plan.max_chunk_len_per_loop()), (Lens{256, 44}));
  EXPECT_EQ(plan.seq_range(0), (cp::SeqRange{1, 4}));
  EXPECT_EQ(plan.seq_range(1), (cp::SeqRange{1, 2}));
  EXPECT_EQ(vector(plan.non_empty_seqs_per_loop()), (Lens{2, 1}));
}

TEST(PlanChunks, LongestSequenceIsTheFirstOfEquals) {
  EXPECT_EQ(cp::plan_chunks(Lens{5, 7, 7, 6}, {.chunk_capacity = 4}).longest_sequence(), 1);
}

TEST(PlanChunks, NoSuchLoop) {
  const auto plan = cp::plan_chunks(Lens{300}, {.chunk_capacity = 200});  // two loops
  const auto refuses = [](auto of_loop, std::int32_t loop) {
    try {
      of_loop(loop);
    } catch (const cp::InvalidArgument& error) {
      return std::string(error.what()) == "loop: " + std::to_string(loop) + " is outside [0, 1]";
    }
    return false;
  };
  for (const std::int32_t loop : {-1, 2}) {
    EXPECT_TRUE(refuses([&](std::int32_t k) { static_cast<void>(plan.tokens(k)); }, loop));
    EXPECT_TRUE(refuses([&](std::int32_t k) { static_cast<void>(plan.max_chunk_len(k)); }, loop));
    EXPECT_TRUE(refuses([&](std::int32_t k) { static_cast<void>(plan.seq_range(k)); }, loop));
    EXPECT_TRUE(refuses([&](std::int32_t k) { static_cast<void>(plan.non_empty_seqs(k)); }, loop));
    EXPECT_TRUE(refuses([&](std::int32_t k) { static_cast<void>(plan.has_empty_seq(k)); }, loop));
  }
  EXPECT_EQ(plan.offset(2), 300);
  EXPECT_THROW(static_cast<void>(plan.offset(3)), cp::InvalidArgument);
}

TEST(PlanChunks, NoEmptySequence) {
  const auto plan = cp::plan_chunks(Lens{256, 512, 768, 1024}, {.chunk_capacity = 1024});
  EXPECT_EQ(plan.chunked_loop_num(), 4);
  EXPECT_FALSE(plan.has_empty_seq(0));
  EXPECT_TRUE(plan.has_empty_seq(1));
  EXPECT_EQ(plan.seq_range(3), (cp::SeqRange{3, 4}));
}

TEST(PlanChunks, Extremes) {
  const auto plan = cp::plan_chunks(Lens{INT32_MAX, 1}, {.chunk_capacity = INT32_MAX});
  EXPECT_EQ(plan.chunk_len(), INT32_MAX / 2);
  EXPECT_EQ(vector(plan.tokens_per_loop()),
            (std::vector<std::int64_t>{INT32_MAX / 2 + 1, INT32_MAX / 2, 1}));
  EXPECT_EQ(plan.total_tokens(), std::int64_t{INT32_MAX} + 1);
  const auto wide = cp::plan_chunks(Lens(5, INT32_MAX), {.chunk_capacity = INT32_MAX});
  EXPECT_EQ(wide.total_tokens(), 5 * std::int64_t{INT32_MAX});
}

TEST(PlanChunks, WarmPlanIsReused) {
  cp::ChunkPlan plan = cp::plan_chunks(Lens{5000, 3, 700}, {.chunk_capacity = 30});
  const auto* const memory = plan.tokens_per_loop().data();
  cp::plan_chunks(Lens{0, 300, 0, 64}, {.chunk_capacity = 1024}, plan);
  EXPECT_EQ(plan.tokens_per_loop().data(), memory);
  EXPECT_EQ(vector(plan.tokens_per_loop()), (std::vector<std::int64_t>{320, 44}));
  EXPECT_EQ(vector(plan.seq_begin_per_loop()), (Lens{1, 1}));
  EXPECT_EQ(vector(plan.seq_end_per_loop()), (Lens{4, 2}));
  cp::plan_chunks(Lens{}, {.chunk_capacity = 1024}, plan);
  EXPECT_EQ(plan.chunked_loop_num(), 0);
  EXPECT_EQ(plan.total_tokens(), 0);
}

TEST(PlanChunks, MovedFromPlanHasNoLoops) {
  cp::ChunkPlan plan = cp::plan_chunks(Lens{0, 300, 0, 64}, {.chunk_capacity = 1024});
  const cp::ChunkPlan taken = std::move(plan);
  EXPECT_EQ(taken.total_tokens(), 364);
  EXPECT_EQ(plan.chunked_loop_num(), 0);  // NOLINT: what is left is an empty object
  EXPECT_EQ(plan.total_tokens(), 0);
}

// Every number of the plan, counted out of the oracle's table.
TEST(PlanChunks, AgreesWithTheOracle) {
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto batch = seed % 2 == 0 ? test::random_batch(seed) : test::random_packed_batch(seed);
    const auto plan = cp::plan_chunks(batch.prefix_lens, batch.options());
    ASSERT_EQ(test::numbers_differ(plan, test::oracle(batch)), "");
    for (const std::int64_t tokens : plan.tokens_per_loop()) {
      ASSERT_LE(tokens, batch.chunk_capacity);
    }
  }
}

}  // namespace
