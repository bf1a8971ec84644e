// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <thread>

#include "batch.hpp"
#include "draw.hpp"
#include "execution_spaces.hpp"
#include "guarded_buffers.hpp"

namespace {

namespace cp = chunked_prefill;

template <class Space>
class Metadata : public ::testing::Test {};
TYPED_TEST_SUITE(Metadata, test::ExecutionSpaces, test::SpaceName);

/// Builds `batch` into `metadata` and expects the oracle's result.
template <class Space, class MemorySpace, class Slot>
void expect_built(const test::Batch& batch,
                  cp::ChunkedPrefillMetadata<MemorySpace, Slot>& metadata) {
  const Space space;
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto plan = cp::plan_chunks(batch.prefix_lens, batch.options());
  cp::fill(space, plan, device.prefix(), metadata);
  space.fence();
  EXPECT_EQ(test::read_back(plan, metadata), test::oracle(batch));
  const auto offsets = test::to_host(metadata.offsets());
  if (plan.chunked_loop_num() == 0) {
    EXPECT_TRUE(offsets.empty());
  } else {
    EXPECT_TRUE(std::ranges::equal(offsets, plan.offsets()));
  }
  // Each row accessor is the row of the table, and the loops' slots are parts of one buffer.
  const auto chunks = metadata.chunks();
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
    EXPECT_EQ(metadata.cum_seq_lens(loop).data(),
              chunks.cum_seq_lens.data() + std::ptrdiff_t{loop} * (plan.batch_size() + 1));
    EXPECT_EQ(metadata.starts(loop).data(),
              chunks.starts.data() + std::ptrdiff_t{loop} * plan.batch_size());
    EXPECT_EQ(metadata.ends(loop).data(),
              chunks.ends.data() + std::ptrdiff_t{loop} * plan.batch_size());
    EXPECT_EQ(metadata.len_in_chunk(loop).data(),
              chunks.len_in_chunk.data() + std::ptrdiff_t{loop} * plan.batch_size());
    EXPECT_EQ(metadata.chunk_kv_indices(loop).data(),
              metadata.chunk_kv_indices().data() + plan.offset(loop));
  }
}

// One object through growing, shrinking and empty batches: nothing stale is ever readable.
TYPED_TEST(Metadata, ReusedFromStepToStep) {
  using MemorySpace = typename TypeParam::memory_space;
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  EXPECT_EQ(metadata.chunked_loop_num(), 0);
  for (const std::vector<std::int32_t>& lens :
       {std::vector<std::int32_t>{256, 512, 768, 1024}, {5000}, {}, {0, 0}, {1}, {9, 9, 9, 4000}}) {
    expect_built<TypeParam>(test::make_batch(lens, 1024, 64), metadata);
  }
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    expect_built<TypeParam>(test::random_batch(seed), metadata);
  }
}

TYPED_TEST(Metadata, KeepsItsBuffersWhileTheyAreLargeEnough) {
  using MemorySpace = typename TypeParam::memory_space;
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  metadata.reserve(cp::required_sizes(8, 40, 10000));
  expect_built<TypeParam>(test::make_batch({100}, 64, 64), metadata);
  const auto* const slots = metadata.chunk_kv_indices().data();
  const auto* const cum = metadata.cum_seq_lens(0).data();
  expect_built<TypeParam>(test::make_batch(std::vector<std::int32_t>(8, 1250), 256, 64), metadata);
  EXPECT_EQ(metadata.chunk_kv_indices().data(), slots);
  EXPECT_EQ(metadata.cum_seq_lens(0).data(), cum);
}

// A shape is never readable over memory that no fill has written.
TYPED_TEST(Metadata, GrowingDropsTheOldResults) {
  using MemorySpace = typename TypeParam::memory_space;
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  expect_built<TypeParam>(test::make_batch({100, 30}, 64, 16), metadata);
  metadata.reserve(cp::required_sizes(2, 4, 130));  // fits
  EXPECT_EQ(metadata.chunked_loop_num(), 4);
  metadata.reserve(cp::required_sizes(200, 40, 13000));
  EXPECT_EQ(metadata.chunked_loop_num(), 0);
  EXPECT_EQ(metadata.batch_size(), 0);
  EXPECT_EQ(metadata.chunk_kv_indices().extent(0), 0u);
  EXPECT_EQ(metadata.chunks().cum_seq_lens.extent(0), 0u);
  EXPECT_EQ(metadata.offsets().extent(0), 0u);
  expect_built<TypeParam>(test::make_batch({100, 30}, 64, 16), metadata);
}

TYPED_TEST(Metadata, MovesAndIsNeverShared) {
  using Object = cp::ChunkedPrefillMetadata<typename TypeParam::memory_space>;
  static_assert(!std::is_copy_constructible_v<Object> && !std::is_copy_assignable_v<Object>);
  const auto batch = test::make_batch({100, 30}, 64, 16);
  Object first;
  expect_built<TypeParam>(batch, first);
  const auto* const slots = first.chunk_kv_indices().data();
  Object second = std::move(first);
  EXPECT_EQ(second.chunk_kv_indices().data(), slots);
  EXPECT_EQ(second.chunked_loop_num(), 4);
  EXPECT_EQ(first.chunked_loop_num(), 0);  // NOLINT: what is left is an empty object
  EXPECT_EQ(first.chunk_kv_indices().extent(0), 0u);
  expect_built<TypeParam>(batch, first);
  EXPECT_NE(first.chunk_kv_indices().data(), slots);
  expect_built<TypeParam>(batch, second);
}

// An engine's own memory, at every alignment: all of it written, nothing beside it.
template <class Space, class Slot>
void engine_buffers(const test::Batch& batch, std::size_t guard_words) {
  using MemorySpace = typename Space::memory_space;
  const auto plan = cp::plan_chunks(batch.prefix_lens, batch.options());
  const auto sizes = cp::required_sizes(plan);
  const test::GuardedBuffers<MemorySpace, Slot> engine(sizes, guard_words);
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata(engine.buffers());
  expect_built<Space>(batch, metadata);
  engine.expect_only_written(sizes);
  EXPECT_EQ(metadata.chunk_kv_indices().data(), engine.slots.data() + guard_words);
}

TYPED_TEST(Metadata, EngineBuffers) {
  for (std::size_t guard_words = 1; guard_words <= 8; ++guard_words) {
    engine_buffers<TypeParam, std::int32_t>(test::make_batch({1, 2, 0, 700, 5}, 23, 48),
                                            guard_words);
    engine_buffers<TypeParam, std::int64_t>(test::make_batch({1, 2, 0, 700, 5}, 23, 48),
                                            guard_words);
  }
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    auto batch = test::random_batch(seed);
    batch.prefix_lens[0] = std::max(batch.prefix_lens[0], 1);  // some loop at least
    engine_buffers<TypeParam, std::int32_t>(batch, 1 + seed % 4);
  }
}

// Device lengths other than the plan's, longer ones above all: cut at the plan, nothing overrun.
template <class Space>
void device_lengths_differ(const std::vector<std::int32_t>& planned, std::int64_t chunk_capacity,
                           std::int32_t wrong) {
  using MemorySpace = typename Space::memory_space;
  auto batch = test::make_batch(planned, chunk_capacity, 16);
  const auto plan = cp::plan_chunks(batch.prefix_lens, batch.options());
  const auto sizes = cp::required_sizes(plan);
  const test::GuardedBuffers<MemorySpace, std::int32_t> engine(sizes, 3);
  const test::DeviceBatch<MemorySpace> device(batch);
  Kokkos::deep_copy(device.prefix_lens, wrong);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata(engine.buffers());
  const Space space;
  cp::fill(space, plan, device.prefix(), metadata);
  space.fence();
  engine.expect_guards(engine.starts, sizes.starts);
  engine.expect_guards(engine.cum_seq_lens, sizes.cum_seq_lens);
  engine.expect_guards(engine.offsets, sizes.offsets);
  // Every row of the plan's table is that of the lengths that the device has, cut at the longest.
  std::ranges::fill(batch.prefix_lens, std::clamp(wrong, 0, plan.max_prefix_len()));
  const auto lens = test::to_host_rows(metadata.chunks().len_in_chunk);
  auto expected = test::oracle(batch).len_in_chunk;
  expected.resize(lens.size(), std::vector<std::int32_t>(planned.size(), 0));
  EXPECT_EQ(lens, expected);
  const auto offsets = test::to_host(metadata.offsets());
  EXPECT_TRUE(std::ranges::is_sorted(offsets));
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_LE(offsets.back(), plan.total_tokens());
  // Slots are written up to the last token of the device's lengths, and nowhere else.
  engine.expect_guards(engine.slots, static_cast<std::size_t>(offsets.back()));
}

TYPED_TEST(Metadata, DeviceLengthsThatDifferAreCutAtThePlan) {
  for (const std::int32_t wrong : {-5, 0, 3, 99, 100, 101, 100000, INT32_MAX}) {
    SCOPED_TRACE("prefix_lens " + std::to_string(wrong));
    device_lengths_differ<TypeParam>({70, 64, 3, 100}, 64, wrong);
    device_lengths_differ<TypeParam>({9000, 3, 5000, 0}, 2000, wrong);
  }
}

#ifdef KOKKOS_ENABLE_SERIAL
// Host threads side by side, each with a plan and an object of its own.
TEST(HostThreads, EachWithItsOwnObjects) {
  using MemorySpace = Kokkos::Serial::memory_space;
  const auto batch = test::make_batch({100, 0, 3000, 17}, 400, 16);
  const auto long_batch = test::make_batch(std::vector<std::int32_t>(600, 20), 3000, 16);
  const test::DeviceBatch<MemorySpace> device(batch), long_device(long_batch);
  const Kokkos::Serial space;
  constexpr std::size_t thread_num = 4;
  std::vector<cp::ChunkPlan> plans(thread_num);
  std::vector<cp::ChunkedPrefillMetadata<MemorySpace>> objects(thread_num);
  const auto build = [&](std::size_t thread) {
    for (int step = 0; step < 20; ++step) {
      const bool is_long = (thread + static_cast<std::size_t>(step)) % 2 == 0;
      const auto& host = is_long ? long_batch : batch;
      cp::plan_chunks(host.prefix_lens, host.options(), plans[thread]);
      cp::fill(space, plans[thread], (is_long ? long_device : device).prefix(), objects[thread]);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < thread_num; ++thread) threads.emplace_back(build, thread);
  for (auto& thread : threads) thread.join();
  space.fence();
  for (std::size_t thread = 0; thread < thread_num; ++thread) {
    EXPECT_EQ(test::read_back(plans[thread], objects[thread]),
              test::oracle(thread % 2 == 1 ? long_batch : batch));
  }
}
#endif

TYPED_TEST(Metadata, ArraysInOneCall) {
  using MemorySpace = typename TypeParam::memory_space;
  const auto batch = test::make_batch({0, 300, 0, 64}, 1024, 64);
  const auto expected = test::oracle(batch);
  const test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  const TypeParam space;
  const auto arrays = cp::build_chunked_prefill_metadata_arrays(
      space, device.prefix(), batch.prefix_lens, {.chunk_capacity = 1024}, metadata);
  space.fence();
  EXPECT_EQ(arrays.chunked_loop_num, 2);
  EXPECT_EQ(test::to_host_rows(arrays.chunked_seq_len), expected.len_in_chunk);
  EXPECT_EQ(test::to_host_rows(arrays.cu_chunked_seq_len), expected.cum_seq_lens);
  EXPECT_EQ(arrays.max_chunk_len_per_loop, (std::vector{256, 44}));
  ASSERT_EQ(arrays.chunk_kv_indices_list.size(), 2u);
  for (std::size_t loop = 0; loop < 2; ++loop) {
    const auto slots = test::to_host(arrays.chunk_kv_indices_list[loop]);
    EXPECT_TRUE(std::ranges::equal(slots, expected.chunk_kv_indices[loop]));
  }
}

}  // namespace
