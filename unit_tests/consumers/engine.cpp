// SPDX-License-Identifier: MIT
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

// What a serving engine writes: memory of its own behind raw pointers, an execution-space instance
// of its own, one metadata object for all steps.

namespace cp = chunked_prefill;
using Space = Kokkos::DefaultExecutionSpace;
using Memory = Space::memory_space;

namespace {

constexpr std::size_t max_requests = 8, max_pages = 16, row_stride = 20;
constexpr std::int64_t page_size = 64;

template <class T>
class EngineArray {
 public:
  explicit EngineArray(const std::vector<T>& values)
      : m_size(values.size()),
        m_data(static_cast<T*>(Kokkos::kokkos_malloc<Memory>(m_size * sizeof(T)))) {
    Kokkos::deep_copy(cp::array_view<Memory>(m_data, m_size),
                      cp::Array1D<const T, Kokkos::HostSpace>(values.data(), m_size));
  }
  ~EngineArray() { Kokkos::kokkos_free<Memory>(m_data); }
  EngineArray(const EngineArray&) = delete;
  EngineArray& operator=(const EngineArray&) = delete;
  [[nodiscard]] T* data() const { return m_data; }
  [[nodiscard]] auto view() const { return cp::array_view<Memory>(m_data, m_size); }

 private:
  std::size_t m_size;
  T* m_data;
};

template <class View>
auto on_host(const View& view) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return std::vector<typename View::non_const_value_type>(host.data(), host.data() + host.size());
}

/// One prefill step; the number of wrong elements.
int step(const Space& space, const std::vector<std::int32_t>& prefix_lens,
         const std::vector<std::int32_t>& rows, const std::vector<std::int32_t>& pages,
         cp::ChunkedPrefillMetadata<Memory, std::int64_t>& metadata) {
  const EngineArray<std::int32_t> device_lens(prefix_lens), device_rows(rows), device_pages(pages);
  const cp::PagedPrefix prefix{
      device_lens.view(),
      cp::page_table<Memory>(device_pages.data(), max_requests, max_pages, row_stride),
      device_rows.view(), page_size};
  const auto plan = cp::plan_chunks(prefix_lens, {.chunk_capacity = 1024});
  cp::fill(space, plan, prefix, metadata);
  space.fence();

  int wrong = metadata.chunked_loop_num() == plan.chunked_loop_num() ? 0 : 1;
  for (std::int32_t loop = 0; loop < plan.chunked_loop_num(); ++loop) {
    const auto slots = on_host(metadata.chunk_kv_indices(loop));
    const auto sums = on_host(metadata.cum_seq_lens(loop));
    if (std::cmp_not_equal(slots.size(), plan.tokens(loop))) return wrong + 1;
    std::size_t k = 0;
    for (std::size_t i = 0; i < prefix_lens.size(); ++i) {
      if (std::cmp_not_equal(k, sums[i])) ++wrong;
      const std::int64_t start = std::int64_t{loop} * plan.chunk_len();
      const std::int64_t end = std::min<std::int64_t>(prefix_lens[i], start + plan.chunk_len());
      for (std::int64_t position = start; position < end; ++position, ++k) {
        const auto row = static_cast<std::size_t>(rows[i]) * row_stride;
        const auto page = pages[row + static_cast<std::size_t>(position / page_size)];
        if (slots.at(k) != page * page_size + position % page_size) ++wrong;
      }
    }
  }
  return wrong;
}

}  // namespace

int main() {
  const Kokkos::ScopeGuard kokkos;
  const Space space;
  std::vector<std::int32_t> pages(max_requests * row_stride);
  std::iota(pages.rbegin(), pages.rend(), 0);
  cp::ChunkedPrefillMetadata<Memory, std::int64_t> metadata;
  const int wrong = step(space, {256, 512, 768, 1024}, {2, 0, 7, 1}, pages, metadata) +
                    step(space, {0, 1000}, {3, 5}, pages, metadata) +
                    step(space, {}, {}, pages, metadata);
  std::printf("chunked_prefill %s on %s: %d wrong\n", cp::version, Space::name(), wrong);
  return wrong == 0 ? 0 : 1;
}
