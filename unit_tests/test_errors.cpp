// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "batch.hpp"

// Each host precondition, by the words of its refusal. They are checked before any kernel, so one
// execution space stands for all.

namespace {

namespace cp = chunked_prefill;
using Space = Kokkos::DefaultExecutionSpace;
using MemorySpace = Space::memory_space;
using Lens = std::vector<std::int32_t>;

const std::string not_refused = "not refused";

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const cp::Error& error) {
    return error.what();
  }
  return not_refused;
}

TEST(Errors, Capacity) {
  const auto capacity = [](std::int64_t size, std::int64_t multiplier) {
    return refusal([&] {
      (void)cp::get_max_chunk_capacity(
          {.chunked_prefill_size = size, .mla_chunk_multiplier = multiplier});
    });
  };
  EXPECT_EQ(capacity(-1, 4), "chunked_prefill_size: -1 is not positive");
  EXPECT_EQ(capacity(8192, 0), "mla_chunk_multiplier: 0 is not positive");
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
  EXPECT_EQ(plan_refusal({5, 5, 5}, 2),
            "chunk_capacity: 2 tokens cannot be split equally among 3 sequences (batch_size)");
  EXPECT_EQ(plan_refusal({3, INT32_MAX}, 2),
            "chunk_capacity: 2 needs 2147483647 loops for 2147483647 tokens");
  EXPECT_EQ(plan_refusal({7, 3, -1, -2}, 100), "prefix_lens[2]: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] {
              (void)cp::plan_chunks(std::vector<std::int64_t>{1, std::int64_t{1} << 31});
            }),
            "prefix_lens[1]: 2147483648 is outside [0, 2147483647]");
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
template <class Slot = std::int32_t, class Spoil>
std::string fill_refusal(const Spoil& spoil) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  auto prefix = device.prefix();
  spoil(prefix);
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata;
  const auto words = refusal([&] {
    cp::fill(Space(), cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 64}), prefix, metadata);
  });
  if (words != not_refused) {
    EXPECT_EQ(metadata.chunked_loop_num(), 0) << "written before it was refused";
  }
  Kokkos::fence();
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
}

// Slots that int32 cannot hold are refused where the cache's size is known. 33,554,432 pages of 64
// tokens end at the last int32 slot; one more does not.
TEST(Errors, SlotsThatDoNotFit) {
  const auto with_pages = [](std::int64_t num_pages) {
    return [num_pages](auto& prefix) {
      prefix.page_size = 64;
      prefix.num_pages = num_pages;
    };
  };
  EXPECT_EQ(fill_refusal<std::int32_t>(with_pages(33554432)), not_refused);
  EXPECT_EQ(fill_refusal<std::int32_t>(with_pages(33554433)),
            "num_pages: 33554433 pages of page_size 64 reach slot 2147483711, int32 slots end at "
            "2147483647; use int64 slots");
  EXPECT_EQ(fill_refusal<std::int64_t>(with_pages(33554433)), not_refused);
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
    return refusal([&] { cp::fill(Space(), plan, device.prefix(), metadata); });
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

// An engine's pointer need not be aligned to the elements it is used for.
TEST(Errors, MisalignedBuffer) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto plan = cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 64});
  const auto array = [](std::size_t size) {
    return cp::Array1D<std::int32_t, MemorySpace>("test::buffer", size);
  };
  const cp::Array1D<std::int64_t, MemorySpace> slots("test::slots", 165);
  auto* const inside = reinterpret_cast<std::int64_t*>(
      reinterpret_cast<std::int32_t*>(slots.data()) + 1);  // NOLINT: misaligned on purpose
  cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t> metadata(
      {array(8), array(8), array(8), array(12),
       cp::Array1D<std::int64_t, MemorySpace>("test::offsets", 5),
       cp::array_view<MemorySpace>(inside, 164)});
  EXPECT_EQ(refusal([&] { cp::fill(Space(), plan, device.prefix(), metadata); }),
            "buffers.chunk_kv_indices: its address is not a multiple of 8 bytes");
}

TEST(Errors, MisalignedInputs) {
  const auto batch = test::make_batch({100, 64}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto plan = cp::plan_chunks(batch.prefix_lens, {.chunk_capacity = 64});
  const cp::Array1D<std::int64_t, MemorySpace> words("test::words", 4);
  const auto* const inside = reinterpret_cast<const std::int32_t*>(
      reinterpret_cast<const char*>(words.data()) + 2);  // NOLINT: misaligned on purpose
  const auto misaligned = cp::array_view<MemorySpace>(inside, 2);
  const auto table = device.prefix().req_to_page;
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  const auto filled = [&](const auto& prefix) {
    return refusal([&] { cp::fill(Space(), plan, prefix, metadata); });
  };
  EXPECT_EQ(filled(cp::PagedPrefix{misaligned, table, device.req_pool_indices, 16}),
            "prefix_lens: its address is not a multiple of 4 bytes");
  EXPECT_EQ(filled(cp::PagedPrefix{device.prefix_lens, table, misaligned, 16}),
            "req_pool_indices: its address is not a multiple of 4 bytes");
  EXPECT_EQ(filled(cp::PagedPrefix{device.prefix_lens, cp::page_table<MemorySpace>(inside, 2, 1, 1),
                                   device.req_pool_indices, 16}),
            "req_to_page: its address is not a multiple of 4 bytes");
}

TEST(Errors, SizesBeyondMemory) {
  cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t> metadata;
  EXPECT_EQ(refusal([&] { metadata.reserve({.chunk_kv_indices = std::size_t{1} << 61}); }),
            "sizes.chunk_kv_indices: 2305843009213693952 is beyond 1152921504606846975");
}

TEST(Errors, RequiredSizes) {
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(-1, 0, 0); }),
            "batch_size: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(1, -1, 0); }),
            "chunked_loop_num: -1 is outside [0, 2147483647]");
  EXPECT_EQ(refusal([] { (void)cp::required_sizes(1, 1, -1); }),
            "total_tokens: -1 is outside [0, 2147483647]");
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

TEST(Errors, Steps) {
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
  auto chunks = cp::chunking(space, lens, 2, 4);
  chunks.cum_seq_lens = chunks.ends;
  EXPECT_EQ(refusal([&] { cp::chunking(space, lens, 4, chunks); }),
            "chunks.cum_seq_lens: extents (2, 2) where (2, 3) are needed");

  const auto gather = [&](std::size_t starts, std::size_t cum, std::int64_t page_size) {
    const cp::Array1D<std::int32_t, MemorySpace> array("test::array", 8);
    return refusal([&] {
      cp::create_chunked_cache_kv_indices_paged(
          space, cp::page_table<MemorySpace>(array.data(), 2, 4, 4),
          cp::array_view<MemorySpace>(array.data(), 2),
          cp::array_view<MemorySpace>(array.data(), starts),
          cp::array_view<MemorySpace>(array.data(), cum), array, page_size);
    });
  };
  EXPECT_EQ(gather(3, 3, 16), "chunk_starts: extent 3 where 2 is needed");
  EXPECT_EQ(gather(2, 2, 16), "chunk_cum_seq_lens: extent 2 where 3 is needed");
  EXPECT_EQ(gather(2, 3, -16), "page_size: -16 is outside [1, 2147483647]");
  space.fence();
}

}  // namespace
