// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/equal_split.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Where the chunk table is written.
struct ChunkTable {
  std::int32_t* starts;        ///< (chunked_loop_num, batch_size)
  std::int32_t* ends;          ///< (chunked_loop_num, batch_size)
  std::int32_t* len_in_chunk;  ///< (chunked_loop_num, batch_size)
  std::int32_t* cum_seq_lens;  ///< (chunked_loop_num, batch_size + 1)
  std::int64_t* offsets;       ///< (chunked_loop_num + 1), or null where nobody needs them
  std::int64_t total_tokens;   ///< what the plan was made for; offsets are cut there

  /// Entry (loop, i) of all four arrays.
  /// \param start of the loop in every sequence.
  /// \param cum_through tokens of the loop up to and with sequence `i`.
  KOKKOS_FUNCTION void write(const EqualSplit& split, std::int32_t loop, std::int32_t i,
                             std::int32_t start, std::int32_t prefix_len,
                             std::int32_t cum_through) const {
    const std::int64_t at = std::int64_t{loop} * split.batch_size + i;
    starts[at] = start;
    ends[at] = split.end(prefix_len, start);
    len_in_chunk[at] = split.tokens(prefix_len, start);
    cum_seq_lens[at + loop + 1] = cum_through;
  }
  /// What row `loop` has once: the 0 before its cumulative lengths, and where it begins.
  /// \param before,through tokens of all loops before `loop`, and with it.
  KOKKOS_FUNCTION void write_offsets(const EqualSplit& split, std::int32_t loop,
                                     std::int64_t before, std::int64_t through) const {
    cum_seq_lens[std::int64_t{loop} * (std::int64_t{split.batch_size} + 1)] = 0;
    if (offsets == nullptr) return;
    offsets[loop] = Kokkos::min(before, total_tokens);
    if (loop + 1 == split.chunked_loop_num) {
      offsets[loop + 1] = Kokkos::min(through, total_tokens);
    }
  }
};

}  // namespace chunked_prefill::impl
