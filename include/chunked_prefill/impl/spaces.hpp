// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>

// DO(WITH, SPACE) for each execution space that Kokkos was built with and this library is compiled
// for. With others (HPX, OpenACC, OpenMPTarget) its kernels are compiled where they are used.

#ifdef KOKKOS_ENABLE_SERIAL
#define CHUNKED_PREFILL_SERIAL(DO, WITH) DO(WITH, Kokkos::Serial)
#else
#define CHUNKED_PREFILL_SERIAL(DO, WITH)
#endif
#ifdef KOKKOS_ENABLE_OPENMP
#define CHUNKED_PREFILL_OPENMP(DO, WITH) DO(WITH, Kokkos::OpenMP)
#else
#define CHUNKED_PREFILL_OPENMP(DO, WITH)
#endif
#ifdef KOKKOS_ENABLE_THREADS
#define CHUNKED_PREFILL_THREADS(DO, WITH) DO(WITH, Kokkos::Threads)
#else
#define CHUNKED_PREFILL_THREADS(DO, WITH)
#endif
#ifdef KOKKOS_ENABLE_CUDA
#define CHUNKED_PREFILL_CUDA(DO, WITH) DO(WITH, Kokkos::Cuda)
#else
#define CHUNKED_PREFILL_CUDA(DO, WITH)
#endif
#ifdef KOKKOS_ENABLE_HIP
#define CHUNKED_PREFILL_HIP(DO, WITH) DO(WITH, Kokkos::HIP)
#else
#define CHUNKED_PREFILL_HIP(DO, WITH)
#endif
#ifdef KOKKOS_ENABLE_SYCL
#define CHUNKED_PREFILL_SYCL(DO, WITH) DO(WITH, Kokkos::SYCL)
#else
#define CHUNKED_PREFILL_SYCL(DO, WITH)
#endif

#define CHUNKED_PREFILL_FOR_EACH_SPACE(DO, WITH) \
  CHUNKED_PREFILL_SERIAL(DO, WITH)               \
  CHUNKED_PREFILL_OPENMP(DO, WITH)               \
  CHUNKED_PREFILL_THREADS(DO, WITH)              \
  CHUNKED_PREFILL_CUDA(DO, WITH)                 \
  CHUNKED_PREFILL_HIP(DO, WITH)                  \
  CHUNKED_PREFILL_SYCL(DO, WITH)
