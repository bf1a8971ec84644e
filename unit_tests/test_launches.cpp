// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "batch.hpp"
#include "execution_spaces.hpp"
#include "recorder.hpp"

// What a build costs, as Kokkos Tools sees it.

namespace {

namespace cp = chunked_prefill;
namespace tools = Kokkos::Tools::Experimental;

using test::Events;
using test::Recorder;

template <class Space>
class Launches : public ::testing::Test {};
TYPED_TEST_SUITE(Launches, test::ExecutionSpaces, test::SpaceName);

using Names = std::vector<std::string>;
const Names one_kernel = {"chunked_prefill::fused_fill"};
const Names two_kernels = {"chunked_prefill::chunk_rows", "chunked_prefill::kv_indices"};

/// Where a kernel of one team runs that is enqueued on `space`.
template <class Space>
std::uint32_t device_of_one_team(const Space& space) {
#ifdef KOKKOS_ENABLE_SERIAL
  // A thread of the host writes it: the caller's, with no others to wake and to wait for.
  if (cp::impl::runs_on_host<Space>) return tools::device_id(Kokkos::Serial());
#endif
  return tools::device_id(space);
}

/// A build of `batch` on warm buffers is `kernels` on `space`, and nothing else.
/// \param one_team whether a host writes it with one team.
template <class Space>
void expect_kernels(const Space& space, const test::Batch& batch, const Names& kernels,
                    bool one_team = false) {
  using MemorySpace = typename Space::memory_space;
  const test::DeviceBatch<MemorySpace> device(batch);
  const cp::PlanOptions options = batch.options();
  cp::ChunkPlan plan = cp::plan_chunks(batch.prefix_lens, options);
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::fill(space, plan, device.prefix(), metadata);
  space.fence();

  const Recorder recorder;
  cp::plan_chunks(batch.prefix_lens, options, plan);
  cp::fill(space, plan, device.prefix(), metadata);
  const Events events = recorder.events();
  EXPECT_EQ(events.kernels, kernels);
  const std::uint32_t expected_device =
      one_team ? device_of_one_team(space) : tools::device_id(space);
  EXPECT_EQ(events.devices, std::vector<std::uint32_t>(kernels.size(), expected_device));
  EXPECT_EQ(events.fences, Names{});
  EXPECT_EQ(events.allocations, Names{});
  EXPECT_EQ(events.copies, Names{});
  space.fence();
  EXPECT_EQ(recorder.events().fences.size(), 1u) << "the recorder does not see fences";
  EXPECT_EQ(test::read_back(plan, metadata), test::oracle(batch));
}

// One loop or many, one sequence or many: one kernel on the caller's instance and nothing else, two
// for batches that are too long to be read by every team. (The caller's thread itself writes what
// is one team's on a host.)
TYPED_TEST(Launches, AtMostTwoKernelsOnTheInstanceAndNothingElse) {
  const auto instances = test::two_instances<TypeParam>();
  for (const TypeParam& space : {instances[0], instances[1]}) {
    expect_kernels(space, test::make_batch({256, 512, 768, 1024}, 1024, 64), one_kernel, true);
    expect_kernels(space, test::make_batch({5}, 8, 1), one_kernel, true);
    expect_kernels(space, test::make_batch({3000, 1}, 2, 16), one_kernel, true);
    if (space.concurrency() == 1) continue;  // a host with one thread has one team
    expect_kernels(space, test::make_batch({9000, 1}, 2, 16), one_kernel);
    expect_kernels(space, test::make_batch(std::vector<std::int32_t>(500, 40), 5000, 64),
                   one_kernel);
    expect_kernels(space, test::make_batch(std::vector<std::int32_t>(512, 20), 5000, 64),
                   one_kernel);
    expect_kernels(space, test::make_batch(std::vector<std::int32_t>(513, 20), 5000, 64),
                   two_kernels);
    auto packed = test::make_batch({256, 512, 768, 1024}, 1024, 64);
    packed.policy = cp::Policy::packed;
    expect_kernels(space, packed, one_kernel, true);
    packed = test::make_batch(std::vector<std::int32_t>(513, 20), 100, 64);
    packed.policy = cp::Policy::packed;
    expect_kernels(space, packed, two_kernels);
  }
}

TEST(Fused, WhereItEnds) {
  const auto fused = [](std::int32_t batch_size, std::int32_t max_prefix_len) {
    return cp::impl::can_fuse({.batch_size = batch_size, .max_prefix_len = max_prefix_len});
  };
  EXPECT_TRUE(fused(512, 4194303));
  EXPECT_FALSE(fused(512, 4194304));  // 2^31 tokens
  EXPECT_FALSE(fused(513, 1));
  EXPECT_TRUE(fused(1, INT32_MAX));
  EXPECT_FALSE(fused(2, INT32_MAX));
  const auto packed_fused = [](std::int32_t grain) {
    return cp::impl::can_fuse({.policy = cp::Policy::packed,
                               .grain = grain,
                               .batch_size = 512,
                               .max_prefix_len = 4194302});
  };
  EXPECT_TRUE(packed_fused(4194302));
  EXPECT_FALSE(packed_fused(4194301));  // padded to twice that
}

// A check is four kernels more, and on a device a copy of the lengths to it; it waits for nothing.
TYPED_TEST(Launches, OfACheckedBuild) {
  using MemorySpace = typename TypeParam::memory_space;
  const TypeParam space;
  const auto batch = test::make_batch({256, 512, 768, 1024}, 1024, 64);
  const test::DeviceBatch<MemorySpace> device(batch);
  const cp::ChunkPlan plan = cp::plan_chunks(batch.prefix_lens, batch.options());
  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  cp::DeviceCheck<MemorySpace> check;
  cp::fill(space, plan, device.prefix(), metadata, batch.prefix_lens, check);
  space.fence();
  const Recorder recorder;
  cp::fill(space, plan, device.prefix(), metadata, batch.prefix_lens, check);
  const Events events = recorder.events();
  EXPECT_EQ(events.kernels, (Names{"chunked_prefill::check_batch", "chunked_prefill::check_pages",
                                   "chunked_prefill::admit_lens", "chunked_prefill::fused_fill",
                                   "chunked_prefill::drop_faulty"}));
  EXPECT_EQ(events.fences, Names{});
  EXPECT_EQ(events.allocations, Names{});
  EXPECT_EQ(events.copies.size(), cp::impl::runs_on_host<TypeParam> ? 0u : 1u);
  EXPECT_EQ(check.first_fault(space), std::nullopt);
}

TYPED_TEST(Launches, NothingWithoutLoops) {
  using MemorySpace = typename TypeParam::memory_space;
  for (const std::vector<std::int32_t>& lens :
       {std::vector<std::int32_t>{}, std::vector<std::int32_t>{0, 0}}) {
    const auto batch = test::make_batch(lens, 1024, 64);
    const test::DeviceBatch<MemorySpace> device(batch);
    const TypeParam space;
    cp::ChunkedPrefillMetadata<MemorySpace> metadata;
    metadata.reserve(cp::required_sizes(2, 0, 0));
    const Recorder recorder;
    cp::fill(space, cp::plan_chunks(batch.prefix_lens), device.prefix(), metadata);
    EXPECT_TRUE(recorder.events().kernels.empty());
    EXPECT_TRUE(recorder.events().fences.empty());
    EXPECT_TRUE(recorder.events().allocations.empty());
    EXPECT_EQ(metadata.chunked_loop_num(), 0);
  }
}

// The steps that can be called alone are one kernel each.
TYPED_TEST(Launches, OneKernelAStep) {
  using MemorySpace = typename TypeParam::memory_space;
  const TypeParam space;
  const auto batch = test::make_batch({100, 30}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  const auto prefix = device.prefix();
  const auto chunks = cp::chunking(space, device.prefix_lens, 4, 32);
  const cp::Array1D<std::int32_t, MemorySpace> slots("test::slots", 62);
  const auto gather = [&] {
    cp::create_chunked_cache_kv_indices_paged(
        space, prefix.req_to_page, prefix.req_pool_indices,
        cp::array_view<MemorySpace>(chunks.starts.data(), 2),
        cp::array_view<MemorySpace>(chunks.cum_seq_lens.data(), 3), slots, 16);
  };
  gather();  // what Kokkos allocates for itself at a first launch is there now
  space.fence();
  const Recorder recorder;
  cp::chunking(space, device.prefix_lens, 32, chunks);
  gather();
  EXPECT_EQ(recorder.events().kernels, two_kernels);
  EXPECT_TRUE(recorder.events().fences.empty());
  EXPECT_TRUE(recorder.events().allocations.empty());
}

// Memory that the library allocates says whose it is.
TYPED_TEST(Launches, EveryLabelCarriesThePrefix) {
  using MemorySpace = typename TypeParam::memory_space;
  const TypeParam space;
  const auto batch = test::make_batch({100, 30}, 64, 16);
  const test::DeviceBatch<MemorySpace> device(batch);
  cp::ChunkedPrefillMetadata<MemorySpace> first;
  (void)cp::get_chunks_paged(space, device.prefix(), batch.prefix_lens, {.chunk_capacity = 64},
                             first);
  space.fence();  // what Kokkos allocates for itself at a first launch is there now

  cp::ChunkedPrefillMetadata<MemorySpace> metadata;
  const Recorder recorder;
  const auto built = cp::get_chunks_paged(space, device.prefix(), batch.prefix_lens,
                                          {.chunk_capacity = 64}, metadata);
  const Events events = recorder.events();
  EXPECT_EQ(events.kernels.size(), 2u);       // one on the device, one for the host's twin
  EXPECT_EQ(events.allocations.size(), 10u);  // six buffers, four tables of the host's twin
  for (const auto& names : {events.kernels, events.allocations}) {
    for (const auto& name : names) EXPECT_TRUE(name.starts_with("chunked_prefill::")) << name;
  }
  space.fence();
}

}  // namespace
