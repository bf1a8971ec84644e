// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/check_inputs.hpp>
#include <chunked_prefill/impl/chunk_rows.hpp>
#include <chunked_prefill/impl/fused_fill.hpp>
#include <chunked_prefill/impl/kv_indices.hpp>
#include <chunked_prefill/impl/packed_rows.hpp>
#include <cstdint>

// The library holds the kernels of every execution space that Kokkos was built with, so that a
// user's own files compile none of them. KEYWORDS is `extern template` here and `template` in
// src/instantiations.cpp.
#define CHUNKED_PREFILL_INSTANTIATE_FOR(KEYWORDS, SPACE)                      \
  KEYWORDS void launch(const SPACE&, FusedFill<std::int32_t, WholeSequence>); \
  KEYWORDS void launch(const SPACE&, FusedFill<std::int64_t, WholeSequence>); \
  KEYWORDS void launch(const SPACE&, FusedFill<std::int32_t, TokenShard>);    \
  KEYWORDS void launch(const SPACE&, FusedFill<std::int64_t, TokenShard>);    \
  KEYWORDS void launch(const SPACE&, const ChunkRows&);                       \
  KEYWORDS void launch(const SPACE&, const PackedRows&);                      \
  KEYWORDS void launch(const SPACE&, KvIndices<std::int32_t>);                \
  KEYWORDS void launch(const SPACE&, KvIndices<std::int64_t>);                \
  KEYWORDS void launch(const SPACE&, const CheckBatch&);                      \
  KEYWORDS void launch(const SPACE&, CheckPages);                             \
  KEYWORDS void launch(const SPACE&, const AdmitLens&);                       \
  KEYWORDS void launch(const SPACE&, const DropFaulty&);

#ifdef KOKKOS_ENABLE_SERIAL
#define CHUNKED_PREFILL_SERIAL(KEYWORDS) CHUNKED_PREFILL_INSTANTIATE_FOR(KEYWORDS, Kokkos::Serial)
#else
#define CHUNKED_PREFILL_SERIAL(KEYWORDS)
#endif
#ifdef KOKKOS_ENABLE_OPENMP
#define CHUNKED_PREFILL_OPENMP(KEYWORDS) CHUNKED_PREFILL_INSTANTIATE_FOR(KEYWORDS, Kokkos::OpenMP)
#else
#define CHUNKED_PREFILL_OPENMP(KEYWORDS)
#endif
#ifdef KOKKOS_ENABLE_THREADS
#define CHUNKED_PREFILL_THREADS(KEYWORDS) CHUNKED_PREFILL_INSTANTIATE_FOR(KEYWORDS, Kokkos::Threads)
#else
#define CHUNKED_PREFILL_THREADS(KEYWORDS)
#endif
#ifdef KOKKOS_ENABLE_CUDA
#define CHUNKED_PREFILL_CUDA(KEYWORDS) CHUNKED_PREFILL_INSTANTIATE_FOR(KEYWORDS, Kokkos::Cuda)
#else
#define CHUNKED_PREFILL_CUDA(KEYWORDS)
#endif
#ifdef KOKKOS_ENABLE_HIP
#define CHUNKED_PREFILL_HIP(KEYWORDS) CHUNKED_PREFILL_INSTANTIATE_FOR(KEYWORDS, Kokkos::HIP)
#else
#define CHUNKED_PREFILL_HIP(KEYWORDS)
#endif
#ifdef KOKKOS_ENABLE_SYCL
#define CHUNKED_PREFILL_SYCL(KEYWORDS) CHUNKED_PREFILL_INSTANTIATE_FOR(KEYWORDS, Kokkos::SYCL)
#else
#define CHUNKED_PREFILL_SYCL(KEYWORDS)
#endif

// Other backends (HPX, OpenACC, OpenMPTarget) compile the kernels where they are used.
#define CHUNKED_PREFILL_INSTANTIATE(KEYWORDS) \
  CHUNKED_PREFILL_SERIAL(KEYWORDS)            \
  CHUNKED_PREFILL_OPENMP(KEYWORDS)            \
  CHUNKED_PREFILL_THREADS(KEYWORDS)           \
  CHUNKED_PREFILL_CUDA(KEYWORDS)              \
  CHUNKED_PREFILL_HIP(KEYWORDS)               \
  CHUNKED_PREFILL_SYCL(KEYWORDS)

namespace chunked_prefill::impl {
CHUNKED_PREFILL_INSTANTIATE(extern template)
}  // namespace chunked_prefill::impl
