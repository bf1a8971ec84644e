// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.hpp"

namespace perf {

namespace cp = chunked_prefill;

template <class Space>
using Slots = cp::Array1D<std::int32_t, typename Space::memory_space>;

template <class Space>
Slots<Space> make_slots(const std::string& label, std::int64_t count) {
  return Slots<Space>(Kokkos::view_alloc(Kokkos::WithoutInitializing, label),
                      static_cast<std::size_t>(count));
}

/// First `count` numbers of a permutation of [0, size) that is the same in every run.
inline std::vector<std::int32_t> shuffled(std::size_t size, std::size_t count) {
  std::vector<std::int32_t> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(2));
  numbers.resize(count);
  return numbers;
}

/// A copy of a host array in the memory of `Space`.
template <class Space>
Slots<Space> copied(const std::vector<std::int32_t>& host) {
  const auto copy = make_slots<Space>("perf::input", static_cast<std::int64_t>(host.size()));
  Kokkos::deep_copy(copy, cp::array_view<Kokkos::HostSpace>(host.data(), host.size()));
  return copy;
}

/// A case under one policy, ready to be measured: inputs in the memory of `Space`, a warm plan and
/// warm metadata whose first build has been verified.
template <class Space>
class Workload {
 public:
  using memory_space = typename Space::memory_space;

  Workload(const Case& of, const Policy& policy)
      : m_case(of),
        m_options(policy.options_for(of)),
        m_plan(cp::plan_chunks(of.prefix_lens, m_options)),
        m_pages_per_row(static_cast<std::size_t>((m_plan.max_prefix_len() - 1) / of.page_size + 4)),
        m_requests(of.prefix_lens.size() + 5),
        m_host_pages(shuffled(m_requests * m_pages_per_row, m_requests * m_pages_per_row)),
        m_host_rows(shuffled(m_requests, of.prefix_lens.size())),
        m_prefix_lens(copied<Space>(of.prefix_lens)),
        m_pages(copied<Space>(m_host_pages)),
        m_rows(copied<Space>(m_host_rows)) {
    m_metadata.resize(m_plan);
    Kokkos::deep_copy(m_metadata.chunk_kv_indices(), -1);
    fill(space);
    verify();
  }

  /// Plans the batch into the same plan object.
  void plan() { cp::plan_chunks(m_case.prefix_lens, m_options, m_plan); }

  /// Enqueues one fill of the same metadata on `on`.
  void fill(const Space& on) { cp::fill(on, m_plan, prefix(), m_metadata); }
  /// The same with a check of the inputs on the device.
  void checked_fill(const Space& on) {
    cp::fill(on, m_plan, prefix(), m_metadata, m_case.prefix_lens, m_check);
  }

  [[nodiscard]] const std::vector<std::int32_t>& prefix_lens() const { return m_case.prefix_lens; }
  [[nodiscard]] const cp::ChunkPlan& planned() const { return m_plan; }
  [[nodiscard]] std::int64_t bytes() const {
    return m_plan.total_tokens() * std::int64_t{sizeof(std::int32_t)};
  }

  const Space space;

 private:
  [[nodiscard]] auto prefix() const {
    const auto table =
        cp::page_table<memory_space>(m_pages.data(), m_requests, m_pages_per_row, m_pages_per_row);
    return cp::PagedPrefix{m_prefix_lens, table, m_rows, m_case.page_size};
  }

  /// Walks the build as attention would, one token at a time: under any policy the chunks of a
  /// sequence follow each other and cover its prefix, and each slot is the one that the page table
  /// gives. Throws at the first difference, so that no wrong result is ever timed.
  void verify() const {
    const auto on_host = [](const auto& view) {
      return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    };
    space.fence("perf::verify");
    const auto chunks = m_metadata.chunks();
    const auto starts = on_host(chunks.starts), ends = on_host(chunks.ends),
               lens = on_host(chunks.len_in_chunk), cum = on_host(chunks.cum_seq_lens);
    const auto offsets = on_host(m_metadata.offsets());
    const auto slots = on_host(m_metadata.chunk_kv_indices());

    const std::size_t batch_size = m_case.prefix_lens.size();
    std::vector<std::int32_t> covered(batch_size, 0);
    std::size_t flat = 0;
    for (std::size_t loop = 0; loop < starts.extent(0); ++loop) {
      expect(offsets(loop) == static_cast<std::int64_t>(flat), "offsets", loop, 0);
      std::int32_t in_loop = 0;
      for (std::size_t seq = 0; seq < batch_size; ++seq) {
        const std::int32_t len = lens(loop, seq);
        expect(cum(loop, seq) == in_loop, "cum_seq_lens", loop, seq);
        expect(len == std::max(0, ends(loop, seq) - starts(loop, seq)), "len_in_chunk", loop, seq);
        if (len == 0) continue;
        expect(starts(loop, seq) == covered[seq], "starts", loop, seq);
        covered[seq] = ends(loop, seq);
        expect(covered[seq] <= m_case.prefix_lens[seq], "ends", loop, seq);
        for (std::int64_t position = starts(loop, seq); position < covered[seq]; ++position) {
          expect(slots(flat++) == slot(seq, position), "chunk_kv_indices", loop, seq);
        }
        in_loop += len;
      }
      expect(cum(loop, batch_size) == in_loop, "cum_seq_lens", loop, batch_size);
      expect(in_loop <= m_case.chunk_capacity, "chunk_capacity", loop, batch_size);
    }
    expect(covered == m_case.prefix_lens, "prefix_lens", starts.extent(0), batch_size);
  }

  [[nodiscard]] std::int64_t slot(std::size_t seq, std::int64_t position) const {
    const std::size_t row = static_cast<std::size_t>(m_host_rows[seq]) * m_pages_per_row;
    return m_host_pages[row + static_cast<std::size_t>(position / m_case.page_size)] *
               m_case.page_size +
           position % m_case.page_size;
  }

  void expect(bool right, const char* array, std::size_t loop, std::size_t seq) const {
    if (right) return;
    throw std::runtime_error(m_case.name + ": wrong " + array + " in loop " + std::to_string(loop) +
                             ", sequence " + std::to_string(seq));
  }

  const Case& m_case;
  cp::PlanOptions m_options;
  cp::ChunkPlan m_plan;
  std::size_t m_pages_per_row;  ///< a few more than the longest prefix needs
  std::size_t m_requests;       ///< a few more than the batch has sequences
  std::vector<std::int32_t> m_host_pages;
  std::vector<std::int32_t> m_host_rows;
  Slots<Space> m_prefix_lens;
  Slots<Space> m_pages;
  Slots<Space> m_rows;
  cp::ChunkedPrefillMetadata<memory_space, std::int32_t> m_metadata;
  cp::DeviceCheck<memory_space> m_check;
};

}  // namespace perf
