// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/check_inputs.hpp>
#include <chunked_prefill/impl/chunk_rows.hpp>
#include <chunked_prefill/impl/fused_fill.hpp>
#include <chunked_prefill/impl/kv_indices.hpp>
#include <chunked_prefill/impl/packed_rows.hpp>
#include <chunked_prefill/impl/spaces.hpp>
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

#define CHUNKED_PREFILL_INSTANTIATE(KEYWORDS) \
  CHUNKED_PREFILL_FOR_EACH_SPACE(CHUNKED_PREFILL_INSTANTIATE_FOR, KEYWORDS)

namespace chunked_prefill::impl {
CHUNKED_PREFILL_INSTANTIATE(extern template)
}  // namespace chunked_prefill::impl
