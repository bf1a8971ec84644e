// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "batch.hpp"
#include "guarded_buffers.hpp"
#include "recorder.hpp"

// Each host precondition, by the words of its refusal, which comes before anything is enqueued,
// allocated (`test::refusal` sees to both) or written. One execution space stands for all.

namespace {

namespace cp = chunked_prefill;
using Space = Kokkos::DefaultExecutionSpace;
using MemorySpace = Space::memory_space;
using Lens = std::vector<std::int32_t>;

using test::not_refused;
using test::refusal;

// Memory that an execution space cannot reach is refused when a call is compiled.
static_assert(cp::AccessibleFrom<MemorySpace, Space>);
#if defined(KOKKOS_ENABLE_CUDA) && defined(KOKKOS_ENABLE_SERIAL)
static_assert(!cp::AccessibleFrom<Kokkos::CudaSpace, Kokkos::Serial> &&
              !cp::AccessibleFrom<Kokkos::HostSpace, Kokkos::Cuda>);
#endif

constexpr std::int64_t two_to_31 = std::int64_t{1} << 31;

/// `count` elements behind a pointer that is not a multiple of their size; nothing reads them.
template <class T>
cp::Array1D<T, MemorySpace> misaligned(std::size_t count) {
  static std::int64_t words[2];
  return cp::array_view<MemorySpace>(
      std::bit_cast<T*>(std::bit_cast<std::uintptr_t>(&words[0]) + sizeof(T) / 2), count);
}

TEST(Errors, Capacity) {
  const auto capacity = [](std::int64_t size, std::int64_t multiplier) {
    return refusal([&] {
      (void)cp::get_max_chunk_capacity(
          {.chunked_prefill_size = size, .mla_chunk_multiplier = multiplier});
    });
  };
  EXPECT_EQ(capacity(1 << 20, 1 << 11),
            "chunked_prefill_size * mla_chunk_multiplier: 1048576 * 2048 is beyond 2147483647");
  EXPECT_EQ(capacity(INT64_MAX, INT64_MAX),
            "chunked_prefill_size * mla_chunk_multiplier: 9223372036854775807 * "
            "9223372036854775807 is beyond 2147483647");
}

std::string plan_refusal(const Lens& lens, std::int64_t capacity) {
  return refusal([&] { (void)cp::plan_chunks(lens, {.chunk_capacity = capacity}); });
}

TEST(Errors, Plan) {
  EXPECT_EQ(plan_refusal({1}, 0), "chunk_capacity: 0 is outside [1, 2147483647]");
  EXPECT_EQ(plan_refusal({1}, -4), "chunk_capacity: -4 is outside [1, 2147483647]");
  EXPECT_EQ(plan_refusal({}, std::int64_t{1} << 31),
            "chunk_capacity: 2147483648 is outside [1, 2147483647]");
  EXPECT_EQ(plan_refusal({3, INT32_MAX}, 2),
            "chunk_capacity: 2 needs 2147483647 loops for 2147483647 tokens");
  EXPECT_EQ(plan_refusal({7, 3, -1, -2}, 100), "prefix_lens[2]: -1 is outside [0, 2147483647]");
  const std::int32_t one = 1;  // nobody reads the others
  const std::span<const std::int32_t> too_many(&one, static_cast<std::size_t>(two_to_31));
  for (const auto policy : {cp::Policy::equal, cp::Policy::packed}) {
    EXPECT_EQ(refusal([&] { (void)cp::plan_chunks(too_many, {.policy = policy}); }),
              "batch_size: 2147483648 is outside [0, 2147483647]");
  }
}

TEST(Errors, Bounds) {
  const auto bounds_refusal = [](const cp::BatchBounds& bounds,
                                 const cp::PlanOptions& options = {.chunk_capacity = 640}) {
    return refusal([&] { (void)cp::bounding_shape(bounds, options); });
  };
  EXPECT_EQ(bounds_refusal({.batch_size = -1}), "bounds.batch_size: -1 is outside [0, 2147483647]");
  EXPECT_EQ(bounds_refusal({.batch_size = two_to_31}),
            "bounds.batch_size: 2147483648 is outside [0, 2147483647]");
  EXPECT_EQ(bounds_refusal({.batch_size = 6, .max_prefix_len = -1}),
            "bounds.max_prefix_len: -1 is outside [0, 2147483647]");
  EXPECT_EQ(bounds_refusal({.batch_size = 6, .max_prefix_len = two_to_31}),
            "bounds.max_prefix_len: 2147483648 is outside [0, 2147483647]");
  EXPECT_EQ(bounds_refusal({.batch_size = 6, .max_prefix_len = 700, .total_tokens = -1}),
            "bounds.total_tokens: -1 is outside [0, 9223372036854775807]");
  EXPECT_EQ(bounds_refusal({.batch_size = 641, .max_prefix_len = 1, .total_tokens = 1}),
            "chunk_capacity: 640 tokens cannot be split equally among 641 sequences (batch_size)");
  const cp::BatchBounds largest{
      .batch_size = 2, .max_prefix_len = INT32_MAX, .total_tokens = 2 * std::int64_t{INT32_MAX}};
  EXPECT_EQ(bounds_refusal(largest, {.chunk_capacity = 2}),
            "chunk_capacity: 2 needs 2147483647 loops for 2147483647 tokens");
  EXPECT_EQ(bounds_refusal(largest, {.chunk_capacity = 1, .policy = cp::Policy::packed}),
            "chunk_capacity: 1 needs 4294967294 loops for 4294967294 tokens");
  EXPECT_EQ(bounds_refusal(largest, {.chunk_capacity = 0}),
            "chunk_capacity: 0 is outside [1, 2147483647]");
  EXPECT_EQ(bounds_refusal(largest, {.grain = 2}),
            "grain: 2 belongs to the packed policy; an equal split has 1");
  EXPECT_EQ(bounds_refusal(largest, {.policy = cp::Policy::packed, .grain = 40000}),
            "grain: 40000 is beyond chunk_capacity 32768");
  EXPECT_EQ(bounds_refusal(largest, {.shard = {.world_size = 2, .rank = 2}}),
            "shard.rank: 2 is outside [0, 1]");
}

TEST(Errors, ARefusedPlanIsAsItWas) {
  cp::ChunkPlan plan = cp::plan_chunks(Lens{0, 300, 0, 64}, {.chunk_capacity = 1024});
  EXPECT_THROW(cp::plan_chunks(Lens{1, -1}, {.chunk_capacity = 10}, plan), cp::InvalidArgument);
  EXPECT_EQ(plan.batch_size(), 4);
  EXPECT_EQ(plan.total_tokens(), 364);
}

TEST(Errors, NameTheArgument) {
  try {
    (void)cp::plan_chunks(Lens{1, 2, -3});
    FAIL();
  } catch (const cp::InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "prefix_lens[2]");
  }
}

/// Fills a good batch after `spoil` has changed one thing about its input.
template <class Spoil>
std::string fill_refusal(const Spoil& spoil, const cp::ContextShard& shard = {}) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  auto prefix = device.prefix();
  spoil(prefix);
  const auto plan = cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 64, .shard = shard});
  const test::GuardedBuffers<MemorySpace, std::int32_t> engine(cp::required_sizes(plan), 2);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata(engine.buffers());
  const auto words = refusal([&] { cp::fill(Space(), plan, prefix, metadata); });
  Kokkos::fence();
  if (words != not_refused) {
    EXPECT_EQ(metadata.chunked_loop_num(), 0);
    engine.expect_untouched();
  }
  return words;
}

TEST(Errors, Fill) {
  using Prefix = cp::PagedPrefix<MemorySpace>;
  EXPECT_EQ(fill_refusal([](Prefix&) {}), not_refused);
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.prefix_lens = cp::array_view<MemorySpace>(prefix.prefix_lens.data(), 1);
            }),
            "prefix_lens: extent 1 where 2 is needed");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.req_pool_indices =
                  cp::array_view<MemorySpace>(prefix.req_pool_indices.data(), 3);
            }),
            "req_pool_indices: extent 3 where 2 is needed");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) { prefix.page_size = 0; }),
            "page_size: 0 is outside [1, 2147483647]");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) { prefix.page_size = std::int64_t{1} << 31; }),
            "page_size: 2147483648 is outside [1, 2147483647]");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) { prefix.page_size = 8; }),
            "prefix_lens[0]: 100 tokens need 13 pages of page_size 8, req_to_page has 5 rows of 9");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.req_to_page = cp::PageTable<MemorySpace>(prefix.req_to_page.data(),
                                                              Kokkos::LayoutStride(5, 1, 9, 5));
            }),
            "req_to_page: stride 5 between the pages of a row where 1 is needed");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.req_to_page = cp::page_table<MemorySpace>(prefix.req_to_page.data(), 5, 9, 8);
            }),
            "req_to_page: row stride 8 is less than the 9 pages of a row");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.prefix_lens = Prefix::Input<std::int32_t>(prefix.prefix_lens.data(),
                                                               Kokkos::LayoutStride(2, 3));
            }),
            "prefix_lens: stride 3 where 1 is needed");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.req_pool_indices = Prefix::Input<std::int32_t>(prefix.req_pool_indices.data(),
                                                                    Kokkos::LayoutStride(2, 3));
            }),
            "req_pool_indices: stride 3 where 1 is needed");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) { prefix.num_pages = -1; }),
            "num_pages: -1 is outside [0, 2147483648]");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) { prefix.num_pages = two_to_31 + 1; }),
            "num_pages: 2147483649 is outside [0, 2147483648]");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.req_to_page = cp::page_table<MemorySpace>(prefix.req_to_page.data(), 0, 9, 9);
            }),
            "prefix_lens[0]: 100 tokens need 7 pages of page_size 16, req_to_page has 0 rows of 9");
  EXPECT_EQ(fill_refusal([](Prefix& prefix) {
              prefix.req_to_page = cp::page_table<MemorySpace>(
                  prefix.req_to_page.data(), static_cast<std::size_t>(two_to_31), 9, 9);
            }),
            "req_to_page.extent(0): 2147483648 is outside [0, 2147483647]");
  EXPECT_EQ(fill_refusal(
                [](Prefix& prefix) {
                  prefix.req_to_page =
                      cp::page_table<MemorySpace>(prefix.req_to_page.data(), 5, 2, 9);
                },
                {.world_size = 2, .rank = 1}),
            "prefix_lens[0]: 50 tokens of rank 1 need 4 pages of page_size 16, req_to_page has 5 "
            "rows of 2");
}

TEST(Errors, EngineBuffersTooSmall) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto plan = cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 64});
  const auto sizes = cp::required_sizes(plan);
  EXPECT_EQ(sizes, (cp::MetadataSizes{
                       .starts = 8, .cum_seq_lens = 12, .offsets = 5, .chunk_kv_indices = 164}));
  const auto array = [](std::size_t size) {
    return cp::Array1D<std::int32_t, MemorySpace>("test::buffer", size);
  };
  const auto offsets = [](std::size_t size) {
    return cp::Array1D<std::int64_t, MemorySpace>("test::offsets", size);
  };
  const auto fill_into = [&](const cp::MetadataBuffers<MemorySpace>& buffers) {
    cp::ChunkedPrefillMetadata<MemorySpace> metadata(buffers);
    auto words = refusal([&] { cp::fill(Space(), plan, device.prefix(), metadata); });
    EXPECT_EQ(metadata.chunked_loop_num(), words == not_refused ? 4 : 0);
    return words;
  };
  const cp::MetadataBuffers<MemorySpace> good{array(8),  array(8),   array(8),
                                              array(12), offsets(5), array(164)};
  EXPECT_EQ(fill_into(good), not_refused);
  auto buffers = good;
  buffers.starts = array(7);
  EXPECT_EQ(fill_into(buffers), "buffers.starts: extent 7 where at least 8 is needed");
  buffers = good;
  buffers.ends = array(7);
  EXPECT_EQ(fill_into(buffers), "buffers.ends: extent 7 where at least 8 is needed");
  buffers = good;
  buffers.len_in_chunk = array(0);
  EXPECT_EQ(fill_into(buffers), "buffers.len_in_chunk: extent 0 where at least 8 is needed");
  buffers = good;
  buffers.cum_seq_lens = array(11);
  EXPECT_EQ(fill_into(buffers), "buffers.cum_seq_lens: extent 11 where at least 12 is needed");
  buffers = good;
  buffers.offsets = offsets(4);
  EXPECT_EQ(fill_into(buffers), "buffers.offsets: extent 4 where at least 5 is needed");
  buffers = good;
  buffers.chunk_kv_indices = array(163);
  EXPECT_EQ(fill_into(buffers),
            "buffers.chunk_kv_indices: extent 163 where at least 164 is needed");
  Kokkos::fence();
}

// Neither the loops of the last build nor its numbers change when the next is refused.
TEST(Errors, ARefusedBuildLeavesTheLast) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  const cp::PlanOptions options{.chunk_capacity = 64};
  const auto plan = cp::plan_chunks(batch.prefix_lens, options);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::fill(Space(), plan, device.prefix(), metadata);
  Kokkos::fence();
  const auto prefix = device.prefix();
  auto narrow = prefix;
  narrow.page_size = 8;
  const std::string too_narrow =
      "prefix_lens[0]: 100 tokens need 13 pages of page_size 8, req_to_page has 5 rows of 9";
  const auto get = [&](const auto& batch_on_device, const cp::PlanOptions& with) {
    return refusal([&] {
      (void)cp::get_chunks_paged(Space(), batch_on_device, batch.prefix_lens, with, metadata);
    });
  };
  const auto build = [&](const auto& batch_on_device, const cp::PlanOptions& with) {
    return refusal([&] {
      (void)cp::build_chunked_prefill_metadata_arrays(Space(), batch_on_device, batch.prefix_lens,
                                                      with, metadata);
    });
  };
  const std::string no_capacity = "chunk_capacity: 0 is outside [1, 2147483647]";
  EXPECT_EQ(get(prefix, {.chunk_capacity = 0}), no_capacity);
  EXPECT_EQ(get(narrow, options), too_narrow);
  EXPECT_EQ(build(prefix, {.chunk_capacity = 0}), no_capacity);
  EXPECT_EQ(build(narrow, options), too_narrow);
  EXPECT_EQ(refusal([&] { cp::fill(Space(), plan, narrow, metadata); }), too_narrow);
  const std::size_t beyond = std::size_t{1} << 62;
  EXPECT_EQ(refusal([&] { metadata.reserve({.starts = 1000, .chunk_kv_indices = beyond}); }),
            "sizes.chunk_kv_indices: 4611686018427387904 is beyond 2305843009213693951");
  EXPECT_EQ(test::read_back(plan, metadata), test::oracle(batch));
}

TEST(Errors, HostTwinOfOtherLengths) {
  const auto plan = cp::plan_chunks(Lens{100, 64}, {.chunk_capacity = 64});
  EXPECT_EQ(refusal([&] { (void)cp::host_chunks(plan, Lens{100}); }),
            "prefix_lens: extent 1 where 2 is needed");
  EXPECT_EQ(refusal([&] {
              (void)cp::host_chunks(plan, std::vector<std::int64_t>{1, 2, 3});
            }),
            "prefix_lens: extent 3 where 2 is needed");
}

// A row accessor of a loop that is not there.
TEST(Errors, Loops) {
  const auto plan = cp::plan_chunks(Lens{100, 64}, {.chunk_capacity = 64});
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  metadata.resize(plan);
  for (const std::int32_t loop : {INT32_MIN, -1, 4, INT32_MAX}) {
    const auto words = "loop: " + std::to_string(loop) + " is outside [0, 3]";
    EXPECT_EQ(refusal([&] { (void)metadata.starts(loop); }), words);
    EXPECT_EQ(refusal([&] { (void)metadata.ends(loop); }), words);
    EXPECT_EQ(refusal([&] { (void)metadata.len_in_chunk(loop); }), words);
    EXPECT_EQ(refusal([&] { (void)metadata.cum_seq_lens(loop); }), words);
    EXPECT_EQ(refusal([&] { (void)metadata.chunk_kv_indices(loop); }), words);
  }
  metadata.resize(plan.shape());
  const std::string words = "loop: 0, and no plan has told where loops begin among the slots";
  EXPECT_EQ(refusal([&] { (void)metadata.chunk_kv_indices(0); }), words);
  EXPECT_EQ(refusal([&] { (void)metadata.chunk_kv_indices_list(); }), words);
}

// An engine's pointer need not be aligned to the elements it is used for.
TEST(Errors, MisalignedBuffers) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto plan = cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 64});
  const auto sizes = cp::required_sizes(plan);
  const test::GuardedBuffers<MemorySpace, std::int64_t> engine(sizes, 2);
  using Buffers = cp::MetadataBuffers<MemorySpace, std::int64_t>;
  const auto fill_into = [&](const auto& spoil) {
    auto buffers = engine.buffers();
    spoil(buffers);
    cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t> metadata(buffers);
    auto words = refusal([&] { cp::fill(Space(), plan, device.prefix(), metadata); });
    Kokkos::fence();
    engine.expect_untouched();
    return words;
  };
  const std::string of_4 = ": its address is not a multiple of 4 bytes";
  const std::string of_8 = ": its address is not a multiple of 8 bytes";
  EXPECT_EQ(fill_into([&](Buffers& to) { to.starts = misaligned<std::int32_t>(sizes.starts); }),
            "buffers.starts" + of_4);
  EXPECT_EQ(fill_into([&](Buffers& to) { to.ends = misaligned<std::int32_t>(sizes.starts); }),
            "buffers.ends" + of_4);
  EXPECT_EQ(
      fill_into([&](Buffers& to) { to.len_in_chunk = misaligned<std::int32_t>(sizes.starts); }),
      "buffers.len_in_chunk" + of_4);
  EXPECT_EQ(fill_into([&](Buffers& to) {
              to.cum_seq_lens = misaligned<std::int32_t>(sizes.cum_seq_lens);
            }),
            "buffers.cum_seq_lens" + of_4);
  EXPECT_EQ(fill_into([&](Buffers& to) { to.offsets = misaligned<std::int64_t>(sizes.offsets); }),
            "buffers.offsets" + of_8);
  EXPECT_EQ(fill_into([&](Buffers& to) {
              to.chunk_kv_indices = misaligned<std::int64_t>(sizes.chunk_kv_indices);
            }),
            "buffers.chunk_kv_indices" + of_8);
}

TEST(Errors, MisalignedInputs) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto plan = cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 64});
  const auto astray = misaligned<std::int32_t>(2);
  const auto table = device.prefix().req_to_page;
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  const auto filled = [&](const auto& prefix) {
    return refusal([&] { cp::fill(Space(), plan, prefix, metadata); });
  };
  EXPECT_EQ(filled(cp::PagedPrefix{astray, table, device.req_pool_indices, 16}),
            "prefix_lens: its address is not a multiple of 4 bytes");
  EXPECT_EQ(filled(cp::PagedPrefix{device.prefix_lens, table, astray, 16}),
            "req_pool_indices: its address is not a multiple of 4 bytes");
  EXPECT_EQ(filled(cp::PagedPrefix{device.prefix_lens,
                                   cp::page_table<MemorySpace>(astray.data(), 2, 1, 1),
                                   device.req_pool_indices, 16}),
            "req_to_page: its address is not a multiple of 4 bytes");
  EXPECT_EQ(
      filled(cp::PagedPrefix{misaligned<std::int64_t>(2), table, device.req_pool_indices, 16}),
      "prefix_lens: its address is not a multiple of 8 bytes");
  EXPECT_EQ(filled(cp::PagedPrefix{device.prefix_lens, table, misaligned<std::int64_t>(2), 16}),
            "req_pool_indices: its address is not a multiple of 8 bytes");
  EXPECT_EQ(metadata.chunked_loop_num(), 0);
}

TEST(Errors, SizesBeyondMemory) {
  cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t> metadata;
  const std::size_t beyond = std::size_t{1} << 61;
  EXPECT_EQ(refusal([&] { metadata.reserve({.starts = beyond}); }),
            "sizes.starts: 2305843009213693952 is beyond 2305843009213693951");
  EXPECT_EQ(refusal([&] { metadata.reserve({.cum_seq_lens = beyond}); }),
            "sizes.cum_seq_lens: 2305843009213693952 is beyond 2305843009213693951");
  EXPECT_EQ(refusal([&] { metadata.reserve({.offsets = beyond}); }),
            "sizes.offsets: 2305843009213693952 is beyond 1152921504606846975");
  EXPECT_EQ(refusal([&] { metadata.reserve({.chunk_kv_indices = beyond}); }),
            "sizes.chunk_kv_indices: 2305843009213693952 is beyond 1152921504606846975");
  EXPECT_EQ(refusal([&] { metadata.reserve(cp::required_sizes(INT32_MAX, INT32_MAX, 0)); }),
            "sizes.starts: 4611686014132420609 is beyond 2305843009213693951");
}

TEST(Errors, RequiredSizes) {
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(-1, 0, 0); }),
            "batch_size: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(1, -1, 0); }),
            "chunked_loop_num: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(1, 1, -1); }),
            "total_tokens: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(two_to_31, 0, 0); }),
            "batch_size: 2147483648 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(1, two_to_31, 0); }),
            "chunked_loop_num: 2147483648 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(2, 1, 2 * two_to_31 - 1); }),
            "total_tokens: 4294967295 is outside [0, 4294967294]");
}

// A row of a 2-D View is strided under some layouts, and its pointer walks the wrong way.
TEST(Errors, StridedArrays) {
  const Kokkos::View<std::int32_t**, Kokkos::LayoutLeft, MemorySpace> table("test::table", 3, 3);
  const auto strided = Kokkos::subview(table, 1, Kokkos::ALL);
  const auto contiguous = Kokkos::subview(table, Kokkos::ALL, 1);
  const std::string words = ": stride 3 where 1 is needed";
  const Space space;
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, strided, 1, 1); }), "prefix_lens" + words);
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, contiguous, 1, 1); }), not_refused);
  const auto one = Kokkos::subview(strided, std::pair(1, 2));  // nothing to stride over
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, one, 1, 1); }), not_refused);
  const auto gather = [&](const auto& requests, const auto& starts, const auto& cum,
                          const auto& slots) {
    return refusal([&] {
      cp::create_chunked_cache_kv_indices_paged(space,
                                                cp::page_table<MemorySpace>(table.data(), 3, 3, 3),
                                                requests, starts, cum, slots, 16);
    });
  };
  const auto two = Kokkos::subview(contiguous, std::pair(0, 2));
  const auto strided_two = Kokkos::subview(strided, std::pair(0, 2));
  EXPECT_EQ(gather(strided_two, two, contiguous, contiguous), "req_pool_indices" + words);
  EXPECT_EQ(gather(two, strided_two, contiguous, contiguous), "chunk_starts" + words);
  EXPECT_EQ(gather(two, two, strided, contiguous), "chunk_cum_seq_lens" + words);
  EXPECT_EQ(gather(two, two, contiguous, strided), "chunk_kv_indices" + words);
  Kokkos::fence();
}

TEST(Errors, Chunking) {
  const auto lens = test::to_device<std::int32_t, MemorySpace>(Lens{5, 6});
  const Space space;
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, lens, 1, 0); }),
            "chunk_len: 0 is outside [1, 2147483647]");
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, lens, -1, 1); }),
            "chunked_loop_num: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, lens, 3, INT32_MAX / 2); }), not_refused);
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, lens, 1, INT32_MAX / 2 + 1); }),
            "batch_size * chunk_len: 2147483648 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, lens, 4, INT32_MAX / 2); }),
            "(chunked_loop_num - 1) * chunk_len: 3221225469 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([&] { (void)cp::chunking(space, lens, (std::int64_t{1} << 32) + 1, 1); }),
            "chunked_loop_num: 4294967297 is outside [0, 2147483647]");
  space.fence();
}

// The tables that `chunking` writes: each array with other extents, with rows apart, or astray.
TEST(Errors, ChunkTables) {
  constexpr std::size_t batch_size = 70;  // Kokkos pads rows from 64 elements on
  const auto lens = test::to_device<std::int32_t, MemorySpace>(Lens(batch_size, 5));
  const auto table = [](std::size_t loops, std::size_t columns) {
    cp::Array2D<std::int32_t, MemorySpace> made("test::table", loops, columns);
    Kokkos::deep_copy(made, -77777);
    return made;
  };
  const cp::Chunks<MemorySpace> good{.starts = table(2, batch_size),
                                     .ends = table(2, batch_size),
                                     .len_in_chunk = table(2, batch_size),
                                     .cum_seq_lens = table(2, batch_size + 1)};
  const auto refused = [&](const auto& spoil) {
    auto chunks = good;
    spoil(chunks);
    auto words = refusal([&] { cp::chunking(Space(), lens, 4, chunks); });
    Kokkos::fence();
    for (const auto& array :
         std::vector{good.starts, good.ends, good.len_in_chunk, good.cum_seq_lens}) {
      for (const std::int32_t value : test::to_host(array)) EXPECT_EQ(value, -77777);
    }
    return words;
  };
  using Chunks = cp::Chunks<MemorySpace>;
  using Member = cp::Array2D<std::int32_t, MemorySpace> Chunks::*;
  const std::array<std::pair<std::string, Member>, 4> arrays{
      {{"chunks.starts", &Chunks::starts},
       {"chunks.ends", &Chunks::ends},
       {"chunks.len_in_chunk", &Chunks::len_in_chunk},
       {"chunks.cum_seq_lens", &Chunks::cum_seq_lens}}};
  for (const auto& array : arrays) {
    const std::string& name = array.first;
    const Member member = array.second;
    const std::size_t columns = (good.*member).extent(1);
    const auto extents = [&](std::size_t rows, std::size_t of) {
      return "extents (" + std::to_string(rows) + ", " + std::to_string(of) + ")";
    };
    EXPECT_EQ(refused([&](Chunks& chunks) { chunks.*member = table(2, columns - 1); }),
              name + ": " + extents(2, columns - 1) + " where (2, " + std::to_string(columns) +
                  ") are needed");
    if (name != "chunks.starts") {  // which says how many loops there are
      EXPECT_EQ(refused([&](Chunks& chunks) { chunks.*member = table(3, columns); }),
                name + ": " + extents(3, columns) + " where (2, " + std::to_string(columns) +
                    ") are needed");
    }
    EXPECT_EQ(refused([&](Chunks& chunks) {
                chunks.*member = cp::Array2D<std::int32_t, MemorySpace>(
                    misaligned<std::int32_t>(1).data(), 2, columns);
              }),
              name + ": its address is not a multiple of 4 bytes");
    const cp::Array2D<std::int32_t, MemorySpace> padded(
        Kokkos::view_alloc(Kokkos::AllowPadding, "test::padded"), 2, columns);
    if (padded.span_is_contiguous()) continue;  // not every Kokkos pads
    EXPECT_EQ(refused([&](Chunks& chunks) { chunks.*member = padded; }),
              name + ": row stride " + std::to_string(padded.stride(0)) + " where " +
                  std::to_string(columns) + " is needed");
  }
  EXPECT_EQ(refusal([&] { cp::chunking(Space(), lens, 0, good); }),
            "chunk_len: 0 is outside [1, 2147483647]");
  EXPECT_EQ(refusal([&] { cp::chunking(Space(), misaligned<std::int32_t>(70), 4, good); }),
            "prefix_lens: its address is not a multiple of 4 bytes");
  EXPECT_EQ(refusal([&] { (void)cp::chunking(Space(), misaligned<std::int64_t>(70), 2, 4); }),
            "prefix_lens: its address is not a multiple of 8 bytes");
}

TEST(Errors, Gather) {
  const Space space;
  const cp::Array1D<std::int32_t, MemorySpace> array("test::array", 8);
  const auto two = cp::array_view<MemorySpace>(array.data(), 2);
  const auto three = cp::array_view<MemorySpace>(array.data(), 3);
  const auto table = cp::page_table<MemorySpace>(array.data(), 2, 4, 4);
  const cp::Array1D<std::int32_t, MemorySpace> slots("test::slots", 8);
  Kokkos::deep_copy(slots, -77777);
  const auto refused = [&](const auto& pages, const auto& requests, const auto& starts,
                           const auto& cum, const auto& to, std::int64_t page_size = 16) {
    auto words = refusal([&] {
      cp::create_chunked_cache_kv_indices_paged(space, pages, requests, starts, cum, to, page_size);
    });
    space.fence();
    EXPECT_EQ(test::to_host(slots), Lens(8, -77777));
    return words;
  };
  EXPECT_EQ(refused(table, two, two, three, slots), not_refused);  // two chunks without tokens
  EXPECT_EQ(refused(table, two, three, three, slots), "chunk_starts: extent 3 where 2 is needed");
  EXPECT_EQ(refused(table, two, two, two, slots), "chunk_cum_seq_lens: extent 2 where 3 is needed");
  for (const std::int64_t page_size : {std::int64_t{-16}, std::int64_t{0}, two_to_31}) {
    EXPECT_EQ(refused(table, two, two, three, slots, page_size),
              "page_size: " + std::to_string(page_size) + " is outside [1, 2147483647]");
  }
  const auto by_columns =
      cp::PageTable<MemorySpace>(array.data(), Kokkos::LayoutStride(2, 1, 4, 2));
  EXPECT_EQ(refused(by_columns, two, two, three, slots),
            "req_to_page: stride 2 between the pages of a row where 1 is needed");
  EXPECT_EQ(refused(cp::page_table<MemorySpace>(array.data(), 2, 4, 3), two, two, three, slots),
            "req_to_page: row stride 3 is less than the 4 pages of a row");
  const auto many = static_cast<std::size_t>(two_to_31);
  EXPECT_EQ(refused(cp::page_table<MemorySpace>(array.data(), many, 4, 4), two, two, three, slots),
            "req_to_page.extent(0): 2147483648 is outside [0, 2147483647]");
  const auto too_many = cp::array_view<MemorySpace>(array.data(), many);
  EXPECT_EQ(refused(table, too_many, two, three, slots),
            "batch_size: 2147483648 is outside [0, 2147483647]");
  const auto astray = misaligned<std::int32_t>(2);
  const std::string words = ": its address is not a multiple of 4 bytes";
  EXPECT_EQ(refused(cp::page_table<MemorySpace>(astray.data(), 2, 4, 4), two, two, three, slots),
            "req_to_page" + words);
  EXPECT_EQ(refused(table, astray, two, three, slots), "req_pool_indices" + words);
  EXPECT_EQ(refused(table, two, astray, three, slots), "chunk_starts" + words);
  EXPECT_EQ(refused(table, two, two, misaligned<std::int32_t>(3), slots),
            "chunk_cum_seq_lens" + words);
  EXPECT_EQ(refused(table, two, two, three, astray), "chunk_kv_indices" + words);
  EXPECT_EQ(refused(table, two, two, three, misaligned<std::int64_t>(2)),
            "chunk_kv_indices: its address is not a multiple of 8 bytes");
}

}  // namespace
