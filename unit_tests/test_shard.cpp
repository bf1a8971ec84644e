// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "batch.hpp"
#include "draw.hpp"
#include "execution_spaces.hpp"
#include "recorder.hpp"

// What one rank of a context-parallel group gets.
namespace {

namespace cp = chunked_prefill;
using Lens = std::vector<std::int32_t>;

// 10 tokens in turns of 4: rank 0 has 0-3, 8 and 9, rank 1 has 4-7.
TEST(Shard, LocalTokensWorkedByHand) {
  const auto held = [](std::int32_t rank) {
    const cp::ContextShard shard{.world_size = 2, .rank = rank, .interleave = 4};
    std::vector<std::int64_t> of_first;
    for (std::int64_t tokens = 0; tokens <= 10; ++tokens) {
      of_first.push_back(shard.local_tokens(tokens));
    }
    return of_first;
  };
  EXPECT_EQ(held(0), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 4, 4, 4, 4, 5, 6}));
  EXPECT_EQ(held(1), (std::vector<std::int64_t>{0, 0, 0, 0, 0, 1, 2, 3, 4, 4, 4}));
  EXPECT_EQ(cp::ContextShard{}.local_tokens(INT64_MAX / 2), INT64_MAX / 2);
}

// Loops of 8 of 10 tokens, of all ranks.
TEST(Shard, PlanWorkedByHand) {
  const auto tokens = [](cp::Policy policy, std::int32_t rank) {
    const auto plan =
        cp::plan_chunks(Lens{10}, {.chunk_capacity = 8,
                                   .policy = policy,
                                   .shard = {.world_size = 2, .rank = rank, .interleave = 4}});
    EXPECT_EQ(plan.chunk_len(), 8);
    EXPECT_EQ(plan.max_prefix_len(), 10);
    return std::vector<std::int64_t>(plan.tokens_per_loop().begin(), plan.tokens_per_loop().end());
  };
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    EXPECT_EQ(tokens(policy, 0), (std::vector<std::int64_t>{4, 2}));
    EXPECT_EQ(tokens(policy, 1), (std::vector<std::int64_t>{4, 0}));
  }
}

// The second of three loops lies in the turn of rank 1: rank 0 has nothing of it.
TEST(Shard, ALoopThatTheRankHasNothingOf) {
  const auto plan = cp::plan_chunks(
      Lens{9, 12}, {.chunk_capacity = 8, .shard = {.world_size = 2, .rank = 0, .interleave = 4}});
  EXPECT_EQ(plan.chunked_loop_num(), 3);
  EXPECT_EQ(plan.tokens(1), 0);
  EXPECT_EQ(plan.max_chunk_len(1), 0);
  EXPECT_EQ(plan.seq_range(1), (cp::SeqRange{0, 0}));
  EXPECT_EQ(plan.non_empty_seqs(1), 0);
  EXPECT_TRUE(plan.has_empty_seq(1));
  EXPECT_EQ(plan.tokens(2), 5);
  EXPECT_EQ(plan.seq_range(2), (cp::SeqRange{0, 2}));
}

TEST(Shard, RefusesByName) {
  const auto refusal = [](const cp::ContextShard& shard) {
    return test::refusal([&] { (void)cp::plan_chunks(Lens{1}, {.shard = shard}); });
  };
  EXPECT_EQ(refusal({.world_size = 0}), "shard.world_size: 0 is outside [1, 2147483647]");
  EXPECT_EQ(refusal({.world_size = 2, .rank = 2}), "shard.rank: 2 is outside [0, 1]");
  EXPECT_EQ(refusal({.world_size = 2, .rank = -1}), "shard.rank: -1 is outside [0, 1]");
  EXPECT_EQ(refusal({.interleave = 0}), "shard.interleave: 0 is outside [1, 2147483647]");
  EXPECT_EQ(refusal({.world_size = 65536, .interleave = 32768}),
            "shard.interleave: 32768 is outside [1, 32767]");
  EXPECT_EQ(refusal({.world_size = INT32_MAX, .rank = INT32_MAX - 1}), test::not_refused);
  EXPECT_EQ(refusal({.interleave = INT32_MAX}), test::not_refused);
}

// Each rank's numbers, and in a captured shape room for every rank's tokens.
TEST(Shard, NumbersOfDrawnPlans) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto batch = test::random_shard(seed);
    const auto plan = cp::plan_chunks(batch.prefix_lens, batch.options());
    ASSERT_EQ(test::numbers_differ(plan, test::oracle(batch)), "");
    const auto shape = cp::bounding_shape(
        {.batch_size = plan.batch_size(),
         .max_prefix_len = plan.max_prefix_len(),
         .total_tokens =
             std::accumulate(batch.prefix_lens.begin(), batch.prefix_lens.end(), std::int64_t{0})},
        batch.options());
    ASSERT_GE(shape.total_tokens, plan.total_tokens());
    ASSERT_GE(shape.chunked_loop_num, plan.chunked_loop_num());
  }
}

// 2^20 tokens of 64 sequences: an eighth, and of each sequence up to a turn's share more.
TEST(Shard, BoundsWorkedByHand) {
  const auto bound = [](std::int32_t interleave) {
    return cp::bounding_shape({.batch_size = 64, .max_prefix_len = 131072, .total_tokens = 1 << 20},
                              {.shard = {.world_size = 8, .rank = 3, .interleave = interleave}})
        .total_tokens;
  };
  EXPECT_EQ(bound(1), 131072 + 64 * 7 / 8);
  EXPECT_EQ(bound(64), 131072 + 64 * 7 * 64 / 8);
}

// The page grain keeps every inner cut of every rank at the end of a page.
TEST(Shard, PageGrain) {
  EXPECT_EQ(cp::ContextShard{}.page_grain(64), 64);
  EXPECT_EQ((cp::ContextShard{.interleave = 48}.page_grain(64)), 64);
  EXPECT_EQ((cp::ContextShard{.world_size = 4, .interleave = 1}.page_grain(64)), 256);
  EXPECT_EQ((cp::ContextShard{.world_size = 4, .interleave = 16}.page_grain(64)), 256);
  EXPECT_EQ((cp::ContextShard{.world_size = 4, .interleave = 64}.page_grain(64)), 64);
  EXPECT_EQ((cp::ContextShard{.world_size = 4, .interleave = 48}.page_grain(64)), 768);
  for (std::int32_t world_size = 1; world_size <= 5; ++world_size) {
    for (std::int32_t interleave = 1; interleave <= 12; ++interleave) {
      for (std::int32_t page_size = 1; page_size <= 12; ++page_size) {
        for (std::int32_t rank = 0; rank < world_size; ++rank) {
          const cp::ContextShard shard{
              .world_size = world_size, .rank = rank, .interleave = interleave};
          const std::int64_t grain = shard.page_grain(page_size);
          for (std::int64_t cut = grain; cut < 6 * grain; cut += grain) {
            ASSERT_EQ(shard.local_tokens(cut) % page_size, 0)
                << world_size << " " << interleave << " " << page_size << " " << rank << " " << cut;
          }
        }
      }
    }
  }
}

template <class Space>
class ShardBuild : public ::testing::Test {};
TYPED_TEST_SUITE(ShardBuild, test::ExecutionSpaces, test::SpaceName);

TYPED_TEST(ShardBuild, DrawnBatches) {
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto batch = test::random_shard(seed);
    const auto expected = test::oracle(batch);
    ASSERT_EQ((test::build<TypeParam>(batch)), expected);
    ASSERT_EQ((test::build<TypeParam, std::int64_t, std::int64_t, std::int64_t>(batch, 3)),
              expected);
    const auto host =
        cp::host_chunks(cp::plan_chunks(batch.prefix_lens, batch.options()), batch.prefix_lens);
    ASSERT_EQ(test::to_host_rows(host.starts), expected.starts);
    ASSERT_EQ(test::to_host_rows(host.ends), expected.ends);
    ASSERT_EQ(test::to_host_rows(host.len_in_chunk), expected.len_in_chunk);
    ASSERT_EQ(test::to_host_rows(host.cum_seq_lens), expected.cum_seq_lens);
  }
}

/// Which token a slot of a rank's cache holds: the sequence, and the position in it.
using Token = std::pair<std::size_t, std::int64_t>;

// The ranks of a group together have each token of each loop once, and no others.
TYPED_TEST(ShardBuild, RanksTogetherHaveEachTokenOnce) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto batch = test::random_shard(seed);
    const std::int32_t world_size = batch.shard.world_size;
    std::vector<std::vector<Token>> found;
    for (std::int32_t rank = 0; rank < world_size; ++rank) {
      batch.shard.rank = rank;
      // The rank's cache, filled as an engine fills it: a token of its own goes behind the last.
      std::map<std::int64_t, Token> cache;
      for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
        std::int64_t place = 0;
        for (std::int64_t position = 0; position < batch.prefix_lens[i]; ++position) {
          if (position / batch.shard.interleave % world_size != rank) continue;
          const auto& row = batch.req_to_page[static_cast<std::size_t>(batch.req_pool_indices[i])];
          const std::int64_t page = row[static_cast<std::size_t>(place / batch.page_size)];
          cache[page * batch.page_size + place % batch.page_size] = {i, position};
          ++place;
        }
      }
      const auto built = test::build<TypeParam>(batch);
      found.resize(built.chunk_kv_indices.size());
      for (std::size_t loop = 0; loop < found.size(); ++loop) {
        for (const std::int64_t slot : built.chunk_kv_indices[loop]) {
          const auto token = cache.find(slot);
          ASSERT_NE(token, cache.end()) << "rank " << rank << " holds nothing in slot " << slot;
          found[loop].push_back(token->second);
        }
      }
    }
    batch.shard = {};
    const auto whole = test::build<TypeParam>(batch);
    ASSERT_EQ(found.size(), whole.starts.size());
    for (std::size_t loop = 0; loop < found.size(); ++loop) {
      std::vector<Token> expected;
      for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
        for (std::int64_t p = whole.starts[loop][i]; p < whole.ends[loop][i]; ++p) {
          expected.emplace_back(i, p);
        }
      }
      std::ranges::sort(found[loop]);
      ASSERT_EQ(found[loop], expected) << "loop " << loop;
    }
  }
}

// Batches that take two kernels, and batches of more tokens than a GPU writes at once.
TYPED_TEST(ShardBuild, LongAndLargeBatches) {
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    for (const cp::ContextShard shard :
         {cp::ContextShard{3, 1, 1}, cp::ContextShard{4, 0, 64}, cp::ContextShard{2, 1, 100000}}) {
      Lens lens(700, 90);
      lens[7] = 3000;
      lens[699] = 0;
      auto batch = test::make_batch(lens, 3000, 16);
      batch.policy = policy;
      batch.shard = shard;
      EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
      lens = Lens(40, 1000);
      lens[7] = 900001;
      lens[39] = 600000;
      batch = test::make_batch(lens, 65536, 64);
      batch.policy = policy;
      batch.shard = shard;
      EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
    }
  }
}

// A table of the loops that all ranks share, though the rank holds no token at all.
TYPED_TEST(ShardBuild, ARankWithoutTokens) {
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    auto batch = test::make_batch({5, 0, 7}, 6, 4);
    batch.policy = policy;
    batch.shard = {.world_size = 2, .rank = 1, .interleave = 8};
    const auto built = test::build<TypeParam>(batch);
    EXPECT_EQ(built, test::oracle(batch));
    EXPECT_EQ(built.chunk_kv_indices.size(), policy == cp::Policy::equal ? 4u : 2u);
  }
}

}  // namespace
