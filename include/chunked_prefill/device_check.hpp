// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/fault_record.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace chunked_prefill {

/// What a checked build found wrong in its inputs on the device.
struct DeviceFault {
  /// The array at fault.
  enum class Array { prefix_lens, req_pool_indices, req_to_page };
  Array array = Array::prefix_lens;
  /// In the batch; -1 where it is the tokens of all sequences together.
  std::int32_t sequence = 0;
  /// Of a page: the first of the tokens on it, counted among those of the sequence that are in
  /// this cache (the rank's own). 0 otherwise.
  std::int64_t position = 0;
  /// The length, row, page id or, of all sequences together, number of tokens that was read.
  std::int64_t value = 0;
  /// What it had to be: [least, most].
  std::int64_t least = 0;
  std::int64_t most = 0;

  /// One line that says so, such as `req_to_page: page id -1 at position 128 of sequence 3 is not
  /// in [0, 999]`.
  [[nodiscard]] std::string message() const;

  friend bool operator==(const DeviceFault&, const DeviceFault&) = default;
};

namespace impl {
[[nodiscard]] DeviceFault device_fault(const FaultRecord& record);
}  // namespace impl

/// Opt-in check of what only the device can see: give one to `fill` and ask it for the first fault
/// when you next wait for the device.
///
///     DeviceCheck<Memory> check;                                   // once
///     fill(space, plan, prefix, metadata, prefix_lens_host, check);  // asynchronous, as without
///     // ... more work on space, more builds
///     if (const auto fault = check.first_fault(space)) log(fault->message());
///
/// Checked are, sequence after sequence: its length on the device, which is the plan's (of a build
/// for a shape: within the shape's bounds); where it is not empty, its row, which `req_to_page`
/// has; and the page ids of its prefix, which are not negative and below `prefix.num_pages` or,
/// where that is 0, below the first page whose slots do not fit the slot type. Nothing past a
/// prefix is looked at.
///
/// A build in which a fault is found reads no page and leaves zeros in all of `metadata`'s arrays:
/// what follows on the device finds empty loops, and slot 0 where it gathers by the plan's numbers,
/// so that it can run to where the fault is read.
///
/// One object serves one stream at a time, as a ChunkedPrefillMetadata does.
template <class MemorySpace>
class DeviceCheck {
 public:
  using memory_space = MemorySpace;

  /// Allocates. Nothing is found yet.
  DeviceCheck() : m_record("chunked_prefill::fault_record", 1) {}

  /// The first fault of the first build with one since the last call, which this call forgets.
  /// Waits for what is queued on `space`, where the builds were.
  template <ExecutionSpace Space>
  [[nodiscard]] std::optional<DeviceFault> first_fault(const Space& space) {
    impl::FaultRecord record{};
    const OnHost<impl::FaultRecord> host(&record, 1);
    Kokkos::deep_copy(space, host, m_record);
    space.fence("chunked_prefill::DeviceCheck::first_fault");
    if (record.is_set == 0) return std::nullopt;
    const DeviceFault fault = impl::device_fault(record);
    record = {};
    Kokkos::deep_copy(space, m_record, host);
    space.fence("chunked_prefill::DeviceCheck::first_fault");
    return fault;
  }

  /// For `fill`: where its kernels note a fault.
  [[nodiscard]] impl::FaultRecord* record() const { return m_record.data(); }

  /// For `fill`: a copy of the lengths that a plan was made of, for kernels on `space` that are
  /// enqueued before the next call.
  template <ExecutionSpace Space, HostLengths Lens>
  [[nodiscard]] const std::int32_t* copy_planned(const Space& space, const Lens& prefix_lens) {
    const std::span lens(prefix_lens);
    make_room(m_planned, "chunked_prefill::planned_lens", lens.size());
    const auto copy_to = [&](std::int32_t* to) {
      std::ranges::transform(lens, to,
                             [](auto length) { return static_cast<std::int32_t>(length); });
    };
    if constexpr (impl::runs_on_host<Space>) {
      copy_to(m_planned.data());  // such spaces keep their caller waiting
    } else {
      m_staged.resize(lens.size());
      copy_to(m_staged.data());
      Kokkos::deep_copy(space, DeviceLens(m_planned.data(), lens.size()),
                        OnHost<const std::int32_t>(m_staged.data(), lens.size()));
      // CUDA has taken pageable memory when it returns. Others may read it later.
      if constexpr (!impl::is_cuda<Space>) space.fence("chunked_prefill::DeviceCheck");
    }
    return m_planned.data();
  }

  /// For `fill`: room for the lengths of `batch_size` sequences.
  [[nodiscard]] std::int32_t* admitted_lens(std::int32_t batch_size) {
    make_room(m_admitted, "chunked_prefill::admitted_lens", static_cast<std::size_t>(batch_size));
    return m_admitted.data();
  }

 private:
  using DeviceLens = Array1D<std::int32_t, MemorySpace>;
  static void make_room(DeviceLens& lens, const std::string& label, std::size_t size) {
    if (lens.extent(0) >= size) return;
    lens = {};
    lens = DeviceLens(Kokkos::view_alloc(Kokkos::WithoutInitializing, label), size + size / 2);
  }

  template <class T>
  using OnHost = Kokkos::View<T*, Kokkos::LayoutRight, Kokkos::HostSpace,
                              Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  Array1D<impl::FaultRecord, MemorySpace> m_record;
  DeviceLens m_planned;                ///< a plan's, of the host
  DeviceLens m_admitted;               ///< those that `fill` reads
  std::vector<std::int32_t> m_staged;  ///< on their way there
};

}  // namespace chunked_prefill
