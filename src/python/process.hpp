// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "kernels.hpp"

// The process's Kokkos: who starts and ends it, and what of it builds run on.

namespace chunked_prefill::python {

using Host = Kokkos::DefaultHostExecutionSpace;

/// Whether this process was forked off one in which Kokkos ran. Nothing of it may be touched.
[[nodiscard]] bool was_forked();

/// Calls `drop` before Kokkos ends, to let go of what must not outlive it, unless `forget` was
/// called with the same `owner` before.
void before_finalize(void* owner, std::function<void()> drop);
void forget(void* owner);

/// Builds on the host: one at a time, since its threads are one team.
[[nodiscard]] std::mutex& host_mutex();

#ifdef KOKKOS_ENABLE_CUDA
/// Kokkos makes its GPU the calling thread's. The caller's choice comes back.
class KeepsCurrentDevice {
 public:
  KeepsCurrentDevice();
  ~KeepsCurrentDevice();
  KeepsCurrentDevice(const KeepsCurrentDevice&) = delete;
  KeepsCurrentDevice& operator=(const KeepsCurrentDevice&) = delete;

 private:
  int m_device = 0;
};

/// The instance of a stream, kept until Kokkos ends.
[[nodiscard]] Kokkos::Cuda on_stream(std::uintptr_t stream);
#endif

/// Calls `use(space)` with the host's execution space, which has done its work on return.
template <class Use>
void on_host(const Use& use) {
  initialize(Device{});
  const std::lock_guard lock(host_mutex());
  const Host space;
  use(space);
  space.fence("chunked_prefill::python");
}

/// Calls `use(space)` with the execution space of `device`: an instance on `stream`, or the host's.
template <class Use>
void on_device(const Device& device, std::uintptr_t stream, const Use& use) {
#ifdef KOKKOS_ENABLE_CUDA
  if (device.type == Device::cuda) {
    initialize(device);
    const KeepsCurrentDevice kept;
    return use(on_stream(stream));
  }
#endif
  static_cast<void>(stream);
  if (device.type != Device::cpu) initialize(device);  // says what is wrong
  on_host(use);
}

}  // namespace chunked_prefill::python
