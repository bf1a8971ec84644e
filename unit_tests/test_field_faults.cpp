// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "batch.hpp"
#include "draw.hpp"
#include "execution_spaces.hpp"
#include "guarded_buffers.hpp"
#include "recorder.hpp"

// Kinds of faults that users of serving engines and of Kokkos have reported. Each is tested with
// the input that shows it, the right answer worked out by hand, and with many others of its kind.
// The second, two empty states that are merged, is MergeStates.TwoEmptyStatesAreEmpty.
namespace {

namespace cp = chunked_prefill;
using Lens = std::vector<std::int32_t>;
using Tokens = std::vector<std::int64_t>;
using Rows = test::Rows<std::int32_t>;
using test::refusal;

template <class Space>
class FieldFaults : public ::testing::Test {};
TYPED_TEST_SUITE(FieldFaults, test::ExecutionSpaces, test::SpaceName);

constexpr cp::Policy policies[] = {cp::Policy::equal, cp::Policy::packed};

test::Batch make_batch(const Lens& prefix_lens, std::int64_t chunk_capacity, std::int64_t page_size,
                       cp::Policy policy, std::int64_t grain = 1) {
  auto batch = test::make_batch(prefix_lens, chunk_capacity, page_size);
  batch.policy = policy;
  batch.grain = grain;
  return batch;
}
cp::ChunkPlan plan_of(const test::Batch& batch) {
  return cp::plan_chunks(batch.prefix_lens, batch.options());
}
template <class T>
std::vector<T> vector(std::span<const T> values) {
  return {values.begin(), values.end()};
}
Tokens tokens(const cp::ChunkPlan& plan) { return vector(plan.tokens_per_loop()); }

/// Calls `check` with batches of all kinds, of both policies.
template <class Check>
void for_drawn_batches(std::uint32_t count, const Check& check) {
  for (std::uint32_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check(seed % 2 == 0 ? test::random_batch(seed) : test::random_batch(seed, cp::Policy::packed));
    if (::testing::Test::HasFailure()) return;
  }
}

// 1. Sequences whose prefix ended in an earlier loop carry nothing into later ones: no tokens, flat
// cumulative lengths, no slot.
template <class Space>
void carries_nothing_past_the_end(const test::Batch& batch) {
  const auto built = test::build<Space>(batch);
  const std::size_t batch_size = batch.prefix_lens.size();
  // Page ids are distinct: a slot tells whose it is.
  std::vector<std::size_t> owner(batch.req_to_page.size() * batch.req_to_page[0].size());
  for (std::size_t i = 0; i < batch_size; ++i) {
    for (const std::int32_t page :
         batch.req_to_page[static_cast<std::size_t>(batch.req_pool_indices[i])]) {
      owner[static_cast<std::size_t>(page)] = i;
    }
  }
  Lens left = batch.prefix_lens;
  for (std::size_t loop = 0; loop < built.len_in_chunk.size(); ++loop) {
    const Lens& cum = built.cum_seq_lens[loop];
    Lens slots_of(batch_size, 0);
    for (const std::int64_t slot : built.chunk_kv_indices[loop]) {
      ++slots_of[owner[static_cast<std::size_t>(slot / batch.page_size)]];
    }
    ASSERT_EQ(slots_of, built.len_in_chunk[loop]);
    for (std::size_t i = 0; i < batch_size; ++i) {
      ASSERT_EQ(cum[i + 1] - cum[i], slots_of[i]);
      ASSERT_LE(slots_of[i], left[i]) << "sequence " << i << ", loop " << loop;
      left[i] -= slots_of[i];
    }
  }
  ASSERT_EQ(left, Lens(batch_size, 0));
}

template <class Space>
void sequences_that_ended_earlier() {
  const Lens lens{10752, 5909, 2471, 18993, 12526, 20001, 15570, 2781};
  const auto equal = make_batch(lens, 32768, 64, cp::Policy::equal);
  const auto plan = plan_of(equal);
  EXPECT_EQ(plan.chunk_len(), 4096);
  EXPECT_EQ(tokens(plan), (Tokens{29828, 22293, 18944, 11712, 6226}));
  EXPECT_EQ(vector(plan.max_chunk_len_per_loop()), (Lens{4096, 4096, 4096, 4096, 3617}));
  const auto built = test::build<Space>(equal);
  EXPECT_EQ(built.len_in_chunk.at(2), (Lens{2560, 0, 0, 4096, 4096, 4096, 4096, 0}));
  EXPECT_EQ(built.cum_seq_lens.at(2),
            (Lens{0, 2560, 2560, 2560, 6656, 10752, 14848, 18944, 18944}));
  EXPECT_EQ(built.chunk_kv_indices.at(2).size(), 18944u);
  EXPECT_EQ(built, test::oracle(equal));
  carries_nothing_past_the_end<Space>(equal);

  const auto packed = make_batch(lens, 32768, 64, cp::Policy::packed);
  EXPECT_EQ(tokens(plan_of(packed)), (Tokens{32768, 32768, 23467}));
  carries_nothing_past_the_end<Space>(packed);
  for_drawn_batches(60,
                    [](const test::Batch& batch) { carries_nothing_past_the_end<Space>(batch); });
}

TYPED_TEST(FieldFaults, SequencesThatEndedEarlier) { sequences_that_ended_earlier<TypeParam>(); }

// 3. Which loops hold a sequence without tokens, so that attention needs a mask, is said by the
// plan.
template <class Space>
void expect_empty_sequences_flagged(const test::Batch& batch) {
  const auto plan = plan_of(batch);
  const auto built = test::build<Space>(batch);
  ASSERT_EQ(std::ssize(built.len_in_chunk), plan.chunked_loop_num());
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
    const Lens& row = built.len_in_chunk[static_cast<std::size_t>(loop)];
    const auto empty = static_cast<std::int32_t>(std::ranges::count(row, 0));
    ASSERT_EQ(plan.has_empty_seq(loop), empty > 0) << "loop " << loop;
    ASSERT_EQ(plan.non_empty_seqs(loop), plan.batch_size() - empty) << "loop " << loop;
  }
}

template <class Space>
void loops_with_an_empty_sequence() {
  const Lens lens{0, 300, 0, 64};
  const auto equal = make_batch(lens, 1024, 64, cp::Policy::equal);
  const auto plan = plan_of(equal);
  EXPECT_EQ(plan.chunked_loop_num(), 2);
  EXPECT_TRUE(plan.has_empty_seq(0));
  EXPECT_TRUE(plan.has_empty_seq(1));
  const auto built = test::build<Space>(equal);
  EXPECT_EQ(built.len_in_chunk, (Rows{{0, 256, 0, 64}, {0, 44, 0, 0}}));
  EXPECT_EQ(built.cum_seq_lens, (Rows{{0, 0, 256, 256, 320}, {0, 0, 44, 44, 44}}));
  for (const auto policy : policies) {
    expect_empty_sequences_flagged<Space>(make_batch(lens, 1024, 64, policy));
    expect_empty_sequences_flagged<Space>(make_batch({256, 256, 256}, 300, 64, policy));
  }
  for_drawn_batches(60,
                    [](const test::Batch& batch) { expect_empty_sequences_flagged<Space>(batch); });
}

TYPED_TEST(FieldFaults, LoopsWithAnEmptySequence) { loops_with_an_empty_sequence<TypeParam>(); }

// 4. One long prefix multiplies the loops of an equal split, and what each sequence is given must
// never be rounded down to nothing.
template <class Space>
void expect_loops(const Lens& lens, std::int64_t chunk_capacity, std::int32_t equal,
                  std::int32_t packed) {
  for (const auto policy : policies) {
    const auto batch = make_batch(lens, chunk_capacity, 64, policy);
    EXPECT_EQ(plan_of(batch).chunked_loop_num(), policy == cp::Policy::equal ? equal : packed);
    EXPECT_EQ((test::build<Space>(batch)), test::oracle(batch));
  }
}

template <class Space>
void one_long_prefix() {
  Lens lens(32, 16);
  lens[0] = 60000;
  expect_loops<Space>(lens, 65536, 30, 1);
  EXPECT_EQ(cp::plan_chunks(lens, {.chunk_capacity = 65536}).tokens(0), 2544);
  lens = Lens(8, 1000);
  lens[0] = 60000;
  expect_loops<Space>(lens, 65536, 8, 2);
  expect_loops<Space>({}, 65536, 0, 0);
  expect_loops<Space>({0, 0}, 65536, 0, 0);
  EXPECT_EQ(refusal([] {
              (void)cp::plan_chunks(Lens{5, 5, 5}, {.chunk_capacity = 2});
            }),
            "chunk_capacity: 2 tokens cannot be split equally among 3 sequences (batch_size)");
  EXPECT_EQ(plan_of(make_batch({5, 5, 5}, 2, 64, cp::Policy::packed)).chunked_loop_num(), 8);
  EXPECT_EQ(plan_of(make_batch({}, 2, 64, cp::Policy::packed)).chunked_loop_num(), 0);
  EXPECT_EQ(plan_of(make_batch({0, 0}, 2, 64, cp::Policy::packed)).chunked_loop_num(), 0);
  for (std::int32_t batch_size = 1; batch_size <= 40; ++batch_size) {
    Lens drawn(static_cast<std::size_t>(batch_size), 3);
    drawn.back() = 100;
    const std::int64_t total = 100 + 3 * (batch_size - 1);
    for (std::int64_t capacity = 1; capacity <= 50; ++capacity) {
      const auto packed =
          cp::plan_chunks(drawn, {.chunk_capacity = capacity, .policy = cp::Policy::packed});
      ASSERT_EQ(packed.chunked_loop_num(), (total + capacity - 1) / capacity);
      const auto equal = [&] { return cp::plan_chunks(drawn, {.chunk_capacity = capacity}); };
      if (capacity < batch_size) {
        ASSERT_EQ(refusal([&] { (void)equal(); }), "chunk_capacity: " + std::to_string(capacity) +
                                                       " tokens cannot be split equally among " +
                                                       std::to_string(batch_size) +
                                                       " sequences (batch_size)");
        continue;
      }
      const std::int64_t chunk_len = capacity / batch_size;
      ASSERT_EQ(equal().chunk_len(), chunk_len);
      ASSERT_EQ(equal().chunked_loop_num(), (100 + chunk_len - 1) / chunk_len);
    }
  }
}

TYPED_TEST(FieldFaults, OneLongPrefix) { one_long_prefix<TypeParam>(); }

// 5. No loop holds more than the workspace does.
template <class Space>
void expect_within_capacity(const test::Batch& batch) {
  const auto plan = plan_of(batch);
  const auto built = test::build<Space>(batch);
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
    ASSERT_LE(plan.tokens(loop), batch.chunk_capacity);
    ASSERT_EQ(built.cum_seq_lens[static_cast<std::size_t>(loop)].back(), plan.tokens(loop));
  }
}

template <class Space>
void no_loop_beyond_capacity() {
  for (const auto policy : policies) {
    const auto batch = make_batch(Lens(12, 7021), 15360, 64, policy);
    const auto plan = plan_of(batch);
    EXPECT_EQ(tokens(plan), (Tokens{15360, 15360, 15360, 15360, 15360, 7452}));
    EXPECT_EQ(plan.chunk_len(), policy == cp::Policy::equal ? 1280 : 15360);
    expect_within_capacity<Space>(batch);
  }
  for_drawn_batches(60, [](const test::Batch& batch) { expect_within_capacity<Space>(batch); });
}

TYPED_TEST(FieldFaults, NoLoopBeyondCapacity) { no_loop_beyond_capacity<TypeParam>(); }

// 6. Products are widened before they are taken. A sequence on `page_ids` has each slot exact in
// int64, and modulo 2^32 in int32, whichever kernel writes it.
template <class Space, class Slot>
void expect_slots(const std::vector<std::int32_t>& page_ids, std::int64_t page_size,
                  std::int32_t from = 0) {
  using MemorySpace = typename Space::memory_space;
  const auto end = static_cast<std::int32_t>(std::ssize(page_ids) * page_size);
  std::vector<Slot> expected;
  for (std::int64_t position = from; position < end; ++position) {
    const std::int64_t page_id = page_ids[static_cast<std::size_t>(position / page_size)];
    expected.push_back(static_cast<Slot>(page_id * page_size + position % page_size));
  }
  const Space space;
  const auto pages = test::to_device<std::int32_t, MemorySpace>(page_ids);
  const auto table = cp::page_table<MemorySpace>(pages.data(), 1, page_ids.size(), page_ids.size());
  const auto starts = test::to_device<std::int32_t, MemorySpace>(Lens{from});
  const auto cum = test::to_device<std::int32_t, MemorySpace>(Lens{0, end - from});
  const auto rows = test::to_device<std::int32_t, MemorySpace>(Lens{0});
  const cp::Array1D<Slot, MemorySpace> slots("test::slots", expected.size());
  cp::create_chunked_cache_kv_indices_paged(space, table, rows, starts, cum, slots, page_size);
  space.fence();
  ASSERT_EQ(test::to_host(slots), expected) << "page_size " << page_size;
  if (from > 0) return;
  for (const auto policy : policies) {
    for (const std::size_t batch_size : {1, 600}) {  // one kernel, and two
      Lens lens(batch_size, 0);
      lens.back() = end;
      const auto all_rows = test::to_device<std::int32_t, MemorySpace>(Lens(batch_size, 0));
      const auto device_lens = test::to_device<std::int32_t, MemorySpace>(lens);
      const cp::PagedPrefix prefix{device_lens, table, all_rows, page_size};
      cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata;
      cp::fill(space, cp::plan_chunks(lens, {.chunk_capacity = 60000, .policy = policy}), prefix,
               metadata);
      space.fence();
      ASSERT_EQ(test::to_host(metadata.chunk_kv_indices()), expected) << "page_size " << page_size;
    }
  }
}

/// Of a build into `Slot` slots of a cache of `num_pages` pages.
template <class Space, class Slot>
std::string cache_refusal(std::int64_t num_pages, std::int64_t page_size) {
  using MemorySpace = typename Space::memory_space;
  const test::DeviceBatch<MemorySpace> device(test::make_batch({1}, 64, 64));
  auto prefix = device.prefix();
  prefix.page_size = page_size;
  prefix.num_pages = num_pages;
  const auto plan = cp::plan_chunks(Lens{1});
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata;
  metadata.resize(plan);
  const Space space;
  auto words = refusal([&] { cp::fill(space, plan, prefix, metadata); });
  space.fence();
  return words;
}

template <class Space>
void products_beyond_int32() {
  expect_slots<Space, std::int32_t>({33554431}, 64);  // ends at 2^31 - 1
  expect_slots<Space, std::int64_t>({33554432}, 64);
  EXPECT_EQ((cache_refusal<Space, std::int32_t>(33554432, 64)), test::not_refused);
  EXPECT_EQ((cache_refusal<Space, std::int32_t>(33554433, 64)),
            "num_pages: 33554433 pages of page_size 64 reach slot 2147483711, int32 slots end at "
            "2147483647; use int64 slots");
  EXPECT_EQ((cache_refusal<Space, std::int64_t>(33554433, 64)), test::not_refused);
  constexpr std::int64_t two_to_31 = std::int64_t{1} << 31;
  for (const std::int64_t page_size : {1, 2, 3, 7, 16, 48, 64, 65, 100, 128, 4096}) {
    const std::int64_t pages = two_to_31 / page_size;  // that int32 slots can count
    const auto last = static_cast<std::int32_t>(pages - 1);
    expect_slots<Space, std::int32_t>({last, 0, last - 1}, page_size);
    // The next page: its slots are at least partly beyond int32.
    const std::int32_t next = page_size == 1 ? last : last + 1;
    const Lens beyond{last, next, INT32_MAX, INT32_MAX - 1, 0};
    expect_slots<Space, std::int64_t>(beyond, page_size);
    expect_slots<Space, std::int32_t>(beyond, page_size);
    EXPECT_EQ((cache_refusal<Space, std::int32_t>(pages, page_size)), test::not_refused);
    if (page_size == 1) continue;  // no page id is beyond
    EXPECT_TRUE(
        (cache_refusal<Space, std::int32_t>(pages + 1, page_size)).starts_with("num_pages"));
    EXPECT_EQ((cache_refusal<Space, std::int64_t>(two_to_31, page_size)), test::not_refused);
  }
  // Pages so large that few of them reach 2^31.
  expect_slots<Space, std::int64_t>({2047, 2048}, 1 << 20, (1 << 20) - 5);
  expect_slots<Space, std::int32_t>({2046, 2047}, 1 << 20, (1 << 20) - 5);
}

TYPED_TEST(FieldFaults, ProductsBeyondInt32) { products_beyond_int32<TypeParam>(); }

// 7. Outputs are sized and filled in tokens: all of them written, and nothing beside them.
template <class Space, class Slot>
void expect_only_tokens_written(const test::Batch& batch, std::size_t guard_words) {
  using MemorySpace = typename Space::memory_space;
  const auto plan = plan_of(batch);
  const auto sizes = cp::required_sizes(plan);
  ASSERT_EQ(sizes.chunk_kv_indices,
            std::accumulate(batch.prefix_lens.begin(), batch.prefix_lens.end(), std::size_t{0}));
  const test::GuardedBuffers<MemorySpace, Slot> engine(sizes, guard_words);
  const test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata(engine.buffers());
  const Space space;
  cp::fill(space, plan, device.prefix(), metadata);
  space.fence();
  ASSERT_EQ(test::read_back(plan, metadata), test::oracle(batch));
  ASSERT_NO_FATAL_FAILURE(engine.expect_only_written(sizes));
}

template <class Space>
void sized_in_tokens() {
  for (const auto policy : policies) {
    EXPECT_EQ(plan_of(make_batch({65}, 65, 64, policy)).total_tokens(), 65);
    for (const std::int32_t page_size : {1, 3, 16, 64}) {
      for (const std::int32_t length : {page_size - 1, page_size, page_size + 1, 65}) {
        if (length == 0) continue;
        for (std::size_t guard_words = 1; guard_words <= 8; ++guard_words) {
          const auto batch = make_batch({length, 0, length}, 67, page_size, policy);
          expect_only_tokens_written<Space, std::int32_t>(batch, guard_words);
          expect_only_tokens_written<Space, std::int64_t>(batch, guard_words);
          const auto alone = make_batch({length}, 65, page_size, policy);
          expect_only_tokens_written<Space, std::int32_t>(alone, guard_words);
          expect_only_tokens_written<Space, std::int64_t>(alone, guard_words);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(FieldFaults, SizedInTokens) { sized_in_tokens<TypeParam>(); }

// 8. A sequence is cut on the kernel's unit, or the plan is refused.
template <class Space>
void expect_cut_on_the_grain(const test::Batch& batch) {
  const auto built = test::build<Space>(batch);
  for (std::size_t loop = 0; loop < built.starts.size(); ++loop) {
    for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
      const std::int32_t end = built.ends[loop][i];
      ASSERT_TRUE(built.len_in_chunk[loop][i] == 0 || built.starts[loop][i] % batch.grain == 0);
      ASSERT_TRUE(end == batch.prefix_lens[i] || end % batch.grain == 0);
    }
  }
}

template <class Space>
void cuts_on_the_unit() {
  const auto batch = [](std::int64_t chunk_capacity) {
    return make_batch({300, 40}, chunk_capacity, 64, cp::Policy::packed, 64);
  };
  EXPECT_EQ(tokens(plan_of(batch(500))), (Tokens{340}));
  EXPECT_EQ(tokens(plan_of(batch(100))), (Tokens{64, 64, 64, 64, 44, 40}));
  EXPECT_EQ(refusal([&] { (void)plan_of(batch(63)); }), "grain: 64 is beyond chunk_capacity 63");
  for (std::int64_t capacity = 64; capacity <= 520; ++capacity) {
    expect_cut_on_the_grain<Space>(batch(capacity));
  }
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_cut_on_the_grain<Space>(test::random_batch(seed, cp::Policy::packed));
    if (::testing::Test::HasFailure()) return;
  }
  // An equal split cuts wherever it must, and says so.
  for (const std::int64_t grain : {2, 64}) {
    EXPECT_EQ(
        refusal([&] {
          (void)cp::plan_chunks(Lens{300, 40}, {.grain = grain});
        }),
        "grain: " + std::to_string(grain) + " belongs to the packed policy; an equal split has 1");
  }
}

TYPED_TEST(FieldFaults, CutsOnTheUnit) { cuts_on_the_unit<TypeParam>(); }

// 9. Chunking that is switched off, which engines write as -1, is refused by name.
template <class MemorySpace>
void chunking_switched_off() {
  EXPECT_EQ(
      refusal([] {
        (void)cp::get_max_chunk_capacity({.chunked_prefill_size = -1, .mla_chunk_multiplier = 4});
      }),
      "chunked_prefill_size: -1 is not positive");
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  for (const auto policy : policies) {
    for (const std::int64_t off : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{-4},
                                   std::int64_t{INT32_MIN}, INT64_MIN}) {
      const auto value = std::to_string(off);
      EXPECT_EQ(refusal([&] { (void)cp::get_max_chunk_capacity({.chunked_prefill_size = off}); }),
                "chunked_prefill_size: " + value + " is not positive");
      EXPECT_EQ(refusal([&] { (void)cp::get_max_chunk_capacity({.mla_chunk_multiplier = off}); }),
                "mla_chunk_multiplier: " + value + " is not positive");
      const cp::PlanOptions options{.chunk_capacity = off, .policy = policy};
      const auto words = "chunk_capacity: " + value + " is outside [1, 2147483647]";
      for (const Lens& lens : {Lens{100, 100}, Lens{0}, Lens{}}) {
        EXPECT_EQ(refusal([&] { (void)cp::plan_chunks(lens, options); }), words);
      }
      EXPECT_EQ(refusal([&] {
                  metadata.resize(cp::bounding_shape(
                      {.batch_size = 2, .max_prefix_len = 100, .total_tokens = 200}, options));
                }),
                words);
      EXPECT_EQ(refusal([&] { metadata.reserve(cp::required_sizes(2, off < 0 ? off : -1, 200)); }),
                "chunked_loop_num: " + std::to_string(off < 0 ? off : -1) +
                    " is outside [0, 2147483647]");
    }
  }
  EXPECT_EQ(metadata.chunks().starts.extent(0), 0u);
  EXPECT_EQ(metadata.chunk_kv_indices().extent(0), 0u);
}

TYPED_TEST(FieldFaults, ChunkingSwitchedOff) {
  chunking_switched_off<typename TypeParam::memory_space>();
}

/// Work that is enqueued once and run with what its arrays hold then: a graph where there are some.
template <class Space>
class Captured {
 public:
  [[nodiscard]] const Space& space() const { return m_space; }
  void capture(std::function<void(const Space&)> enqueue) { m_enqueue = std::move(enqueue); }
  void launch() const { m_enqueue(m_space); }

 private:
  Space m_space;
  std::function<void(const Space&)> m_enqueue;
};

#ifdef KOKKOS_ENABLE_CUDA
struct Stream {
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t stream = nullptr;
};

template <>
class Captured<Kokkos::Cuda> {
 public:
  Captured() : m_space(m_stream.stream) {}
  ~Captured() {
    if (m_graph == nullptr) return;
    EXPECT_EQ(cudaGraphExecDestroy(m_executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(m_graph), cudaSuccess);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  [[nodiscard]] const Kokkos::Cuda& space() const { return m_space; }
  void capture(const std::function<void(const Kokkos::Cuda&)>& enqueue) {
    enqueue(m_space);  // what Kokkos sets up at a first launch cannot be captured
    m_space.fence();
    ASSERT_EQ(cudaStreamBeginCapture(m_stream.stream, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    enqueue(m_space);
    ASSERT_EQ(cudaStreamEndCapture(m_stream.stream, &m_graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&m_executable, m_graph, 0), cudaSuccess);
  }
  void launch() const { ASSERT_EQ(cudaGraphLaunch(m_executable, m_stream.stream), cudaSuccess); }

 private:
  Stream m_stream;
  Kokkos::Cuda m_space;
  cudaGraph_t m_graph = nullptr;
  cudaGraphExec_t m_executable = nullptr;
};
#endif

// 10. A build that was recorded for 16 sequences and is run with fewer, other ones.
template <class Space>
void replayed_with_another_batch(const cp::PlanOptions& options) {
  using MemorySpace = typename Space::memory_space;
  const auto shape =
      cp::bounding_shape({.batch_size = 16, .max_prefix_len = 300, .total_tokens = 1000}, options);
  const auto batch_of = [&](Lens lens) {
    const std::size_t live = lens.size();
    lens.resize(16, 0);
    auto batch = make_batch(lens, options.chunk_capacity, 16, options.policy);
    for (auto& row : batch.req_to_page) row.resize(19);  // pages of 300 tokens
    for (std::size_t i = live; i < 16; ++i) batch.req_pool_indices[i] = 123456789;
    return batch;
  };
  const test::DeviceBatch<MemorySpace> device(batch_of({}));
  const auto set = [&](const test::Batch& batch) {
    const test::DeviceBatch<MemorySpace> next(batch);
    Kokkos::deep_copy(device.prefix_lens, next.prefix_lens);
    Kokkos::deep_copy(device.req_pool_indices, next.req_pool_indices);
    Kokkos::deep_copy(device.page_ids, next.page_ids);
    Kokkos::fence();
  };
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  Captured<Space> captured;
  captured.capture([&](const Space& space) { cp::fill(space, shape, device.prefix(), metadata); });
  captured.launch();
  captured.space().fence();
  const auto addresses = [&] {
    const auto chunks = metadata.chunks();
    return std::vector<const void*>{chunks.starts.data(),       chunks.ends.data(),
                                    chunks.len_in_chunk.data(), chunks.cum_seq_lens.data(),
                                    metadata.offsets().data(),  metadata.chunk_kv_indices().data()};
  };
  const auto first = addresses();
  std::vector<Lens> steps{{300, 5, 70}, {120, 300}, {}, {16}, Lens(16, 62), {0, 0, 0, 300}};
  for (const Lens& lens : steps) {
    const auto batch = batch_of(lens);
    set(batch);
    cp::ChunkPlan plan;
    {
      const test::Recorder recorder;
      plan = cp::plan_chunks(batch.prefix_lens, options);
      captured.launch();
      metadata.resize_within(plan, shape);
      EXPECT_EQ(recorder.events().fences, std::vector<std::string>());
      EXPECT_EQ(recorder.events().allocations, std::vector<std::string>());
      EXPECT_EQ(recorder.events().copies, std::vector<std::string>());
    }
    captured.space().fence();
    ASSERT_EQ(test::read_back(plan, metadata), test::oracle(batch));
    metadata.resize(shape);  // the rows of every loop
    ASSERT_EQ(addresses(), first);
    const auto rows = test::to_host_rows(metadata.chunks().len_in_chunk);
    const auto cum = test::to_host_rows(metadata.chunks().cum_seq_lens);
    for (std::size_t loop = 0; loop < rows.size(); ++loop) {
      for (std::size_t i = lens.size(); i < 16; ++i) {
        ASSERT_EQ(rows[loop][i], 0) << "spare sequence " << i << ", loop " << loop;
        ASSERT_EQ(cum[loop][i + 1], cum[loop][i]) << "spare sequence " << i << ", loop " << loop;
      }
    }
  }
}

TYPED_TEST(FieldFaults, ReplayedWithAnotherBatch) {
  for (const auto policy : policies) {
    replayed_with_another_batch<TypeParam>({.chunk_capacity = 1024, .policy = policy});
    replayed_with_another_batch<TypeParam>({.chunk_capacity = 100, .policy = policy});
  }
}

// 11. Lengths of either width give the same int32 outputs; none is cut to its low half.
template <class Space>
void lengths_of_either_width() {
  using MemorySpace = typename Space::memory_space;
  using Metadata = cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t>;
  using Table = decltype(std::declval<Metadata>().chunks().cum_seq_lens);
  using Row = decltype(std::declval<Metadata>().cum_seq_lens(0));
  static_assert(std::is_same_v<typename Table::value_type, std::int32_t>);
  static_assert(std::is_same_v<typename Row::value_type, std::int32_t>);
  static_assert(std::is_same_v<decltype(cp::Chunks<MemorySpace>::cum_seq_lens), Table>);
  static_assert(std::is_same_v<decltype(cp::Chunks<MemorySpace>::len_in_chunk), Table>);
  const auto expect_same = [](const test::Batch& batch) {
    const std::vector<std::int64_t> wide(batch.prefix_lens.begin(), batch.prefix_lens.end());
    const auto a = plan_of(batch);
    const auto b = cp::plan_chunks(wide, batch.options());
    ASSERT_EQ(a.shape(), b.shape());
    ASSERT_EQ(vector(a.offsets()), vector(b.offsets()));
    ASSERT_EQ(vector(a.max_chunk_len_per_loop()), vector(b.max_chunk_len_per_loop()));
    ASSERT_EQ((test::build<Space, std::int32_t, std::int64_t>(batch)),
              (test::build<Space, std::int32_t, std::int32_t>(batch)));
    ASSERT_EQ(test::to_host_rows(cp::host_chunks(b, wide).cum_seq_lens),
              test::to_host_rows(cp::host_chunks(a, batch.prefix_lens).cum_seq_lens));
  };
  for (const auto policy : policies) {
    expect_same(make_batch({256, 512, 768, 1024}, 1024, 64, policy));
    for (const std::int64_t length :
         {std::int64_t{1} << 31, std::int64_t{1} << 32, (std::int64_t{1} << 32) + 5, INT64_MAX,
          std::int64_t{-1}, std::int64_t{INT32_MIN}, -(std::int64_t{1} << 32), INT64_MIN}) {
      EXPECT_EQ(refusal([&] {
                  (void)cp::plan_chunks(std::vector<std::int64_t>{1, length}, {.policy = policy});
                }),
                "prefix_lens[1]: " + std::to_string(length) + " is outside [0, 2147483647]");
    }
  }
  for_drawn_batches(40, expect_same);
}

// What the device's own lengths cannot be cut to: a low half that looks like a length.
template <class Space>
void wide_lengths_on_the_device() {
  using MemorySpace = typename Space::memory_space;
  for (const auto policy : policies) {
    for (const std::size_t batch_size : {4, 600}) {  // one kernel, and two
      const auto batch = make_batch(Lens(batch_size, 40), 2400, 16, policy);
      const auto plan = plan_of(batch);
      const test::DeviceBatch<MemorySpace, std::int64_t> device(batch);
      std::vector<std::int64_t> lens(batch_size,
                                     (std::int64_t{1} << 32) + 5);  // as long as planned
      lens[1] = INT64_MAX;
      lens[2] = -(std::int64_t{1} << 32) + 7;  // nothing
      Kokkos::deep_copy(device.prefix_lens, test::to_device<std::int64_t, MemorySpace>(lens));
      cp::ChunkedPrefillMetadata<MemorySpace> metadata;
      const Space space;
      cp::fill(space, plan, device.prefix(), metadata);
      space.fence();
      Lens sums(batch_size, 0);
      for (const auto& row : test::to_host_rows(metadata.chunks().len_in_chunk)) {
        for (std::size_t i = 0; i < batch_size; ++i) sums[i] += row[i];
      }
      Lens expected(batch_size, 40);
      expected[2] = 0;
      EXPECT_EQ(sums, expected);
    }
  }
}

TYPED_TEST(FieldFaults, LengthsOfEitherWidth) {
  lengths_of_either_width<TypeParam>();
  wide_lengths_on_the_device<TypeParam>();
}

// 12. Every row of every table is contiguous: its pointer walks the row.
template <class MemorySpace>
void expect_rows(const cp::Array2D<std::int32_t, MemorySpace>& table, const Rows& expected) {
  ASSERT_EQ(table.extent(0), expected.size());
  for (std::size_t row = 0; row < expected.size(); ++row) {
    const std::size_t columns = expected[row].size();
    ASSERT_EQ(table.extent(1), columns);
    const auto values =
        cp::array_view<MemorySpace>(table.data() + row * columns, columns);  // where it must begin
    ASSERT_EQ(test::to_host(values), expected[row]) << "row " << row;
  }
}
template <class MemorySpace>
void expect_row(const cp::Array1D<std::int32_t, MemorySpace>& row, const Lens& expected) {
  ASSERT_EQ(row.extent(0), expected.size());
  ASSERT_EQ(test::to_host(cp::array_view<MemorySpace>(row.data(), expected.size())), expected);
}
template <class MemorySpace>
void expect_tables(const cp::Chunks<MemorySpace>& chunks, const test::Result& expected) {
  expect_rows(chunks.starts, expected.starts);
  expect_rows(chunks.ends, expected.ends);
  expect_rows(chunks.len_in_chunk, expected.len_in_chunk);
  expect_rows(chunks.cum_seq_lens, expected.cum_seq_lens);
}

template <class Space>
void expect_contiguous(const test::Batch& batch) {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const auto expected = test::oracle(batch);
  const test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  const auto built =
      cp::get_chunks_paged(space, device.prefix(), batch.prefix_lens, batch.options(), metadata);
  space.fence();
  expect_tables(built.chunks, expected);
  expect_tables(built.chunks_host, expected);
  for (std::int32_t loop = 0; loop < metadata.chunked_loop_num(); ++loop) {
    const auto at = static_cast<std::size_t>(loop);
    expect_row(metadata.starts(loop), expected.starts[at]);
    expect_row(metadata.ends(loop), expected.ends[at]);
    expect_row(metadata.len_in_chunk(loop), expected.len_in_chunk[at]);
    expect_row(metadata.cum_seq_lens(loop), expected.cum_seq_lens[at]);
  }
  if (batch.policy == cp::Policy::packed || metadata.chunked_loop_num() == 0) return;
  const auto chunks = cp::chunking(space, device.prefix_lens, metadata.chunked_loop_num(),
                                   plan_of(batch).chunk_len());
  space.fence();
  expect_tables(chunks, expected);
}

template <class Space>
void rows_are_contiguous() {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const auto lens = test::to_device<std::int32_t, MemorySpace>(Lens{5, 11, 7, 12});
  const auto chunks = cp::chunking(space, lens, 3, 4);
  space.fence();
  EXPECT_EQ(test::to_host(cp::array_view<MemorySpace>(chunks.len_in_chunk.data() + 4, 4)),
            (Lens{1, 4, 3, 4}));
  EXPECT_EQ(test::to_host(cp::array_view<MemorySpace>(chunks.cum_seq_lens.data() + 5, 5)),
            (Lens{0, 1, 5, 8, 12}));
  for (const auto& table : std::vector{chunks.starts, chunks.ends, chunks.len_in_chunk}) {
    EXPECT_EQ(table.stride(0), 4u);
    EXPECT_EQ(table.stride(1), 1u);
  }
  EXPECT_EQ(chunks.cum_seq_lens.stride(0), 5u);
  for (const auto policy : policies) {
    expect_contiguous<Space>(make_batch({5, 11, 7, 12}, 16, 64, policy));
    // Batch sizes to which an allocation may pad a row.
    for (const std::size_t batch_size : {1, 2, 31, 33, 127, 600}) {
      expect_contiguous<Space>(make_batch(Lens(batch_size, 9), 1200, 4, policy));
    }
  }
  for_drawn_batches(30, [](const test::Batch& batch) { expect_contiguous<Space>(batch); });
}

TYPED_TEST(FieldFaults, RowsAreContiguous) { rows_are_contiguous<TypeParam>(); }

// 13. A build without sequences or loops leaves nothing of the last one readable in its buffers.
template <class Space>
void expect_nothing_readable(const test::Batch& batch, const Lens& empty) {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  auto plan = plan_of(batch);
  cp::fill(space, plan, device.prefix(), metadata);
  space.fence();

  auto nothing = test::make_batch(empty, batch.chunk_capacity + 2, batch.page_size);
  nothing.policy = batch.policy;
  const test::DeviceBatch<MemorySpace> device_nothing(nothing);
  cp::plan_chunks(empty, nothing.options(), plan);
  cp::fill(space, plan, device_nothing.prefix(), metadata);
  space.fence();
  ASSERT_EQ(plan.chunked_loop_num(), 0);
  ASSERT_EQ(plan.total_tokens(), 0);
  ASSERT_EQ(plan.max_prefix_len(), 0);
  ASSERT_TRUE(plan.tokens_per_loop().empty());
  ASSERT_TRUE(plan.max_chunk_len_per_loop().empty());
  ASSERT_TRUE(plan.seq_begin_per_loop().empty());
  ASSERT_TRUE(plan.seq_end_per_loop().empty());
  ASSERT_TRUE(plan.non_empty_seqs_per_loop().empty());
  ASSERT_EQ(vector(plan.offsets()), Tokens{0});
  ASSERT_EQ(metadata.chunked_loop_num(), 0);
  ASSERT_EQ(metadata.batch_size(), std::ssize(empty));
  const auto chunks = metadata.chunks();
  for (const auto& table :
       std::vector{chunks.starts, chunks.ends, chunks.len_in_chunk, chunks.cum_seq_lens}) {
    ASSERT_EQ(table.size(), 0u);
  }
  ASSERT_EQ(metadata.offsets().extent(0), 0u);
  ASSERT_EQ(metadata.chunk_kv_indices().extent(0), 0u);
  ASSERT_TRUE(metadata.chunk_kv_indices_list().empty());
  const std::string words = "loop: 0 is outside [0, -1]";
  ASSERT_EQ(refusal([&] { (void)metadata.starts(0); }), words);
  ASSERT_EQ(refusal([&] { (void)metadata.ends(0); }), words);
  ASSERT_EQ(refusal([&] { (void)metadata.len_in_chunk(0); }), words);
  ASSERT_EQ(refusal([&] { (void)metadata.cum_seq_lens(0); }), words);
  ASSERT_EQ(refusal([&] { (void)metadata.chunk_kv_indices(0); }), words);
}

/// The loops of a captured build that the batch has nothing for are written, over what was there.
template <class Space>
void expect_empty_loops_written(const test::Batch& batch) {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const auto shape = plan_of(batch).shape();
  const test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::fill(space, shape, device.prefix(), metadata);
  Kokkos::deep_copy(space, device.prefix_lens, 0);
  cp::fill(space, shape, device.prefix(), metadata);
  space.fence();
  const auto loops = static_cast<std::size_t>(shape.chunked_loop_num);
  const auto batch_size = batch.prefix_lens.size();
  ASSERT_EQ(test::to_host_rows(metadata.chunks().len_in_chunk), Rows(loops, Lens(batch_size, 0)));
  ASSERT_EQ(test::to_host_rows(metadata.chunks().cum_seq_lens),
            Rows(loops, Lens(batch_size + 1, 0)));
  ASSERT_EQ(test::to_host(metadata.offsets()), Tokens(loops == 0 ? 0 : loops + 1, 0));
}

template <class Space>
void nothing_stale_after_an_empty_build() {
  using MemorySpace = typename Space::memory_space;
  const auto check = [](const test::Batch& batch) {
    expect_nothing_readable<Space>(batch, {});
    expect_nothing_readable<Space>(batch, {0});
    expect_nothing_readable<Space>(batch, {0, 0});
    expect_empty_loops_written<Space>(batch);
  };
  for (const auto policy : policies) {
    check(make_batch({256, 512, 768, 1024}, 1024, 64, policy));
    check(make_batch(Lens(600, 30), 2000, 64, policy));
  }
  for_drawn_batches(30, check);

  // The table by itself: rows of no sequences have a total of 0, whatever was there.
  const Space space;
  const cp::Array1D<std::int32_t, MemorySpace> nobody("test::nobody", 0);
  const auto chunks = cp::chunking(space, nobody, 3, 4);
  space.fence();
  Kokkos::deep_copy(chunks.cum_seq_lens, 77);
  cp::chunking(space, nobody, 4, chunks);
  space.fence();
  EXPECT_EQ(test::to_host_rows(chunks.cum_seq_lens), (Rows{{0}, {0}, {0}}));
  const auto lens = test::to_device<std::int32_t, MemorySpace>(Lens{5, 11});
  EXPECT_EQ(cp::chunking(space, lens, 0, 4).chunked_loop_num(), 0);
  EXPECT_EQ(cp::chunking(space, nobody, 0, 4).chunked_loop_num(), 0);
}

TYPED_TEST(FieldFaults, NothingStaleAfterAnEmptyBuild) {
  nothing_stale_after_an_empty_build<TypeParam>();
}

// 14. More sequences or loops than one dimension of a launch can count.
template <class Space>
void launch_limits() {
  const auto batch = make_batch(Lens(80000, 16), 1280000, 16, cp::Policy::equal);
  const auto plan = plan_of(batch);
  EXPECT_EQ(plan.chunk_len(), 16);
  EXPECT_EQ(plan.chunked_loop_num(), 1);
  const auto built = test::build<Space>(batch);
  EXPECT_EQ(built.cum_seq_lens.at(0).back(), 1280000);
  EXPECT_TRUE(built == test::oracle(batch));
  for (const auto policy : policies) {
    for (const std::size_t batch_size : {65535, 65536, 65537, 80000}) {
      SCOPED_TRACE(batch_size);
      Lens lens(batch_size, 3);
      lens[batch_size / 2] = 0;
      lens.back() = 5;
      const auto sequences = make_batch(lens, 2 * std::ssize(lens), 16, policy);
      EXPECT_TRUE((test::build<Space>(sequences)) == test::oracle(sequences));
      const auto loops = make_batch({static_cast<std::int32_t>(batch_size)}, 1, 16, policy);
      EXPECT_EQ(plan_of(loops).chunked_loop_num(), std::ssize(lens));
      EXPECT_TRUE((test::build<Space>(loops)) == test::oracle(loops));
    }
  }
}

TYPED_TEST(FieldFaults, LaunchLimits) { launch_limits<TypeParam>(); }

}  // namespace
