// SPDX-License-Identifier: MIT
#include "check.hpp"

#include <optional>
#include <string>

#include "process.hpp"

namespace chunked_prefill::python {

Check::Check(const Device& device) : m_device(device) {
  initialize(device);
#ifdef KOKKOS_ENABLE_CUDA
  const KeepsCurrentDevice kept;
  if (device.type == Device::cuda) {
    m_state = std::make_unique<State>(State{DeviceCheck<Kokkos::Cuda::memory_space>()});
  }
#endif
  if (!m_state) m_state = std::make_unique<State>(State{DeviceCheck<Kokkos::HostSpace>()});
  before_finalize(this, [this] { m_state.reset(); });
}

Check::~Check() {
  if (was_forked()) {
    static_cast<void>(m_state.release());  // the parent's
  } else {
    forget(this);
  }
}

Check::State& Check::state() {
  if (!m_state) throw Error("check: Kokkos was finalised since it was made");
  return *m_state;
}

std::optional<std::string> Check::first_fault(std::optional<std::uintptr_t> stream) {
  std::optional<DeviceFault> fault;
  on_device(m_device, stream.value_or(m_stream), [&]<class Space>(const Space& space) {
    using Memory = typename Space::memory_space;
    fault = std::get<DeviceCheck<Memory>>(state().check).first_fault(space);
  });
  return fault ? std::optional(fault->message()) : std::nullopt;
}

}  // namespace chunked_prefill::python
