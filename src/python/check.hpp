// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/chunked_prefill.hpp>
#include <variant>

#include "kernels.hpp"

namespace chunked_prefill::python {

struct Check::State {
  std::variant<DeviceCheck<Kokkos::HostSpace>
#ifdef KOKKOS_ENABLE_CUDA
               ,
               DeviceCheck<Kokkos::Cuda::memory_space>
#endif
               >
      check;
};

}  // namespace chunked_prefill::python
