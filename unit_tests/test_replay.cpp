// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "batch.hpp"
#include "execution_spaces.hpp"
#include "guarded_buffers.hpp"
#include "recorder.hpp"

// Builds that are enqueued once and run with other batches, and builds among other work.

namespace {

namespace cp = chunked_prefill;

template <class Space>
class Replay : public ::testing::Test {};
TYPED_TEST_SUITE(Replay, test::ExecutionSpaces, test::SpaceName);

/// What the batches of a replayed build have in common: `bounds`, and the extents of the table.
struct Engine {
  cp::BatchBounds bounds;
  cp::PlanOptions options;
  std::int64_t page_size;

  [[nodiscard]] cp::ChunkShape shape() const { return cp::bounding_shape(bounds, options); }
  [[nodiscard]] std::size_t sequences() const {
    return static_cast<std::size_t>(bounds.batch_size);
  }
  [[nodiscard]] std::size_t pages_per_row() const {
    return static_cast<std::size_t>((bounds.max_prefix_len + page_size - 1) / page_size);
  }

  /// A batch of `lens`, padded with sequences on rows that no table has.
  [[nodiscard]] test::Batch batch(std::vector<std::int32_t> lens, std::uint32_t seed) const {
    std::mt19937 random(seed);
    const std::size_t live = lens.size();
    lens.resize(sequences(), 0);
    test::Batch batch{.prefix_lens = std::move(lens),
                      .chunk_capacity = options.chunk_capacity,
                      .page_size = page_size,
                      .req_to_page = {},
                      .req_pool_indices = {},
                      .policy = options.policy,
                      .grain = options.grain,
                      .shard = options.shard};
    for (std::size_t row = 0; row < sequences(); ++row) {
      std::vector<std::int32_t> pages(pages_per_row());
      for (auto& page : pages) page = static_cast<std::int32_t>(random() % 100000);
      batch.req_to_page.push_back(pages);
      batch.req_pool_indices.push_back(static_cast<std::int32_t>(row < live ? row : 123456789));
    }
    std::ranges::shuffle(batch.req_to_page, random);
    return batch;
  }
};

/// The arrays that an engine keeps in place, and a build over them.
template <class Space>
class Captured {
 public:
  using MemorySpace = typename Space::memory_space;

  explicit Captured(const Engine& engine, bool checked = false)
      : m_engine(engine),
        m_checked(checked),
        m_device(engine.batch({}, 0)),
        m_outputs(cp::required_sizes(engine.shape()), 5),
        m_metadata(m_outputs.buffers()) {}

  /// What is captured and replayed.
  void fill(const Space& space) {
    if (m_checked) {
      cp::fill(space, m_engine.shape(), m_device.prefix(), m_metadata, m_check);
    } else {
      cp::fill(space, m_engine.shape(), m_device.prefix(), m_metadata);
    }
  }
  std::optional<cp::DeviceFault> first_fault(const Space& space) {
    return m_check.first_fault(space);
  }

  /// Replaces the batch in the arrays; the outputs are guard words again.
  void set(const test::Batch& batch) {
    const test::DeviceBatch<MemorySpace> next(batch);
    Kokkos::deep_copy(m_device.prefix_lens, next.prefix_lens);
    Kokkos::deep_copy(m_device.req_pool_indices, next.req_pool_indices);
    Kokkos::deep_copy(m_device.page_ids, next.page_ids);
    m_outputs.reset();
  }

  /// After a run with `batch`: its loops are right, the others empty, and nothing else is touched.
  void expect_built(const test::Batch& batch) {
    const auto shape = m_engine.shape();
    const auto plan = cp::plan_chunks(batch.prefix_lens, m_engine.options);
    m_metadata.resize_within(plan, shape);
    EXPECT_TRUE(test::read_back(plan, m_metadata) == test::oracle(batch));

    m_metadata.resize(shape);
    const auto chunks = m_metadata.chunks();
    const auto lens = test::to_host_rows(chunks.len_in_chunk);
    const auto cum = test::to_host_rows(chunks.cum_seq_lens);
    for (auto loop = static_cast<std::size_t>(plan.chunked_loop_num()); loop < lens.size();
         ++loop) {
      EXPECT_EQ(lens[loop], std::vector<std::int32_t>(lens[loop].size(), 0)) << loop;
      EXPECT_EQ(cum[loop], std::vector<std::int32_t>(cum[loop].size(), 0)) << loop;
    }
    auto offsets = std::vector<std::int64_t>(plan.offsets().begin(), plan.offsets().end());
    offsets.resize(static_cast<std::size_t>(shape.chunked_loop_num) + 1, plan.total_tokens());
    EXPECT_EQ(test::to_host(m_metadata.offsets()), offsets);
    auto written = cp::required_sizes(shape);
    written.chunk_kv_indices = static_cast<std::size_t>(plan.total_tokens());
    m_outputs.expect_only_written(written);
  }

 private:
  Engine m_engine;
  bool m_checked;
  cp::DeviceCheck<MemorySpace> m_check;
  test::DeviceBatch<MemorySpace> m_device;
  test::GuardedBuffers<MemorySpace, std::int32_t> m_outputs;
  cp::ChunkedPrefillMetadata<MemorySpace> m_metadata;
};

/// Batches within the bounds of `engine`: the largest, the smallest, and drawn ones.
std::vector<test::Batch> batches(const Engine& engine) {
  const auto longest = static_cast<std::int32_t>(engine.bounds.max_prefix_len);
  std::vector<test::Batch> batches;
  const auto add = [&](const std::vector<std::int32_t>& lens) {
    batches.push_back(engine.batch(lens, static_cast<std::uint32_t>(batches.size())));
  };
  add({longest});
  add({});
  add({1});
  add({0, longest, 0, 1});
  std::mt19937 random(7);
  for (int k = 0; k < 20; ++k) {
    std::vector<std::int32_t> lens(random() % (engine.sequences() + 1));
    std::int64_t left = engine.bounds.total_tokens;
    for (auto& length : lens) {
      length = static_cast<std::int32_t>(
          std::min<std::int64_t>(left, random() % static_cast<std::uint32_t>(longest + 1)));
      left -= length;
    }
    add(lens);
  }
  return batches;
}

const Engine few_sequences{.bounds = {.batch_size = 6, .max_prefix_len = 700, .total_tokens = 2000},
                           .options = {.chunk_capacity = 640},
                           .page_size = 48};
const Engine many_tiles{.bounds = {.batch_size = 5, .max_prefix_len = 9000, .total_tokens = 40000},
                        .options = {.chunk_capacity = 640},
                        .page_size = 48};
const Engine many_sequences{
    .bounds = {.batch_size = 700, .max_prefix_len = 90, .total_tokens = 20000},
    .options = {.chunk_capacity = 7 * 700 + 3},
    .page_size = 16};

const Engine packed_sequences{
    .bounds = {.batch_size = 6, .max_prefix_len = 700, .total_tokens = 2000},
    .options = {.chunk_capacity = 640, .policy = cp::Policy::packed, .grain = 48},
    .page_size = 48};
const Engine many_packed_sequences{
    .bounds = {.batch_size = 700, .max_prefix_len = 90, .total_tokens = 20000},
    .options = {.chunk_capacity = 1000, .policy = cp::Policy::packed, .grain = 7},
    .page_size = 16};
/// `engine` of one rank.
Engine shard_of(Engine engine, const cp::ContextShard& shard) {
  engine.options.shard = shard;
  return engine;
}
const Engine engines[] = {few_sequences,
                          many_tiles,
                          many_sequences,
                          packed_sequences,
                          many_packed_sequences,
                          shard_of(few_sequences, {4, 2, 16}),
                          shard_of(many_sequences, {2, 1, 16}),
                          shard_of(packed_sequences, {3, 0, 1}),
                          shard_of(many_packed_sequences, {4, 3, 10})};

// The rule that a replayed graph relies on: what was enqueued for the bounds is right for every
// batch within them.
template <class Space>
void one_build_for_every_batch(const Engine& engine, bool checked) {
  const Space space;
  Captured<Space> captured(engine, checked);
  for (const auto& batch : batches(engine)) {
    captured.set(batch);
    captured.fill(space);
    space.fence();
    captured.expect_built(batch);
  }
  EXPECT_EQ(captured.first_fault(space), std::nullopt);
}

TYPED_TEST(Replay, OneBuildForEveryBatchWithinTheBounds) {
  for (const Engine& engine : engines) {
    one_build_for_every_batch<TypeParam>(engine, false);
    one_build_for_every_batch<TypeParam>(engine, true);
  }
}

#ifdef KOKKOS_ENABLE_CUDA
/// `batch` where the page that holds the last token of its longest sequence is not one; none where
/// the rank holds no token of it.
std::optional<test::Batch> with_fault(test::Batch batch) {
  const auto longest = static_cast<std::size_t>(std::ranges::max_element(batch.prefix_lens) -
                                                batch.prefix_lens.begin());
  const std::int64_t held = batch.shard.local_tokens(batch.prefix_lens[longest]);
  if (held == 0) return std::nullopt;
  const auto row = static_cast<std::size_t>(batch.req_pool_indices[longest]);
  batch.req_to_page[row][static_cast<std::size_t>((held - 1) / batch.page_size)] = -1;
  return batch;
}

void graph_for_every_batch(const Engine& engine, bool checked) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    const Kokkos::Cuda space(stream);
    Captured<Kokkos::Cuda> captured(engine, checked);
    captured.fill(space);  // what Kokkos sets up at a first launch cannot be captured
    space.fence();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    captured.fill(space);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    const auto replay = [&](const test::Batch& batch) {
      captured.set(batch);
      Kokkos::fence();
      ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    };
    for (const auto& batch : batches(engine)) {
      const auto faulty = with_fault(batch);
      if (checked && faulty) {
        replay(*faulty);
        const auto fault = captured.first_fault(space);
        ASSERT_TRUE(fault.has_value());
        EXPECT_EQ(fault->value, -1) << fault->message();
      }
      replay(batch);
      captured.expect_built(batch);
      EXPECT_EQ(captured.first_fault(space), std::nullopt);
    }
    ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(ReplayGraph, CapturedOnceReplayedWithEveryBatch) {
  for (const Engine& engine : engines) {
    graph_for_every_batch(engine, false);
    graph_for_every_batch(engine, true);
  }
}
#endif

template <class Space>
void refused() {
  using MemorySpace = typename Space::memory_space;
  const auto shape = few_sequences.shape();
  EXPECT_EQ(shape, (cp::ChunkShape{.batch_size = 6,
                                   .chunk_len = 106,
                                   .chunked_loop_num = 7,
                                   .max_prefix_len = 700,
                                   .total_tokens = 2000}));
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  metadata.resize(shape);
  const auto refusal = [&](const std::vector<std::int32_t>& lens, std::int64_t capacity) {
    return test::refusal([&] {
      metadata.resize_within(cp::plan_chunks(lens, {.chunk_capacity = capacity}), shape);
    });
  };
  EXPECT_EQ(refusal({700, 700, 600, 0, 0, 0}, 640), test::not_refused);
  EXPECT_EQ(refusal({700, 700, 600, 0, 0}, 640), "plan.batch_size: 5 is outside [6, 6]");
  EXPECT_EQ(refusal({700, 700, 600, 0, 0, 0}, 660), "plan.chunk_len: 110 is outside [106, 106]");
  EXPECT_EQ(refusal({701, 0, 0, 0, 0, 0}, 640), "plan.max_prefix_len: 701 is outside [0, 700]");
  EXPECT_EQ(refusal({700, 700, 601, 0, 0, 0}, 640), "plan.total_tokens: 2001 is outside [0, 2000]");
  EXPECT_EQ(test::refusal([&] {
              metadata.resize_within(
                  cp::plan_chunks(std::vector<std::int32_t>(6, 100), packed_sequences.options),
                  shape);
            }),
            "plan.policy: packed where the shape is equal");
  // Nothing was changed by those: the views of the plan that fitted are there.
  EXPECT_EQ(metadata.chunked_loop_num(), 7);
  EXPECT_EQ(metadata.chunk_kv_indices().extent(0), 2000u);

  const test::DeviceBatch<MemorySpace> narrow(few_sequences.batch({}, 0));
  const cp::PagedPrefix prefix{narrow.prefix_lens,
                               cp::page_table<MemorySpace>(narrow.page_ids.data(), 6, 14, 15),
                               narrow.req_pool_indices, 48};
  EXPECT_EQ(
      test::refusal([&] { cp::fill(Space(), shape, prefix, metadata); }),
      "shape.max_prefix_len: 700 tokens need 15 pages of page_size 48, req_to_page has 6 rows "
      "of 14");
}

// Of 100 tokens with grain 10: {100, 0} takes 10 loops of 10, {51, 49} is padded to 60 + 50.
template <class MemorySpace>
void loops_beyond_the_shape() {
  const auto plan = [](const std::vector<std::int32_t>& lens, std::int64_t grain) {
    return cp::plan_chunks(lens,
                           {.chunk_capacity = 10, .policy = cp::Policy::packed, .grain = grain});
  };
  const auto shape = plan({100, 0}, 10).shape();
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  metadata.resize(shape);
  const auto refusal = [&](const cp::ChunkPlan& live) {
    return test::refusal([&] { metadata.resize_within(live, shape); });
  };
  EXPECT_EQ(refusal(plan({51, 49}, 10)), "plan.chunked_loop_num: 11 is outside [0, 10]");
  EXPECT_EQ(refusal(plan({50, 50}, 5)), "plan.grain: 5 is outside [10, 10]");
  EXPECT_EQ(refusal(plan({50, 50}, 10)), test::not_refused);
  const auto of_rank = [](const cp::ContextShard& shard) {
    return cp::plan_chunks(
        std::vector<std::int32_t>{50, 50},
        {.chunk_capacity = 10, .policy = cp::Policy::packed, .grain = 10, .shard = shard});
  };
  EXPECT_EQ(refusal(of_rank({2, 0, 1})), "plan.shard.world_size: 2 is outside [1, 1]");
  EXPECT_EQ(refusal(of_rank({1, 0, 5})), "plan.shard.interleave: 5 is outside [1, 1]");
}

TYPED_TEST(Replay, RefusesMoreLoopsThanTheShapeHasAndOtherSplits) {
  loops_beyond_the_shape<typename TypeParam::memory_space>();
}

// The buffers of a captured build stay where they are: they are never made larger for a replay.
template <class MemorySpace>
void buffers_too_small() {
  const auto shape = few_sequences.shape();
  const auto plan =
      cp::plan_chunks(std::vector<std::int32_t>{700, 1, 0, 0, 0, 0}, {.chunk_capacity = 640});
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  const auto refusal = [&] { return test::refusal([&] { metadata.resize_within(plan, shape); }); };
  EXPECT_EQ(refusal(), "shape: this object's buffers never held a build of it");
  metadata.resize(plan);
  EXPECT_EQ(refusal(), "shape: this object's buffers never held a build of it");
  metadata.resize(shape);
  EXPECT_EQ(refusal(), test::not_refused);
}

TYPED_TEST(Replay, RefusesBuffersThatAreTooSmall) {
  buffers_too_small<typename TypeParam::memory_space>();
}

template <class Space>
void shapes_refused() {
  using MemorySpace = typename Space::memory_space;
  const test::DeviceBatch<MemorySpace> device(few_sequences.batch({}, 0));
  const auto refusal = [&](auto change) {
    cp::ChunkShape shape = few_sequences.shape();
    change(shape);
    cp::ChunkedPrefillMetadata<MemorySpace> metadata;
    return test::refusal([&] { cp::fill(Space(), shape, device.prefix(), metadata); });
  };
  using Shape = cp::ChunkShape;
  EXPECT_EQ(refusal([](Shape& shape) { shape.batch_size = -1; }),
            "shape.batch_size: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.batch_size = 0; }),
            "shape.max_prefix_len: 700 is outside [0, 0]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.max_prefix_len = -5; }),
            "shape.max_prefix_len: -5 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.total_tokens = 699; }),
            "shape.total_tokens: 699 is outside [700, 4200]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.total_tokens = 4201; }),
            "shape.total_tokens: 4201 is outside [700, 4200]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.max_prefix_len = 0, shape.total_tokens = 0; }),
            "shape.chunked_loop_num: 7 is outside [0, 0]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.shard.world_size = 0; }),
            "shard.world_size: 0 is outside [1, 2147483647]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.shard.rank = 1; }), "shard.rank: 1 is outside [0, 0]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.shard.interleave = -1; }),
            "shard.interleave: -1 is outside [1, 2147483647]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.chunk_len = 0; }),
            "shape.chunk_len: 0 is outside [1, 357913941]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.chunk_len = 400000000; }),
            "shape.chunk_len: 400000000 is outside [1, 357913941]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.chunked_loop_num = 6; }),
            "shape.chunked_loop_num: 6 is outside [7, 7]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.chunked_loop_num = -1; }),
            "shape.chunked_loop_num: -1 is outside [7, 7]");
  EXPECT_EQ(refusal([](Shape& shape) { shape.grain = 2; }), "shape.grain: 2 is outside [1, 1]");
  const auto packed = [&](auto change) {
    return refusal([&](Shape& shape) {
      shape = packed_sequences.shape();
      change(shape);
    });
  };
  EXPECT_EQ(packed([](Shape& shape) { shape.grain = 0; }),
            "shape.grain: 0 is outside [1, 2147483647]");
  EXPECT_EQ(packed([](Shape& shape) { shape.chunk_len = 47; }),
            "shape.chunk_len: 47 is outside [48, 2147483647]");
  EXPECT_EQ(packed([](Shape& shape) { shape.chunk_len = 50; }),
            "shape.chunk_len % shape.grain: 2 is outside [0, 0]");
  EXPECT_EQ(packed([](Shape& shape) { shape.chunked_loop_num = 3; }),
            "shape.chunked_loop_num: 3 is outside [4, 2147483646]");
  EXPECT_EQ(packed([](Shape& shape) { shape.chunked_loop_num = INT32_MAX; }),
            "shape.chunked_loop_num: 2147483647 is outside [4, 2147483646]");
}

TYPED_TEST(Replay, RefusesShapesThatNoBoundsGive) { shapes_refused<TypeParam>(); }

TEST(Bounds, ThatHoldNothing) {
  const auto none = [](const cp::BatchBounds& bounds) {
    return cp::bounding_shape(bounds, {.chunk_capacity = 640}).chunked_loop_num;
  };
  EXPECT_EQ(none({}), 0);
  EXPECT_EQ(none({.batch_size = 6, .max_prefix_len = 0, .total_tokens = 0}), 0);
  EXPECT_EQ(none({.batch_size = 6, .max_prefix_len = 700, .total_tokens = 0}), 0);
}

// One bound on the tokens, that of the cache, for captures of many sizes.
TEST(Bounds, MoreTokensThanTheSequencesHave) {
  for (const cp::Policy policy : {cp::Policy::equal, cp::Policy::packed}) {
    for (const std::int64_t total : {std::int64_t{4201}, INT64_MAX}) {
      const auto shape =
          cp::bounding_shape({.batch_size = 6, .max_prefix_len = 700, .total_tokens = total},
                             {.chunk_capacity = 640, .policy = policy});
      EXPECT_EQ(shape.total_tokens, 4200);
      EXPECT_EQ(shape.max_prefix_len, 700);
      EXPECT_EQ(shape.chunked_loop_num, 7);  // of 6 * 106 tokens, or of 640
    }
  }
}

TYPED_TEST(Replay, RefusesWhatIsBeyondTheBounds) { refused<TypeParam>(); }

TYPED_TEST(Replay, SlotsOfALoopNeedAPlan) {
  using MemorySpace = typename TypeParam::memory_space;
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  metadata.resize(few_sequences.shape());
  EXPECT_EQ(metadata.chunks().starts.extent(0), 7u);
  EXPECT_EQ(metadata.offsets().extent(0), 8u);
  EXPECT_EQ(metadata.chunk_kv_indices().extent(0), 2000u);
  EXPECT_THROW((void)metadata.chunk_kv_indices(0), cp::InvalidArgument);
}

/// Keeps an execution space busy for a while, and then writes the lengths that a build behind it
/// reads.
template <class MemorySpace>
struct SlowLengths {
  cp::Array1D<std::int32_t, MemorySpace> lens;
  cp::Array1D<std::int32_t, MemorySpace> source;
  cp::Array1D<std::uint32_t, MemorySpace> sink;

  KOKKOS_FUNCTION void operator()(int) const {
    std::uint32_t x = 1;
    for (int k = 0; k < 1000000; ++k) x = x * 1664525u + 1013904223u;
    sink(0) = x;
    for (std::size_t i = 0; i < lens.extent(0); ++i) lens(i) = source(i);
  }
};

/// A batch on the device, of which the lengths come late, and what is built from it.
template <class Space>
class LateBatch {
 public:
  using MemorySpace = typename Space::memory_space;

  explicit LateBatch(const test::Batch& batch)
      : m_batch(batch),
        m_device(batch),
        m_plan(cp::plan_chunks(batch.prefix_lens, batch.options())),
        m_late{.lens = m_device.prefix_lens,
               .source = test::to_device<std::int32_t, MemorySpace>(batch.prefix_lens),
               .sink = cp::Array1D<std::uint32_t, MemorySpace>("test::sink", 1)} {
    Kokkos::deep_copy(m_device.prefix_lens, 0);
    m_metadata.resize(m_plan);
    Kokkos::deep_copy(m_metadata.chunk_kv_indices(), -1);
  }
  void enqueue_lengths(const Space& space) const {
    Kokkos::parallel_for("test::slow_lengths",
                         Kokkos::RangePolicy<Space, Kokkos::IndexType<int>>(space, 0, 1), m_late);
  }
  void enqueue_fill(const Space& space) { cp::fill(space, m_plan, m_device.prefix(), m_metadata); }
  void expect_built() const {
    EXPECT_TRUE(test::read_back(m_plan, m_metadata) == test::oracle(m_batch));
  }

 private:
  test::Batch m_batch;
  test::DeviceBatch<MemorySpace> m_device;
  cp::ChunkPlan m_plan;
  SlowLengths<MemorySpace> m_late;
  cp::ChunkedPrefillMetadata<MemorySpace> m_metadata;
};

// Two builds behind a slow kernel on one instance, and one on each of two: in order on each, and
// none in the way of the other.
template <class Space>
void among_other_work(const std::vector<Space>& instances) {
  LateBatch<Space> first(test::make_batch({3000, 20, 0, 999}, 400, 16));
  LateBatch<Space> second(test::make_batch(std::vector<std::int32_t>(600, 70), 6000, 64));
  Kokkos::fence();
  first.enqueue_lengths(instances.front());
  second.enqueue_lengths(instances.back());
  first.enqueue_fill(instances.front());
  second.enqueue_fill(instances.back());
  instances.front().fence();
  first.expect_built();
  instances.back().fence();
  second.expect_built();
}

TYPED_TEST(Replay, TwoBuildsOnOneInstance) { among_other_work<TypeParam>({TypeParam()}); }

TYPED_TEST(Replay, TwoBuildsOnTwoInstances) {
  const auto instances = test::two_instances<TypeParam>();
  among_other_work<TypeParam>({instances[0], instances[1]});
}

}  // namespace
