// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "batch.hpp"
#include "draw.hpp"
#include "execution_spaces.hpp"

namespace {

namespace cp = chunked_prefill;

template <class Space>
class KvIndices : public ::testing::Test {};
TYPED_TEST_SUITE(KvIndices, test::ExecutionSpaces, test::SpaceName);

// One loop from explicit starts and cumulative lengths: two sequences, pages of 4.
//   sequence 0 on row 1, positions 2..8:   pages 7 | 3 | 9   -> 30 31 | 12 13 14 15 | 36
//   sequence 1 on row 0, positions 5..6:   pages . | 5       -> 21 22
template <class Space, class Slot, class RequestIndex>
void one_loop_worked_by_hand() {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const auto pages =
      test::to_device<std::int32_t, MemorySpace>(std::vector{8, 5, -1, -1, 7, 3, 9, -1});
  const auto requests = test::to_device<RequestIndex, MemorySpace>(std::vector{1, 0});
  const auto starts = test::to_device<std::int32_t, MemorySpace>(std::vector{2, 5});
  const auto cum = test::to_device<std::int32_t, MemorySpace>(std::vector{0, 7, 9});
  const cp::Array1D<Slot, MemorySpace> slots("test::slots", 9);
  cp::create_chunked_cache_kv_indices_paged(
      space, cp::page_table<MemorySpace>(pages.data(), 2, 3, 4), requests, starts, cum, slots, 4);
  space.fence();
  EXPECT_EQ(test::to_host(slots), (std::vector<Slot>{30, 31, 12, 13, 14, 15, 36, 21, 22}));
}

TYPED_TEST(KvIndices, OneLoopWorkedByHand) {
  one_loop_worked_by_hand<TypeParam, std::int32_t, std::int32_t>();
  one_loop_worked_by_hand<TypeParam, std::int32_t, std::int64_t>();
  one_loop_worked_by_hand<TypeParam, std::int64_t, std::int32_t>();
  one_loop_worked_by_hand<TypeParam, std::int64_t, std::int64_t>();
}

// Any page size, odd ones and ones beyond every length included.
TYPED_TEST(KvIndices, PageSizes) {
  for (const std::int64_t page_size : {1, 2, 3, 5, 16, 33, 48, 64, 127, 128, 1000, 100000}) {
    SCOPED_TRACE("page_size " + std::to_string(page_size));
    const auto batch = test::make_batch({1000, 1, 0, 517, 64, 4096}, 1200, page_size);
    EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
  }
}

TYPED_TEST(KvIndices, DrawnBatches) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto batch = test::random_batch(seed);
    const auto expected = test::oracle(batch);
    ASSERT_EQ((test::build<TypeParam>(batch)), expected);
    ASSERT_EQ((test::build<TypeParam, std::int64_t, std::int32_t, std::int64_t>(batch, 3)),
              expected);
  }
}

// Enough tokens for every thread of a GPU to write several times.
TYPED_TEST(KvIndices, ManyTiles) {
  std::vector<std::int32_t> lens(100, 3);
  lens[7] = 1200000;
  lens[93] = 2000001;
  lens[94] = 0;
  const auto batch = test::make_batch(lens, 100 * 65536, 64);
  EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
}

// Tiles of several steps, as large batches have: every kind of page, slot type and alignment,
// through the host's caches and past them. The chunk table comes from a build, the slots are
// written again by a launch with the tile given.
template <class Space, class Slot>
void tiles_of_several_steps(std::int64_t page_size, bool streaming) {
  using MemorySpace = typename Space::memory_space;
  using Tiles = cp::impl::SlotTiles<Slot>;
  const Space space;
  const auto batch = test::make_batch({9001, 0, 1, 700, 4096, 64, 5003}, 7 * 3000 + 5, page_size);
  const auto expected = test::oracle(batch);
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto plan = cp::plan_chunks(batch.prefix_lens, batch.options());
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata;
  cp::fill(space, plan, device.prefix(), metadata);
  const auto total = static_cast<std::size_t>(plan.total_tokens());
  for (std::size_t lead = 0; lead < Tiles::pack; ++lead) {
    SCOPED_TRACE("page_size " + std::to_string(page_size) + ", lead " + std::to_string(lead));
    const cp::Array1D<Slot, MemorySpace> slots("test::slots", total + 2 * Tiles::pack);
    Kokkos::deep_copy(slots, -7);
    cp::impl::launch(
        space,
        cp::impl::KvIndices<Slot>{
            .tiles = {.req_to_page = device.page_ids.data(),
                      .row_stride = static_cast<std::int64_t>(device.row_stride),
                      .page_size = cp::impl::Divisor(static_cast<int>(page_size)),
                      .chunk_kv_indices = slots.data() + lead,
                      .total_tokens = plan.total_tokens(),
                      .tiling = {.size = 2 * Tiles::unroll * 32 * Tiles::pack,
                                 .streaming = streaming}},
            .rows = {.starts = metadata.chunks().starts.data(),
                     .cum_seq_lens = metadata.chunks().cum_seq_lens.data(),
                     .offsets = metadata.offsets().data(),
                     .req_pool_indices = cp::impl::IndexArray(device.req_pool_indices.data()),
                     .batch_size = plan.batch_size(),
                     .chunked_loop_num = plan.chunked_loop_num()}});
    space.fence();
    std::vector<Slot> whole(lead, -7);
    for (const auto& loop : expected.chunk_kv_indices) {
      for (const auto slot : loop) whole.push_back(static_cast<Slot>(slot));
    }
    whole.resize(total + 2 * Tiles::pack, -7);
    ASSERT_EQ(test::to_host(slots), whole);
  }
}

TYPED_TEST(KvIndices, TilesOfSeveralSteps) {
  for (const std::int64_t page_size : {1, 2, 3, 5, 48, 64, 100000}) {
    for (const bool streaming : {false, true}) {
      tiles_of_several_steps<TypeParam, std::int32_t>(page_size, streaming);
      tiles_of_several_steps<TypeParam, std::int64_t>(page_size, streaming);
    }
  }
}

// An output that is larger than caches are.
TYPED_TEST(KvIndices, LargeOutput) {
  const auto batch = test::make_batch({8400000, 0, 5, 100003}, 400001, 63);
  EXPECT_TRUE((test::build<TypeParam>(batch)) == test::oracle(batch));
  EXPECT_TRUE((test::build<TypeParam, std::int64_t>(batch)) == test::oracle(batch));
}

// Entries of a row past its prefix are never read: they may hold anything.
TYPED_TEST(KvIndices, JunkPastThePrefix) {
  auto batch = test::make_batch({65, 0, 128, 1}, 100, 64);
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    auto& row = batch.req_to_page[static_cast<std::size_t>(batch.req_pool_indices[i])];
    for (std::size_t p = 0; p < row.size(); ++p) {
      if (static_cast<std::int64_t>(p) * 64 >= batch.prefix_lens[i]) row[p] = INT32_MIN;
    }
  }
  EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
}

// Requests that share a prefix point at the same pages.
TYPED_TEST(KvIndices, SharedPages) {
  auto batch = test::make_batch({200, 200, 130}, 300, 64);
  batch.req_to_page[0] = batch.req_to_page[2];
  batch.req_pool_indices = {2, 0, 2};
  EXPECT_EQ((test::build<TypeParam>(batch)), test::oracle(batch));
}

}  // namespace
