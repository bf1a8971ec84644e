// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <fstream>

#include "batch.hpp"
#include "execution_spaces.hpp"
#include "recorder.hpp"

// Builds that count in 64 bits, or up to the last of 31. Those of the suites Size take gigabytes,
// and are compared with closed forms where they lie; --gtest_filter=-Size* leaves them out.
namespace {

namespace cp = chunked_prefill;
using Lens = std::vector<std::int32_t>;

/// The default space alone: the others would take the same memory again.
template <class Space>
class Size : public ::testing::Test {};
TYPED_TEST_SUITE(Size, ::testing::Types<Kokkos::DefaultExecutionSpace>, test::SpaceName);
template <class Space>
class LargeBounds : public ::testing::Test {};
TYPED_TEST_SUITE(LargeBounds, test::ExecutionSpaces, test::SpaceName);

constexpr std::int64_t two_to_31 = std::int64_t{1} << 31;
constexpr cp::Policy policies[] = {cp::Policy::equal, cp::Policy::packed};

/// Memory of `Space` that a test may take: on a host half of what is free, for others to live on.
template <class Space>
std::int64_t free_bytes() {
#ifdef KOKKOS_ENABLE_CUDA
  if (std::is_same_v<Space, Kokkos::Cuda>) {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return static_cast<std::int64_t>(free);
  }
#endif
#ifdef KOKKOS_ENABLE_HIP
  if (std::is_same_v<Space, Kokkos::HIP>) {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(hipMemGetInfo(&free, &total), hipSuccess);
    return static_cast<std::int64_t>(free);
  }
#endif
  if (!cp::impl::runs_on_host<Space>) return 0;  // not known
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    std::int64_t kibibytes = 0;
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024 / 2;
  }
  return 0;
}

/// Says how much memory is missing for `bytes`; empty where there is enough.
template <class Space>
std::string missing(std::int64_t bytes) {
  const std::int64_t free = free_bytes<Space>();
  if (bytes <= free) return "";
  return "needs " + std::to_string(bytes) + " bytes of " + Space::name() + " memory, of which " +
         std::to_string(free) + " may be taken";
}

template <class T, class MemorySpace>
cp::Array1D<T, MemorySpace> uninitialised(std::int64_t size) {
  return cp::Array1D<T, MemorySpace>(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "test::uninitialised"),
      static_cast<std::size_t>(size));
}

/// Page ids that no position predicts and that are the largest that `Slot` has slots for.
template <class Slot>
struct Pages {
  std::int64_t page_size;

  /// Page `page` of sequence `sequence`.
  KOKKOS_FUNCTION std::int64_t id(std::int64_t sequence, std::int64_t page) const {
    const std::int64_t last =
        sizeof(Slot) == sizeof(std::int64_t) ? INT32_MAX : two_to_31 / page_size - 1;
    return last - (page * 7 + sequence * 1000003) % 1000000;
  }
  KOKKOS_FUNCTION std::int64_t slot(std::int64_t sequence, std::int64_t position) const {
    return id(sequence, position / page_size) * page_size + position % page_size;
  }
};

/// Writes the row of each sequence.
template <class MemorySpace, class Slot>
struct WriteRow {
  cp::Array1D<std::int32_t, MemorySpace> page_ids;
  Pages<Slot> pages;
  std::int64_t sequence;
  std::int64_t begin;  ///< of the row in `page_ids`

  KOKKOS_FUNCTION void operator()(std::int64_t page) const {
    page_ids(static_cast<std::size_t>(begin + page)) =
        static_cast<std::int32_t>(pages.id(sequence, page));
  }
};

/// Counts the slots that are not as the definition says, of a batch of sequences that are all
/// `prefix_len` long.
template <class MemorySpace, class Slot>
struct WrongSlots {
  cp::Array1D<Slot, MemorySpace> slots;
  Pages<Slot> pages;
  std::int64_t batch_size;
  std::int64_t prefix_len;
  std::int64_t chunk_len;  ///< of the equal split; packed at grain 1: `prefix_len`

  static constexpr std::int64_t block = 1024;

  /// Of the slots [number * block, (number + 1) * block), page by page: a division a slot takes
  /// longer than the build on a host.
  KOKKOS_FUNCTION void operator()(std::int64_t number, std::int64_t& wrong) const {
    const auto size = static_cast<std::int64_t>(slots.extent(0));
    const std::int64_t end = Kokkos::min((number + 1) * block, size);
    for (std::int64_t flat = number * block; flat < end;) {
      // All loops before the last are full.
      const std::int64_t start = flat / (batch_size * chunk_len) * chunk_len;
      const std::int64_t len = Kokkos::min(chunk_len, prefix_len - start);
      const std::int64_t within = flat - batch_size * start;
      const std::int64_t position = start + within % len;
      const std::int64_t count = Kokkos::min(Kokkos::min(end - flat, len - within % len),
                                             pages.page_size - position % pages.page_size);
      const std::int64_t first = pages.slot(within / len, position);
      for (std::int64_t k = 0; k < count; ++k) {
        if (slots.data()[flat + k] != static_cast<Slot>(first + k)) ++wrong;
      }
      flat += count;
    }
  }
};

template <class Space>
using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;

/// A batch of `batch_size` sequences that are all `prefix_len` long: every number of its build
/// under both policies.
template <class Space, class Slot>
void sequences_of_one_length(std::int32_t batch_size, std::int32_t prefix_len,
                             std::int64_t chunk_capacity) {
  using MemorySpace = typename Space::memory_space;
  const std::int64_t page_size = 64;
  const std::int64_t total = std::int64_t{batch_size} * prefix_len;
  const std::int64_t row_pages = (prefix_len + page_size - 1) / page_size;
  if (const auto words = missing<Space>(total * static_cast<std::int64_t>(sizeof(Slot)) +
                                        batch_size * row_pages * 4 + (1 << 26));
      !words.empty()) {
    GTEST_SKIP() << words;
  }
  const Space space;
  const Pages<Slot> pages{page_size};
  const auto page_ids = uninitialised<std::int32_t, MemorySpace>(batch_size * row_pages);
  Lens rows;
  for (std::int32_t i = 0; i < batch_size; ++i) {
    rows.push_back(batch_size - 1 - i);
    Kokkos::parallel_for("test::write_row", Policy<Space>(space, 0, row_pages),
                         WriteRow<MemorySpace, Slot>{page_ids, pages, i, rows.back() * row_pages});
  }
  const Lens lens(static_cast<std::size_t>(batch_size), prefix_len);
  const auto device_lens = test::to_device<std::int32_t, MemorySpace>(lens);
  const auto device_rows = test::to_device<std::int32_t, MemorySpace>(rows);
  const auto width = static_cast<std::size_t>(row_pages);
  const cp::PagedPrefix prefix{
      device_lens, cp::page_table<MemorySpace>(page_ids.data(), rows.size(), width, width),
      device_rows, page_size};
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata;
  for (const auto policy : policies) {
    SCOPED_TRACE(policy == cp::Policy::equal ? "equal" : "packed");
    const bool equal = policy == cp::Policy::equal;
    const auto plan = cp::plan_chunks(lens, {.chunk_capacity = chunk_capacity, .policy = policy});
    EXPECT_EQ(plan.total_tokens(), total);
    cp::fill(space, plan, prefix, metadata);
    space.fence();
    const std::int64_t chunk_len = equal ? chunk_capacity / batch_size : prefix_len;
    std::int64_t wrong = -1;
    const WrongSlots<MemorySpace, Slot> wrong_slots{metadata.chunk_kv_indices(), pages, batch_size,
                                                    prefix_len, chunk_len};
    Kokkos::parallel_reduce("test::wrong_slots",
                            Policy<Space>(space, 0, (total - 1) / wrong_slots.block + 1),
                            wrong_slots, wrong);
    EXPECT_EQ(wrong, 0) << "of " << total << " slots";

    // Where each loop begins, on the host and on the device: its capacity after the last.
    const std::int64_t per_loop = equal ? chunk_len * batch_size : chunk_capacity;
    std::vector<std::int64_t> offsets{0};
    while (offsets.back() < total) {
      offsets.push_back(std::min(offsets.back() + per_loop, total));
    }
    EXPECT_EQ(test::to_host(metadata.offsets()), offsets);
    EXPECT_TRUE(std::ranges::equal(plan.offsets(), offsets));
    const auto cum = test::to_host_rows(metadata.chunks().cum_seq_lens);
    const auto starts = test::to_host_rows(metadata.chunks().starts);
    ASSERT_EQ(cum.size() + 1, offsets.size());
    for (std::size_t loop = 0; loop < cum.size(); ++loop) {
      EXPECT_EQ(metadata.chunk_kv_indices(static_cast<std::int32_t>(loop)).data(),
                metadata.chunk_kv_indices().data() + offsets[loop]);
      for (std::int64_t i = 0; i <= batch_size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::int64_t start = static_cast<std::int64_t>(loop) * chunk_len;
        const std::int64_t len = std::min<std::int64_t>(chunk_len, prefix_len - start);
        const std::int64_t through =
            equal ? i * len
                  : std::clamp(i * prefix_len, offsets[loop], offsets[loop + 1]) - offsets[loop];
        ASSERT_EQ(cum[loop][at], through) << "loop " << loop << ", sequence " << i;
        if (i == batch_size) continue;
        ASSERT_EQ(starts[loop][at],
                  equal ? start
                        : std::clamp<std::int64_t>(offsets[loop] - i * prefix_len, 0, prefix_len));
      }
    }
  }
}

// More than 2^31 tokens, the last loops beginning past them, none on a multiple of anything.
TYPED_TEST(Size, OffsetsPastTwoToThe31) {
  sequences_of_one_length<TypeParam, std::int32_t>(5, 450000001, 100000003);
}
TYPED_TEST(Size, OffsetsPastTwoToThe31Int64) {
  sequences_of_one_length<TypeParam, std::int64_t>(5, 450000001, 100000003);
}

// The longest prefix and the largest capacity, 2^31 - 1: one loop, written by one kernel.
TYPED_TEST(Size, LargestCapacity) {
  sequences_of_one_length<TypeParam, std::int32_t>(1, INT32_MAX, INT32_MAX);
}
TYPED_TEST(Size, LargestCapacityInt64) {
  sequences_of_one_length<TypeParam, std::int64_t>(1, INT32_MAX, INT32_MAX);
}

// A build that is captured for 2^31 tokens or about, of which the batch has a few: the rest costs
// no memory, and nothing of it is written.
template <class Space, class Slot>
void bounds_about_two_to_the_31(const Lens& lens, std::int32_t max_prefix_len,
                                const cp::PlanOptions& options) {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const auto batch_size = std::ssize(lens);
  const std::int64_t page_size = 64;
  const auto shape = cp::bounding_shape({.batch_size = batch_size,
                                         .max_prefix_len = max_prefix_len,
                                         .total_tokens = batch_size * max_prefix_len},
                                        options);
  const auto plan = cp::plan_chunks(lens, options);
  // Rows as wide as the bounds ask for, of which only the pages of the prefixes are there.
  const std::int64_t row_pages = (max_prefix_len - 1) / page_size + 1;
  const auto page_ids = uninitialised<std::int32_t, MemorySpace>(batch_size * row_pages);
  auto batch = test::make_batch(lens, options.chunk_capacity, page_size);
  batch.policy = options.policy;
  for (std::size_t row = 0; row < lens.size(); ++row) {
    const auto pages = test::to_device<std::int32_t, MemorySpace>(batch.req_to_page[row]);
    Kokkos::deep_copy(
        cp::array_view<MemorySpace>(page_ids.data() + static_cast<std::int64_t>(row) * row_pages,
                                    pages.extent(0)),
        pages);
  }
  const auto rows = test::to_device<std::int32_t, MemorySpace>(batch.req_pool_indices);
  const auto device_lens = test::to_device<std::int32_t, MemorySpace>(lens);
  const auto width = static_cast<std::size_t>(row_pages);
  const cp::PagedPrefix prefix{
      device_lens, cp::page_table<MemorySpace>(page_ids.data(), lens.size(), width, width), rows,
      page_size};

  const auto sizes = cp::required_sizes(shape);
  const auto live = static_cast<std::size_t>(plan.total_tokens());
  const cp::Array1D<Slot, MemorySpace> slots("test::slots", live + 100);
  Kokkos::deep_copy(slots, -77777);
  cp::ChunkedPrefillMetadata<MemorySpace, Slot> metadata(
      {.starts = uninitialised<std::int32_t, MemorySpace>(std::int64_t(sizes.starts)),
       .ends = uninitialised<std::int32_t, MemorySpace>(std::int64_t(sizes.starts)),
       .len_in_chunk = uninitialised<std::int32_t, MemorySpace>(std::int64_t(sizes.starts)),
       .cum_seq_lens = uninitialised<std::int32_t, MemorySpace>(std::int64_t(sizes.cum_seq_lens)),
       .offsets = uninitialised<std::int64_t, MemorySpace>(std::int64_t(sizes.offsets)),
       .chunk_kv_indices = cp::array_view<MemorySpace>(slots.data(), sizes.chunk_kv_indices)});
  cp::fill(space, shape, prefix, metadata);
  space.fence();
  metadata.resize_within(plan, shape);
  EXPECT_TRUE(test::read_back(plan, metadata) == test::oracle(batch));
  const auto written = test::to_host(slots);
  EXPECT_EQ(std::vector<Slot>(written.begin() + std::ptrdiff_t(live), written.end()),
            std::vector<Slot>(100, -77777));
}

TYPED_TEST(LargeBounds, OfFewTokens) {
  for (const auto policy : policies) {
    for (const std::int64_t capacity : {1 << 20, 500000003, INT32_MAX}) {
      const cp::PlanOptions options{.chunk_capacity = capacity, .policy = policy};
      for (const std::int32_t length : {0, 1, 100000}) {
        const Lens five{length, 0, 64, 1, 300};
        bounds_about_two_to_the_31<TypeParam, std::int32_t>({length}, INT32_MAX, options);
        bounds_about_two_to_the_31<TypeParam, std::int32_t>(five, 450000001, options);
        bounds_about_two_to_the_31<TypeParam, std::int64_t>(five, INT32_MAX, options);
      }
    }
  }
}

// The last positions that a sequence can have, by themselves.
template <class Space, class Slot>
void last_positions(std::int64_t page_size) {
  using MemorySpace = typename Space::memory_space;
  const Space space;
  const std::int32_t count = 1000;
  const std::int64_t last_page = (INT32_MAX - 1) / page_size;
  const std::int64_t first_page = (INT32_MAX - count) / page_size;
  const auto page_ids = uninitialised<std::int32_t, MemorySpace>(last_page + 1);
  Lens ids;
  for (std::int64_t page = first_page; page <= last_page; ++page) {
    ids.push_back(static_cast<std::int32_t>((page * 7 + 3) % 1000));
  }
  Kokkos::deep_copy(cp::array_view<MemorySpace>(page_ids.data() + first_page, ids.size()),
                    test::to_device<std::int32_t, MemorySpace>(ids));
  const auto width = static_cast<std::size_t>(last_page) + 1;
  const auto rows = test::to_device<std::int32_t, MemorySpace>(Lens{0});
  const auto starts = test::to_device<std::int32_t, MemorySpace>(Lens{INT32_MAX - count});
  const auto cum = test::to_device<std::int32_t, MemorySpace>(Lens{0, count});
  const cp::Array1D<Slot, MemorySpace> slots("test::slots", count);
  cp::create_chunked_cache_kv_indices_paged(
      space, cp::page_table<MemorySpace>(page_ids.data(), 1, width, width), rows, starts, cum,
      slots, page_size);
  space.fence();
  std::vector<Slot> expected;
  for (std::int64_t position = INT32_MAX - count; position < INT32_MAX; ++position) {
    const std::int64_t page_id = ids[static_cast<std::size_t>(position / page_size - first_page)];
    expected.push_back(static_cast<Slot>(page_id * page_size + position % page_size));
  }
  EXPECT_EQ(test::to_host(slots), expected) << "page_size " << page_size;
}

TYPED_TEST(LargeBounds, LastPositions) {
  for (const std::int64_t page_size : {64, 100, 1000, 1 << 20}) {
    last_positions<TypeParam, std::int32_t>(page_size);
    last_positions<TypeParam, std::int64_t>(page_size);
  }
}

// A page table of more than 2^33 bytes, of which the rows begin past 2^32 bytes and past 2^31
// elements. Only the pages of the prefixes are there.
template <class Space>
void page_table_past_32_bits() {
  using MemorySpace = typename Space::memory_space;
  constexpr std::int64_t row_stride = (std::int64_t{1} << 29) + 33;
  constexpr std::int64_t page_size = 16;
  const Lens rows{4, 0, 2};
  const Lens lens{1003, 5, 260};
  constexpr std::int64_t width = 64;  // pages of a row
  const std::int64_t size = 4 * row_stride + width;
  if (const auto words = missing<Space>(4 * size); !words.empty()) GTEST_SKIP() << words;
  const Space space;
  const auto page_ids = uninitialised<std::int32_t, MemorySpace>(size);
  test::Batch batch{.prefix_lens = lens,
                    .chunk_capacity = 300,
                    .page_size = page_size,
                    .req_to_page = test::Rows<std::int32_t>(5, Lens(width, -1)),
                    .req_pool_indices = rows};
  const Pages<std::int64_t> pages{page_size};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto sequence = static_cast<std::int64_t>(i);
    Kokkos::parallel_for(
        "test::write_row", Policy<Space>(space, 0, width),
        WriteRow<MemorySpace, std::int64_t>{page_ids, pages, sequence, rows[i] * row_stride});
    for (std::int64_t page = 0; page < width; ++page) {
      batch.req_to_page[static_cast<std::size_t>(rows[i])][static_cast<std::size_t>(page)] =
          static_cast<std::int32_t>(pages.id(sequence, page));
    }
  }
  const auto table = cp::page_table<MemorySpace>(page_ids.data(), 5, width, row_stride);
  const auto device_lens = test::to_device<std::int32_t, MemorySpace>(lens);
  const auto device_rows = test::to_device<std::int64_t, MemorySpace>(rows);
  const cp::PagedPrefix prefix{device_lens, table, device_rows, page_size};
  for (const auto policy : policies) {
    batch.policy = policy;
    const auto plan = cp::plan_chunks(lens, batch.options());
    cp::ChunkedPrefillMetadata<MemorySpace, std::int64_t> metadata;
    cp::fill(space, plan, prefix, metadata);
    space.fence();
    EXPECT_EQ(test::read_back(plan, metadata), test::oracle(batch));
    // The gather of one loop by itself, and the second of two kernels, read rows in the same way.
    const auto loop = metadata.chunk_kv_indices(0);
    const auto slots = uninitialised<std::int64_t, MemorySpace>(std::ssize(test::to_host(loop)));
    cp::create_chunked_cache_kv_indices_paged(space, table, device_rows, metadata.starts(0),
                                              metadata.cum_seq_lens(0), slots, page_size);
    space.fence();
    EXPECT_EQ(test::to_host(slots), test::to_host(loop));
  }
}

TYPED_TEST(Size, PageTablePast32Bits) { page_table_past_32_bits<TypeParam>(); }

/// Counts the entries of a chunk table of an equal split with a chunk length of 1 that are not as
/// the definition says. Sequence `long_ones` * k is k + 1 tokens shorter than there are loops, the
/// others have none.
template <class MemorySpace>
struct WrongEntries {
  cp::Chunks<MemorySpace> chunks;
  std::int64_t loops;
  std::int64_t batch_size;
  std::int64_t apart;  ///< the k-th long sequence is number `apart` * k, and loops - k tokens long

  KOKKOS_FUNCTION void operator()(std::int64_t at, std::int64_t& wrong) const {
    const std::int64_t loop = at / batch_size;
    const std::int64_t i = at % batch_size;
    // Those that are not over hold one token of the loop: all up to the one `loops - loop` long.
    const std::int64_t live = loops - loop;
    const std::int64_t before = Kokkos::min((i + apart - 1) / apart, live);
    const std::int64_t length =
        i % apart == 0 ? Kokkos::max(loops - i / apart, std::int64_t{0}) : 0;
    const std::int64_t len = loop < length ? 1 : 0;
    const auto entry = static_cast<std::size_t>(at);
    const bool right = chunks.starts.data()[entry] == loop &&
                       chunks.ends.data()[entry] == Kokkos::min(length, loop + 1) &&
                       chunks.len_in_chunk.data()[entry] == len &&
                       chunks.cum_seq_lens.data()[at + loop] == before &&
                       chunks.cum_seq_lens.data()[at + loop + 1] == before + len;
    if (!right) ++wrong;
  }
};

// A chunk table of more than 2^31 entries: 33,000 loops of 66,000 sequences.
template <class Space>
void table_past_two_to_the_31() {
  using MemorySpace = typename Space::memory_space;
  constexpr std::int64_t loops = 33000, batch_size = 66000, apart = 22000;
  static_assert(loops * batch_size > two_to_31);
  if (const auto words = missing<Space>(4 * 4 * loops * batch_size + (1 << 26)); !words.empty()) {
    GTEST_SKIP() << words;
  }
  Lens lens(batch_size, 0);
  for (std::int64_t k = 0; k < 3; ++k) {
    lens[static_cast<std::size_t>(apart * k)] = static_cast<std::int32_t>(loops - k);
  }
  const auto plan = cp::plan_chunks(lens, {.chunk_capacity = batch_size});
  ASSERT_EQ(plan.chunked_loop_num(), loops);
  const Space space;
  constexpr std::int64_t width = 1;  // page 0 of row 0, for all
  const auto pages = test::to_device<std::int32_t, MemorySpace>(Lens{0});
  const auto rows = test::to_device<std::int32_t, MemorySpace>(Lens(batch_size, 0));
  const auto device_lens = test::to_device<std::int32_t, MemorySpace>(lens);
  const cp::PagedPrefix prefix{
      device_lens, cp::page_table<MemorySpace>(pages.data(), 1, width, width), rows, loops};
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::fill(space, plan, prefix, metadata);
  space.fence();
  std::int64_t wrong = -1;
  Kokkos::parallel_reduce("test::wrong_entries", Policy<Space>(space, 0, loops * batch_size),
                          WrongEntries<MemorySpace>{metadata.chunks(), loops, batch_size, apart},
                          wrong);
  EXPECT_EQ(wrong, 0);
  const auto slots = test::to_host(metadata.chunk_kv_indices());
  ASSERT_EQ(slots.size(), 3 * loops - 3);
  EXPECT_EQ(slots[3], 1);  // three sequences a loop, until they are over
  EXPECT_EQ(slots.back(), loops - 1);
}

TYPED_TEST(Size, TablePastTwoToThe31) { table_past_two_to_the_31<TypeParam>(); }

// 8,192 loops of 128 sequences, each loop with a token of every sequence, and with none of most.
template <class Space>
void many_loops_of_many_sequences() {
  for (const auto policy : policies) {
    auto batch = test::make_batch(Lens(128, 8192), 128, 64);
    batch.policy = policy;
    EXPECT_EQ(cp::plan_chunks(batch.prefix_lens, batch.options()).chunked_loop_num(), 8192);
    EXPECT_TRUE((test::build<Space>(batch)) == test::oracle(batch));
    batch = test::make_batch(Lens(128, 0), 128, 64);
    batch.prefix_lens[77] = policy == cp::Policy::equal ? 8192 : 8192 * 128;
    batch = test::make_batch(batch.prefix_lens, 128, 64);
    batch.policy = policy;
    EXPECT_EQ(cp::plan_chunks(batch.prefix_lens, batch.options()).chunked_loop_num(), 8192);
    EXPECT_TRUE((test::build<Space>(batch)) == test::oracle(batch));
  }
}

TYPED_TEST(LargeBounds, ManyLoopsOfManySequences) { many_loops_of_many_sequences<TypeParam>(); }

}  // namespace
