// SPDX-License-Identifier: MIT
#include "kokkos_settings.hpp"

#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <string>

#include "environment.hpp"

namespace chunked_prefill::startup {

Kokkos::InitializationSettings kokkos_settings() {
  std::int32_t most_threads = INT32_MAX;
  int gpus = -1;
#ifdef KOKKOS_ENABLE_OPENMP
  most_threads = 512;  // it crashes beyond
#endif
#ifdef KOKKOS_ENABLE_CUDA
  const cudaError_t error = cudaGetDeviceCount(&gpus);
  if (error != cudaSuccess) {
    throw InvalidArgument("execution space",
                          std::string("no GPU can be used: ") + cudaGetErrorString(error));
  }
#endif
  check_environment(most_threads, gpus);
  return Kokkos::InitializationSettings().set_disable_warnings(true).set_print_configuration(false);
}

}  // namespace chunked_prefill::startup
