// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "draw.hpp"
#include "execution_spaces.hpp"
#include "property/checker.hpp"
#include "property/image.hpp"
#include "property/shrink.hpp"
#include "property/soak.hpp"

// The property runner itself: what it draws is varied, what is wrong is seen, and made small.

namespace {

namespace cp = chunked_prefill;
using Lens = std::vector<std::int32_t>;

test::Case shrunk(const test::Case& of, const test::Shrinker::Fails& fails) {
  return test::Shrinker(of, fails).shrink();
}

// One sequence, the shortest that is too long, and everything else as it is by default.
TEST(Shrinker, LeavesWhatIsNeeded) {
  const auto fails = [](const test::Case& of) {
    return of.longest() > 37 && of.batch.page_size % 2 == 1;
  };
  int shrunken = 0;
  for (std::uint64_t number = 0; number < 300; ++number) {
    const auto drawn = test::draw_case(1, number);
    if (!fails(drawn)) continue;
    ++shrunken;
    SCOPED_TRACE("batch " + std::to_string(number));
    const auto small = shrunk(drawn, fails);
    EXPECT_EQ(small.batch.prefix_lens, Lens{38});
    EXPECT_EQ(small.batch.page_size, 1);
    EXPECT_EQ(small.batch.chunk_capacity, 1);
    EXPECT_EQ(small.batch.policy, cp::Policy::equal);
    EXPECT_EQ(small.batch.grain, 1);
    EXPECT_EQ(small.batch.shard, cp::ContextShard{});
    EXPECT_EQ(small.pages, 0u);
    EXPECT_EQ(small.spare + small.more_longest + small.more_tokens, 0);
    EXPECT_FALSE(small.wide_lengths || small.wide_requests || small.wide_slots);
    EXPECT_EQ(small.batch.req_to_page.size(), 1u);
  }
  EXPECT_GT(shrunken, 30);
}

// What only a rank, a grain and a distance between rows give is kept, as little of it as does.
TEST(Shrinker, KeepsWhatIsNeeded) {
  const auto fails = [](const test::Case& of) {
    return of.batch.shard.rank >= 2 && of.batch.grain > 5 && of.spare > 0 && of.wide_slots &&
           of.pages != 0 && of.tokens() >= 7;
  };
  int shrunken = 0;
  for (std::uint64_t number = 0; number < 5000 && shrunken < 5; ++number) {
    const auto drawn = test::draw_case(2, number);
    if (!fails(drawn)) continue;
    ++shrunken;
    const auto small = shrunk(drawn, fails);
    EXPECT_EQ(small.batch.shard, (cp::ContextShard{3, 2, 1}));
    EXPECT_EQ(small.batch.grain, 6);
    EXPECT_EQ(small.batch.chunk_capacity, 6);
    EXPECT_EQ(small.spare, 1);
    EXPECT_TRUE(small.wide_slots && small.pages != 0);
    EXPECT_FALSE(small.wide_lengths || small.wide_requests);
    EXPECT_EQ(small.tokens(), 7);
  }
  EXPECT_EQ(shrunken, 5);
}

// Sequences that have to be there and need no tokens have none.
TEST(Shrinker, ManySequences) {
  const auto fails = [](const test::Case& of) {
    return of.batch.prefix_lens.size() > 512 && of.batch.prefix_lens.back() > 3;
  };
  for (std::uint64_t number = 0;; ++number) {
    const auto drawn = test::draw_case(3, number);
    if (!fails(drawn)) continue;
    Lens expected(513, 0);
    expected.back() = 4;
    EXPECT_EQ(shrunk(drawn, fails).batch.prefix_lens, expected);
    break;
  }
}

// Numbers that the library refuses are never tried.
TEST(Shrinker, StaysWithWhatTheLibraryTakes) {
  for (std::uint64_t number = 0; number < 50; ++number) {
    const auto drawn = test::draw_case(4, number);
    (void)shrunk(drawn, [](const test::Case& of) {
      EXPECT_NO_THROW((void)cp::plan_chunks(of.batch.prefix_lens, of.batch.options()));
      return of.batch.prefix_lens.size() > 3;
    });
  }
}

TEST(Draw, EveryKindOfBatch) {
  int two_kernels = 0, several_teams = 0, empty = 0, without_loops = 0, shared_rows = 0, ranks = 0,
      packed = 0;
  for (std::uint64_t number = 0; number < 3000; ++number) {
    const auto drawn = test::draw_case(5, number);
    const auto& batch = drawn.batch;
    ASSERT_TRUE(test::is_valid(drawn));
    two_kernels += batch.prefix_lens.size() > 512 ? 1 : 0;
    several_teams += drawn.tokens() > 8192 ? 1 : 0;
    empty += batch.prefix_lens.empty() ? 1 : 0;
    without_loops += drawn.tokens() == 0 ? 1 : 0;
    auto rows = batch.req_pool_indices;
    std::ranges::sort(rows);
    shared_rows += std::ranges::adjacent_find(rows) != rows.end() ? 1 : 0;
    ranks += batch.shard.world_size > 1 ? 1 : 0;
    packed += batch.policy == cp::Policy::packed ? 1 : 0;
  }
  EXPECT_GT(two_kernels, 20);
  EXPECT_GT(several_teams, 60);
  EXPECT_GT(empty, 2);
  EXPECT_GT(without_loops, 20);
  EXPECT_GT(shared_rows, 300);
  EXPECT_GT(ranks, 600);
  EXPECT_GT(packed, 1000);
}

// The same seed and number give the same batch.
TEST(Draw, IsRepeatable) {
  const auto first = test::draw_case(6, 7);
  const auto again = test::draw_case(6, 7);
  EXPECT_EQ(first.batch.prefix_lens, again.batch.prefix_lens);
  EXPECT_EQ(first.batch.req_to_page, again.batch.req_to_page);
  EXPECT_NE(first.batch.prefix_lens, test::draw_case(6, 8).batch.prefix_lens);
}

TEST(Image, NamesWhatDiffers) {
  test::Image image;
  const auto input = image.add<std::int32_t>("a", "input", 3, 2);
  const auto output = image.add<std::int64_t>("b", "output", 2, 1);
  image.reset();
  image.put(input, Lens{5, 6, 7});
  image.expected(output)[0] = 8;
  image.expected(output)[1] = 9;
  std::vector<std::byte> actual(image.given().begin(), image.given().end());
  EXPECT_EQ(image.difference(actual), "b: output[0]: got a guard word, expected 8");
  const auto write = [&](std::size_t at, auto value) {
    std::memcpy(actual.data() + at, &value, sizeof(value));
  };
  write(output.at, std::int64_t{8});
  write(output.at + 8, std::int64_t{-1});
  EXPECT_EQ(image.difference(actual), "b: output[1]: got -1, expected 9");
  write(output.at + 8, std::int64_t{9});
  EXPECT_EQ(image.difference(actual), "");
  write(input.at + 4, 4);
  EXPECT_EQ(image.difference(actual), "a: input[1]: got 4, expected 6");
  write(input.at + 4, 6);
  write(input.at - 4, 0);
  EXPECT_EQ(image.difference(actual), "a byte was written 4 bytes before a: input");
  write(input.at - 4, 0xA5A5A5A5u);
  write(output.at + 16, 0);
  EXPECT_EQ(image.difference(actual), "a byte was written 0 bytes after b: output");
}

template <class Space>
class Property : public ::testing::Test {};
TYPED_TEST_SUITE(Property, test::ExecutionSpaces, test::SpaceName);

TYPED_TEST(Property, DrawnBatches) {
  test::Checker<TypeParam> checker;
  for (std::uint64_t number = 0; number < 500; ++number) {
    ASSERT_EQ(checker.check(test::draw_case(8, number)), "") << "batch " << number;
  }
}

// A page that is another for the kernels than for the oracle is seen.
TYPED_TEST(Property, SeesWhatIsWrong) {
  test::Checker<TypeParam> checker;
  auto drawn = test::draw_case(9, 0);
  drawn.batch.req_pool_indices.at(0) = 1 << 20;  // no row of the table
  drawn.batch.prefix_lens.assign(drawn.batch.prefix_lens.size(), 0);
  EXPECT_EQ(checker.check(drawn), "");  // which nobody reads
  drawn.batch.chunk_capacity = 0;
  EXPECT_EQ(checker.check(drawn).substr(0, 24), "refused: chunk_capacity:");
}

// Host threads side by side, each with an instance and buffers of its own.
TYPED_TEST(Property, SoakOfSeveralThreads) {
  const auto cases = test::soak_cases(10, 24);
  const auto report = test::soak<TypeParam>(cases, 5000, 4);
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(report.allocations, 0);
  EXPECT_GE(report.builds, 5000);
}

TYPED_TEST(Property, SoakSeesWhatDrifts) {
  const auto report = test::soak<TypeParam>(test::soak_cases(11, 4), 16, 1, {}, true);
  EXPECT_NE(report.failure.find("batch 0: the checksum is not the oracle's"), std::string::npos)
      << report.failure;
}

}  // namespace
