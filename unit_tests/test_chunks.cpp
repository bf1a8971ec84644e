// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "batch.hpp"
#include "draw.hpp"
#include "execution_spaces.hpp"

namespace {

namespace cp = chunked_prefill;
using Rows = test::Rows<std::int32_t>;

template <class Space>
class Chunks : public ::testing::Test {};
TYPED_TEST_SUITE(Chunks, test::ExecutionSpaces, test::SpaceName);

template <class Space, class Length>
void worked_by_hand() {
  using MemorySpace = typename Space::memory_space;
  const auto lens = test::to_device<Length, MemorySpace>(std::vector<std::int32_t>{0, 300, 0, 64});
  const Space space;
  const auto chunks = cp::chunking(space, lens, 2, 256);
  space.fence();
  EXPECT_EQ(chunks.chunked_loop_num(), 2);
  EXPECT_EQ(chunks.batch_size(), 4);
  EXPECT_EQ(test::to_host_rows(chunks.starts), (Rows{{0, 0, 0, 0}, {256, 256, 256, 256}}));
  EXPECT_EQ(test::to_host_rows(chunks.ends), (Rows{{0, 256, 0, 64}, {0, 300, 0, 64}}));
  EXPECT_EQ(test::to_host_rows(chunks.len_in_chunk), (Rows{{0, 256, 0, 64}, {0, 44, 0, 0}}));
  EXPECT_EQ(test::to_host_rows(chunks.cum_seq_lens),
            (Rows{{0, 0, 256, 256, 320}, {0, 0, 44, 44, 44}}));
}

TYPED_TEST(Chunks, WorkedByHand) {
  worked_by_hand<TypeParam, std::int32_t>();
  worked_by_hand<TypeParam, std::int64_t>();
}

// The host's twin equals the device's table element for element.
TYPED_TEST(Chunks, HostTwin) {
  using MemorySpace = typename TypeParam::memory_space;
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const auto batch = seed % 2 == 0 ? test::random_batch(seed) : test::random_packed_batch(seed);
    const TypeParam space;
    const test::DeviceBatch<MemorySpace> device(batch);
    cp::ChunkedPrefillMetadata<MemorySpace> metadata;
    const auto [chunks, slots, host] =
        cp::get_chunks_paged(space, device.prefix(), batch.prefix_lens, batch.options(), metadata);
    space.fence();
    EXPECT_EQ(test::to_host_rows(chunks.starts), test::to_host_rows(host.starts));
    EXPECT_EQ(test::to_host_rows(chunks.ends), test::to_host_rows(host.ends));
    EXPECT_EQ(test::to_host_rows(chunks.len_in_chunk), test::to_host_rows(host.len_in_chunk));
    EXPECT_EQ(test::to_host_rows(chunks.cum_seq_lens), test::to_host_rows(host.cum_seq_lens));
    EXPECT_EQ(slots.size(), chunks.starts.extent(0));
  }
}

TYPED_TEST(Chunks, HostTwinWithoutLoops) {
  for (const std::vector<std::int32_t>& lens :
       {std::vector<std::int32_t>{}, std::vector<std::int32_t>{0, 0}}) {
    const auto host = cp::host_chunks(cp::plan_chunks(lens), lens);
    EXPECT_EQ(host.chunked_loop_num(), 0);
    EXPECT_EQ(host.starts.extent(1), lens.size());
    EXPECT_EQ(host.cum_seq_lens.extent(1), lens.size() + 1);
  }
}

}  // namespace
