// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "batch.hpp"
#include "draw.hpp"
#include "execution_spaces.hpp"
#include "recorder.hpp"

// The packed policy: what plans and builds have in common with the equal one is tested beside that.
namespace {

namespace cp = chunked_prefill;
using Lens = std::vector<std::int32_t>;

cp::PlanOptions packed(std::int64_t chunk_capacity, std::int64_t grain = 1) {
  return {.chunk_capacity = chunk_capacity, .policy = cp::Policy::packed, .grain = grain};
}
std::vector<std::int64_t> tokens(const cp::ChunkPlan& plan) {
  return {plan.tokens_per_loop().begin(), plan.tokens_per_loop().end()};
}

// 364 tokens end to end, cut every 128.
TEST(Packed, PlanWorkedByHand) {
  const auto plan = cp::plan_chunks(Lens{0, 300, 0, 64}, packed(128));
  EXPECT_EQ(plan.policy(), cp::Policy::packed);
  EXPECT_EQ(plan.chunk_len(), 128);
  EXPECT_EQ(tokens(plan), (std::vector<std::int64_t>{128, 128, 108}));
  EXPECT_EQ(plan.max_chunk_len(2), 64);
  EXPECT_EQ(plan.seq_range(0), (cp::SeqRange{1, 2}));
  EXPECT_EQ(plan.seq_range(2), (cp::SeqRange{1, 4}));
  EXPECT_EQ(plan.non_empty_seqs(2), 2);
  EXPECT_TRUE(plan.has_empty_seq(2));
}

// Loops of 100 tokens, two grains: 300 | 64 padded to 100.
TEST(Packed, GrainWorkedByHand) {
  const auto plan = cp::plan_chunks(Lens{0, 300, 0, 64}, packed(128, 50));
  EXPECT_EQ(plan.chunk_len(), 100);
  EXPECT_EQ(plan.grain(), 50);
  EXPECT_EQ(tokens(plan), (std::vector<std::int64_t>{100, 100, 100, 64}));
  EXPECT_EQ(plan.seq_range(3), (cp::SeqRange{3, 4}));
}

// A capacity below the batch size is enough.
TEST(Packed, MoreSequencesThanCapacity) {
  const auto plan = cp::plan_chunks(Lens(10, 1), packed(3));
  EXPECT_EQ(tokens(plan), (std::vector<std::int64_t>{3, 3, 3, 1}));
}

TEST(Packed, Extremes) {
  const auto plan = cp::plan_chunks(Lens(3, INT32_MAX), packed(INT32_MAX, INT32_MAX));
  EXPECT_EQ(tokens(plan), std::vector<std::int64_t>(3, INT32_MAX));
}

TEST(Packed, RefusesByName) {
  const auto refusal = [](const Lens& lens, const cp::PlanOptions& options) {
    return test::refusal([&] { (void)cp::plan_chunks(lens, options); });
  };
  EXPECT_EQ(refusal({1}, packed(128, 0)), "grain: 0 is outside [1, 128]");
  EXPECT_EQ(refusal({1}, packed(128, 129)), "grain: 129 is beyond chunk_capacity 128");
  EXPECT_EQ(refusal({1}, packed(128, 128)), test::not_refused);
  EXPECT_EQ(refusal({1}, {.chunk_capacity = 128, .grain = 64}),
            "grain: 64 belongs to the packed policy; an equal split has 1");
  EXPECT_EQ(refusal({INT32_MAX}, packed(1)),
            "chunk_capacity: 1 needs 2147483647 loops for 2147483647 tokens");
}

// Every token once and in order, cuts inside a sequence on the grain, no loop above the capacity,
// the sequences of a loop side by side.
TEST(Packed, PropertiesOfDrawnPlans) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto batch = test::random_packed_batch(seed);
    const auto& lens = batch.prefix_lens;
    const auto plan = cp::plan_chunks(lens, batch.options());
    const auto chunks = cp::host_chunks(plan, lens);
    std::vector<std::int32_t> covered(lens.size(), 0);
    for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
      ASSERT_LE(plan.tokens(loop), batch.chunk_capacity);
      const auto [begin, end] = plan.seq_range(loop);
      for (std::int32_t i = 0; i < plan.batch_size(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(chunks.starts(loop, i), covered[at]);
        covered[at] = chunks.ends(loop, i);
        ASSERT_TRUE(covered[at] == lens[at] || covered[at] % batch.grain == 0);
        const bool live = chunks.len_in_chunk(loop, i) > 0;
        ASSERT_EQ(live, i >= begin && i < end && lens[at] > 0);
      }
    }
    ASSERT_EQ(covered, lens);
    if (batch.grain == 1) {
      const std::int64_t sum = std::accumulate(lens.begin(), lens.end(), std::int64_t{0});
      ASSERT_EQ(plan.chunked_loop_num(), (sum + batch.chunk_capacity - 1) / batch.chunk_capacity);
    }
  }
}

/// The fewest loops of at most `capacity` tokens that empty `left`, by trying every loop.
int fewest_loops(const Lens& left, std::int32_t capacity, std::map<Lens, int>& known) {
  if (std::ranges::all_of(left, [](std::int32_t length) { return length == 0; })) return 0;
  if (const auto found = known.find(left); found != known.end()) return found->second;
  int fewest = INT32_MAX;
  const auto take = [&](const auto& self, Lens rest, std::size_t i, std::int32_t room) -> void {
    if (i == rest.size()) {
      if (rest != left) fewest = std::min(fewest, 1 + fewest_loops(rest, capacity, known));
      return;
    }
    const std::int32_t most = std::min(room, rest[i]);
    for (std::int32_t count = 0; count <= most; ++count) {
      Lens next = rest;
      next[i] -= count;
      self(self, next, i + 1, room - count);
    }
  };
  take(take, left, 0, capacity);
  return known[left] = fewest;
}

TEST(Packed, NoSplitHasFewerLoops) {
  for (std::int32_t capacity = 1; capacity <= 5; ++capacity) {
    std::map<Lens, int> known;
    for (std::int32_t a = 0; a <= 4; ++a) {
      for (std::int32_t b = 0; b <= 4; ++b) {
        for (std::int32_t c = 0; c <= 3; ++c) {
          const Lens lens{a, b, c};
          ASSERT_EQ(cp::plan_chunks(lens, packed(capacity)).chunked_loop_num(),
                    fewest_loops(lens, capacity, known));
        }
      }
    }
  }
}

template <class Space>
class PackedBuild : public ::testing::Test {};
TYPED_TEST_SUITE(PackedBuild, test::ExecutionSpaces, test::SpaceName);

TYPED_TEST(PackedBuild, DrawnBatches) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto batch = test::random_packed_batch(seed);
    const auto expected = test::oracle(batch);
    ASSERT_EQ((test::build<TypeParam>(batch)), expected);
    ASSERT_EQ((test::build<TypeParam, std::int64_t, std::int64_t, std::int64_t>(batch, 3)),
              expected);
  }
}

// Batches that take two kernels, with one and several sequences a lane.
TYPED_TEST(PackedBuild, LongBatches) {
  for (const std::size_t sequences : {513, 1024, 1500, 5000}) {
    for (const std::int64_t grain : {1, 16, 50}) {
      SCOPED_TRACE(std::to_string(sequences) + " sequences, grain " + std::to_string(grain));
      std::mt19937 random(static_cast<std::uint32_t>(sequences));
      Lens lens(sequences);
      for (auto& length : lens) length = static_cast<std::int32_t>(random() % 40);
      lens[700 % sequences] = 3000;
      lens[sequences - 1] = 0;
      auto batch = test::make_batch(lens, 2000, 16);
      batch.policy = cp::Policy::packed;
      batch.grain = grain;
      ASSERT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
    }
  }
}

// Enough tokens for every thread of a GPU to write several times, enough loops for every team.
TYPED_TEST(PackedBuild, ManyTilesAndLoops) {
  Lens lens(100, 3);
  lens[7] = 1200000;
  lens[93] = 2000001;
  lens[94] = 0;
  auto batch = test::make_batch(lens, 65536, 64);
  batch.policy = cp::Policy::packed;
  EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
  batch = test::make_batch({50000, 1, 0, 7}, 3, 64);
  batch.policy = cp::Policy::packed;
  EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
}

}  // namespace
