// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "batch.hpp"
#include "draw.hpp"
#include "execution_spaces.hpp"
#include "guarded_buffers.hpp"

// What only the device can see: page ids, request rows, and lengths that differ from the plan's.

namespace {

namespace cp = chunked_prefill;
using Array = cp::DeviceFault::Array;

template <class Space>
class DeviceChecks : public ::testing::Test {};
TYPED_TEST_SUITE(DeviceChecks, test::ExecutionSpaces, test::SpaceName);

/// What the device holds, to be broken; the host plans with `prefix_lens` of the batch.
struct OnDevice {
  std::vector<std::int64_t> prefix_lens;
  std::vector<std::int64_t> req_pool_indices;
  test::Rows<std::int32_t> req_to_page;
  std::int64_t num_pages;  ///< 0: not known

  std::int32_t& page(const test::Batch& batch, int sequence, int page) {
    const auto row =
        static_cast<std::size_t>(batch.req_pool_indices[static_cast<std::size_t>(sequence)]);
    return req_to_page[row][static_cast<std::size_t>(page)];
  }
};

OnDevice valid(const test::Batch& batch) {
  std::int32_t most = 0;
  for (const auto& row : batch.req_to_page) {
    for (const std::int32_t id : row) most = std::max(most, id);
  }
  return {.prefix_lens = {batch.prefix_lens.begin(), batch.prefix_lens.end()},
          .req_pool_indices = {batch.req_pool_indices.begin(), batch.req_pool_indices.end()},
          .req_to_page = batch.req_to_page,
          .num_pages = most + 1};
}

/// A checked build into guarded buffers.
template <class Space, class Slot = std::int32_t, class Length = std::int64_t,
          class RequestIndex = std::int64_t>
class CheckedBuild {
 public:
  using MemorySpace = typename Space::memory_space;

  explicit CheckedBuild(const test::Batch& batch)
      : m_batch(batch),
        m_plan(cp::plan_chunks(batch.prefix_lens, batch.options())),
        m_outputs(cp::required_sizes(m_plan), 7),
        m_metadata(m_outputs.buffers()) {}

  void fill(const OnDevice& device) {
    load(device);
    cp::fill(m_space, m_plan, m_prefix(), m_metadata, m_batch.prefix_lens, m_check);
  }
  /// The same, for the plan's shape instead of the plan.
  void fill_shape(const OnDevice& device) {
    load(device);
    cp::fill(m_space, m_plan.shape(), m_prefix(), m_metadata, m_check);
  }
  std::optional<cp::DeviceFault> first_fault() { return m_check.first_fault(m_space); }

  /// Nothing was found, and the build is right.
  void expect_right() {
    EXPECT_EQ(first_fault(), std::nullopt);
    m_metadata.resize(m_plan);
    EXPECT_TRUE(test::read_back(m_plan, m_metadata) == test::oracle(m_batch));
    m_outputs.expect_only_written(cp::required_sizes(m_plan));
  }
  /// `expected` was found; outputs are zeros, and nothing else was written.
  void expect_fault(const cp::DeviceFault& expected) {
    const auto fault = first_fault();
    ASSERT_TRUE(fault.has_value()) << expected.message();
    EXPECT_EQ(*fault, expected) << fault->message() << "\nexpected\n" << expected.message();
    const auto buffers = m_outputs.buffers();
    const auto expect_zeros = [](const auto& view) {
      for (const auto value : test::to_host(view)) ASSERT_EQ(value, 0) << view.label();
    };
    expect_zeros(buffers.starts);
    expect_zeros(buffers.ends);
    expect_zeros(buffers.len_in_chunk);
    expect_zeros(buffers.cum_seq_lens);
    expect_zeros(buffers.offsets);
    expect_zeros(buffers.chunk_kv_indices);
    m_outputs.expect_only_written(cp::required_sizes(m_plan));
  }

 private:
  void load(const OnDevice& device) {
    m_outputs.reset();
    m_lens = test::to_device<Length, MemorySpace>(device.prefix_lens);
    m_requests = test::to_device<RequestIndex, MemorySpace>(device.req_pool_indices);
    std::vector<std::int32_t> flat;
    for (const auto& row : device.req_to_page) flat.insert(flat.end(), row.begin(), row.end());
    m_pages = test::to_device<std::int32_t, MemorySpace>(flat);
    const std::size_t width = device.req_to_page[0].size();
    m_prefix = [this, rows = device.req_to_page.size(), width, num_pages = device.num_pages] {
      return cp::PagedPrefix<MemorySpace, Length, RequestIndex>{
          m_lens, cp::page_table<MemorySpace>(m_pages.data(), rows, width, width), m_requests,
          m_batch.page_size, num_pages};
    };
  }

  Space m_space;
  test::Batch m_batch;
  cp::ChunkPlan m_plan;
  test::GuardedBuffers<MemorySpace, Slot> m_outputs;
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> m_metadata;
  cp::DeviceCheck<MemorySpace> m_check;
  cp::Array1D<Length, MemorySpace> m_lens;
  cp::Array1D<RequestIndex, MemorySpace> m_requests;
  cp::Array1D<std::int32_t, MemorySpace> m_pages;
  std::function<cp::PagedPrefix<MemorySpace, Length, RequestIndex>()> m_prefix;
};

/// Short, packed, of one rank, and of so many sequences that two kernels write it.
std::vector<test::Batch> batches() {
  std::vector<test::Batch> all;
  for (const std::int64_t page_size : {1, 3, 48, 64}) {
    all.push_back(test::make_batch({200, 0, 130, 257}, 300, page_size));
    all.push_back(all.back());
    all.back().policy = cp::Policy::packed;
    all.push_back(all.back());
    all.back().shard = {.world_size = 2, .rank = 1, .interleave = 5};
    std::vector<std::int32_t> lens(600, 3);
    std::ranges::copy(std::vector<std::int32_t>{200, 0, 130, 257}, lens.begin());
    all.push_back(test::make_batch(lens, 1800, page_size));
  }
  return all;
}

std::string name(const test::Batch& batch) {
  return std::to_string(batch.prefix_lens.size()) + " sequences, page size " +
         std::to_string(batch.page_size) +
         (batch.policy == cp::Policy::packed ? ", packed" : ", equal");
}

TYPED_TEST(DeviceChecks, ValidInputHasNoFault) {
  for (const auto& batch : batches()) {
    SCOPED_TRACE(name(batch));
    CheckedBuild<TypeParam> build(batch);
    OnDevice device = valid(batch);
    build.fill(device);
    build.expect_right();
    build.fill_shape(device);
    build.expect_right();
    device.num_pages = 0;
    build.fill(device);
    build.expect_right();
  }
}

// Pages past a prefix, and the rows of sequences without a prefix, may hold anything.
TYPED_TEST(DeviceChecks, JunkPastThePrefixIsNoFault) {
  for (auto batch : batches()) {
    SCOPED_TRACE(name(batch));
    OnDevice device = valid(batch);
    device.req_pool_indices[1] = -5;
    for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
      auto& row = device.req_to_page[static_cast<std::size_t>(batch.req_pool_indices[i])];
      const std::int64_t held = batch.shard.local_tokens(batch.prefix_lens[i]);
      const auto live = static_cast<std::size_t>((held + batch.page_size - 1) / batch.page_size);
      for (std::size_t page = live; page < row.size(); ++page) row[page] = -7;
    }
    CheckedBuild<TypeParam> build(batch);
    build.fill(device);
    build.expect_right();
  }
}

// A page id inside a prefix that is negative or not in the cache, at every page size alike.
TYPED_TEST(DeviceChecks, PageIds) {
  for (const auto& batch : batches()) {
    SCOPED_TRACE(name(batch));
    CheckedBuild<TypeParam> build(batch);
    const std::int64_t held = batch.shard.local_tokens(257);
    const int last = static_cast<int>((held - 1) / batch.page_size);
    const auto most = valid(batch).num_pages - 1;
    for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{INT32_MIN}, most + 1}) {
      for (const int page : {0, last}) {
        OnDevice device = valid(batch);
        device.page(batch, 3, page) = static_cast<std::int32_t>(id);
        const cp::DeviceFault expected{.array = Array::req_to_page,
                                       .sequence = 3,
                                       .position = page * batch.page_size,
                                       .value = id,
                                       .most = most};
        build.fill(device);
        build.expect_fault(expected);
        build.fill_shape(device);
        build.expect_fault(expected);
      }
    }
    build.fill(valid(batch));
    build.expect_right();
  }
}

// Where the cache's pages are not counted, ids end where their slots fit no more.
TYPED_TEST(DeviceChecks, PageIdsWhoseSlotsDoNotFit) {
  const auto batch = test::make_batch({65}, 100, 64);
  OnDevice device = valid(batch);
  device.num_pages = 0;
  device.page(batch, 0, 1) = 33554432;
  CheckedBuild<TypeParam> narrow(batch);
  narrow.fill(device);
  narrow.expect_fault({.array = Array::req_to_page,
                       .sequence = 0,
                       .position = 64,
                       .value = 33554432,
                       .most = 33554431});
  CheckedBuild<TypeParam, std::int64_t> wide(batch);
  wide.fill(device);
  EXPECT_EQ(wide.first_fault(), std::nullopt);
  device.page(batch, 0, 1) = 33554431;
  narrow.fill(device);
  EXPECT_EQ(narrow.first_fault(), std::nullopt);
}

TYPED_TEST(DeviceChecks, RequestRows) {
  for (const auto& batch : batches()) {
    SCOPED_TRACE(name(batch));
    CheckedBuild<TypeParam> build(batch);
    const auto rows = std::ssize(batch.req_to_page);
    for (const std::int64_t row : {std::int64_t{-1}, rows, std::int64_t{1} << 40}) {
      OnDevice device = valid(batch);
      device.req_pool_indices[2] = row;
      build.fill(device);
      build.expect_fault(
          {.array = Array::req_pool_indices, .sequence = 2, .value = row, .most = rows - 1});
    }
  }
}

TYPED_TEST(DeviceChecks, LengthsThatAreNotThePlans) {
  for (const auto& batch : batches()) {
    SCOPED_TRACE(name(batch));
    CheckedBuild<TypeParam> build(batch);
    for (const std::int64_t length :
         {129LL, 131LL, 0LL, -1LL, 1000000LL, 1LL << 32 | 130LL, -(1LL << 40)}) {
      OnDevice device = valid(batch);
      device.prefix_lens[2] = length;
      build.fill(device);
      build.expect_fault(
          {.array = Array::prefix_lens, .sequence = 2, .value = length, .least = 130, .most = 130});
    }
  }
}

// A build for bounds knows no lengths: each must be within them, and all together.
TYPED_TEST(DeviceChecks, LengthsBeyondTheShape) {
  const auto batch = test::make_batch({200, 0, 130, 257}, 300, 16);
  CheckedBuild<TypeParam> build(batch);
  OnDevice device = valid(batch);
  device.prefix_lens = {0, 257, 200, 130};
  build.fill_shape(device);
  EXPECT_EQ(build.first_fault(), std::nullopt);
  device.prefix_lens = {0, 258, 0, 0};
  build.fill_shape(device);
  build.expect_fault({.array = Array::prefix_lens, .sequence = 1, .value = 258, .most = 257});
  device.prefix_lens = {-3, 0, 0, 0};
  build.fill_shape(device);
  build.expect_fault({.array = Array::prefix_lens, .sequence = 0, .value = -3, .most = 257});
  device.prefix_lens = {257, 257, 73, 1};
  build.fill_shape(device);
  build.expect_fault({.array = Array::prefix_lens, .sequence = -1, .value = 588, .most = 587});
}

// The first by sequence; of one sequence its length, its row, its pages.
TYPED_TEST(DeviceChecks, TheFirstFault) {
  const auto batch = test::make_batch({200, 10, 130, 257}, 300, 16);
  CheckedBuild<TypeParam> build(batch);
  OnDevice device = valid(batch);
  device.prefix_lens[3] = 1;
  device.page(batch, 2, 8) = -8;
  device.page(batch, 2, 3) = -3;
  build.fill(device);
  build.expect_fault({.array = Array::req_to_page,
                      .sequence = 2,
                      .position = 48,
                      .value = -3,
                      .most = device.num_pages - 1});
  device.req_pool_indices[2] = -4;
  build.fill(device);
  build.expect_fault({.array = Array::req_pool_indices,
                      .sequence = 2,
                      .value = -4,
                      .most = std::ssize(device.req_to_page) - 1});
  device.prefix_lens[2] = 131;
  build.fill(device);
  build.expect_fault(
      {.array = Array::prefix_lens, .sequence = 2, .value = 131, .least = 130, .most = 130});
}

// A fault is kept until it is read, whatever is built after it, and then forgotten.
TYPED_TEST(DeviceChecks, KeptUntilRead) {
  const auto batch = test::make_batch({200, 10}, 100, 16);
  CheckedBuild<TypeParam> build(batch);
  OnDevice bad = valid(batch);
  bad.prefix_lens[1] = 11;
  build.fill(valid(batch));
  build.fill(bad);
  bad.prefix_lens[0] = 201;
  build.fill(bad);
  build.fill(valid(batch));
  const auto fault = build.first_fault();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->sequence, 1);
  EXPECT_EQ(fault->value, 11);
  build.expect_right();
}

// Lengths that all are 0 for the host have no loops, and are checked.
TYPED_TEST(DeviceChecks, NoLoops) {
  const auto batch = test::make_batch({0, 0}, 100, 16);
  CheckedBuild<TypeParam> build(batch);
  OnDevice device = valid(batch);
  build.fill(device);
  EXPECT_EQ(build.first_fault(), std::nullopt);
  device.prefix_lens[1] = 5;
  build.fill(device);
  const auto fault = build.first_fault();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->message(), "prefix_lens[1]: 5 on the device, the plan has 0");
  CheckedBuild<TypeParam> empty(test::make_batch({}, 100, 16));
  empty.fill(valid(test::make_batch({}, 100, 16)));
  EXPECT_EQ(empty.first_fault(), std::nullopt);
}

// Random faults in drawn batches: the first one is found, and only what is there.
TYPED_TEST(DeviceChecks, DrawnFaults) {
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto batch = test::random_batch(
        seed, seed % 2 == 0 ? cp::Policy::equal : cp::Policy::packed, seed % 3 == 0);
    std::mt19937 random(seed);
    OnDevice device = valid(batch);
    std::optional<cp::DeviceFault> expected;
    for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
      const std::int64_t held = batch.shard.local_tokens(batch.prefix_lens[i]);
      if (random() % 8 != 0 || held == 0) continue;
      const auto page = static_cast<std::size_t>(
          random() % static_cast<std::uint32_t>((held - 1) / batch.page_size + 1));
      device.req_to_page[static_cast<std::size_t>(batch.req_pool_indices[i])][page] = -2;
      if (expected) continue;  // not the first
      expected = cp::DeviceFault{.array = Array::req_to_page,
                                 .sequence = static_cast<std::int32_t>(i),
                                 .position = static_cast<std::int64_t>(page) * batch.page_size,
                                 .value = -2,
                                 .most = device.num_pages - 1};
    }
    CheckedBuild<TypeParam> build(batch);
    build.fill(device);
    if (expected) {
      build.expect_fault(*expected);
    } else {
      build.expect_right();
    }
  }
}

TYPED_TEST(DeviceChecks, TheFiveResultsInOneCall) {
  using MemorySpace = typename TypeParam::memory_space;
  const TypeParam space;
  const auto batch = test::make_batch({256, 512, 768, 1024}, 1024, 64);
  test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::DeviceCheck<MemorySpace> check;
  (void)cp::build_chunked_prefill_metadata_arrays(space, device.prefix(), batch.prefix_lens,
                                                  batch.options(), metadata, &check);
  EXPECT_EQ(check.first_fault(space), std::nullopt);
  device.prefix_lens =
      test::to_device<std::int32_t, MemorySpace>(std::vector<std::int32_t>{256, 512, 768, 1023});
  (void)cp::build_chunked_prefill_metadata_arrays(space, device.prefix(), batch.prefix_lens,
                                                  batch.options(), metadata, &check);
  const auto fault = check.first_fault(space);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->message(), "prefix_lens[3]: 1023 on the device, the plan has 1024");
}

TEST(DeviceFault, Messages) {
  using cp::DeviceFault;
  EXPECT_EQ(
      (DeviceFault{
          .array = Array::req_to_page, .sequence = 3, .position = 128, .value = -1, .most = 999}
           .message()),
      "req_to_page: page id -1 at position 128 of sequence 3 is not in [0, 999]");
  EXPECT_EQ((DeviceFault{.array = Array::req_pool_indices, .sequence = 2, .value = 9, .most = 7}
                 .message()),
            "req_pool_indices[2]: 9 is not in [0, 7]");
  EXPECT_EQ((DeviceFault{.sequence = 4, .value = -3, .most = 257}.message()),
            "prefix_lens[4]: -3 on the device is not in [0, 257]");
  EXPECT_EQ((DeviceFault{.sequence = 4, .value = 3, .least = 5, .most = 5}.message()),
            "prefix_lens[4]: 3 on the device, the plan has 5");
  EXPECT_EQ((DeviceFault{.sequence = -1, .value = 588, .most = 587}.message()),
            "prefix_lens: 588 tokens on the device, the shape has room for 587");
}

TYPED_TEST(DeviceChecks, OtherHostLengthsAreRefused) {
  using MemorySpace = typename TypeParam::memory_space;
  const auto batch = test::make_batch({10, 20}, 100, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::DeviceCheck<MemorySpace> check;
  try {
    cp::fill(TypeParam(), cp::plan_chunks(batch.prefix_lens), device.prefix(), metadata,
             std::vector<std::int32_t>{10}, check);
    FAIL();
  } catch (const cp::InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "prefix_lens_host: extent 1 where 2 is needed");
  }
}

}  // namespace
