// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/spaces.hpp>
#include <chunked_prefill/paged_prefix.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "batch.hpp"

// What the sources that use Kokkos share.

namespace chunked_prefill::cli {

/// Calls `f.template operator()<Space>()` for each execution space that Kokkos was built with.
template <class F>
void for_each_execution_space(const F& f) {
#define CHUNKED_PREFILL_CALL(F, SPACE) F.template operator()<SPACE>();
  CHUNKED_PREFILL_FOR_EACH_SPACE(CHUNKED_PREFILL_CALL, f)
#undef CHUNKED_PREFILL_CALL
}

/// A copy of `values` where `MemorySpace` can reach them; the values themselves where it can
/// already.
template <class MemorySpace, class T>
auto on_device(const std::vector<T>& values) {
  return Kokkos::create_mirror_view_and_copy(
      MemorySpace(), array_view<Kokkos::HostSpace>(values.data(), values.size()));
}

template <class To, class View>
std::vector<To> to_host(const View& device) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), device);
  return std::vector<To>(host.data(), host.data() + host.size());
}

/// A batch in the memory of an execution space; it must outlive this object, which may hold no
/// copy.
template <class MemorySpace>
class DeviceBatch {
 public:
  DeviceBatch() = default;
  explicit DeviceBatch(const Batch& batch)
      : m_prefix_lens(on_device<MemorySpace>(batch.prefix_lens)),
        m_page_ids(on_device<MemorySpace>(batch.req_to_page)),
        m_req_pool_indices(on_device<MemorySpace>(batch.req_pool_indices)),
        m_max_requests(batch.max_requests),
        m_max_pages(batch.max_pages),
        m_page_size(batch.page_size) {}

  [[nodiscard]] auto prefix() const {
    return PagedPrefix{
        m_prefix_lens,
        page_table<MemorySpace>(m_page_ids.data(), m_max_requests, m_max_pages, m_max_pages),
        m_req_pool_indices, m_page_size};
  }

 private:
  template <class T>
  using Input = decltype(on_device<MemorySpace>(std::vector<T>()));

  Input<std::int32_t> m_prefix_lens, m_page_ids;
  Input<std::int64_t> m_req_pool_indices;
  std::size_t m_max_requests = 0, m_max_pages = 0;
  std::int64_t m_page_size = 1;
};

}  // namespace chunked_prefill::cli
