// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Where the chunk table is written.
struct ChunkTable {
  std::int32_t batch_size;
  std::int32_t chunked_loop_num;
  std::int32_t* starts;             ///< (chunked_loop_num, batch_size)
  std::int32_t* ends;               ///< (chunked_loop_num, batch_size)
  std::int32_t* len_in_chunk;       ///< (chunked_loop_num, batch_size)
  std::int32_t* cum_seq_lens;       ///< (chunked_loop_num, batch_size + 1)
  std::int64_t* offsets = nullptr;  ///< (chunked_loop_num + 1), or null where nobody needs them
  std::int64_t total_tokens = 0;    ///< what the plan was made for; offsets are cut there

  /// Entry (loop, i) of all four arrays.
  /// \param cum_through tokens of the loop up to and with sequence `i`.
  KOKKOS_FUNCTION void write(std::int32_t loop, std::int32_t i, std::int32_t start,
                             std::int32_t end, std::int32_t cum_through) const {
    const std::int64_t at = std::int64_t{loop} * batch_size + i;
    starts[at] = start;
    ends[at] = end;
    len_in_chunk[at] = Kokkos::max(end - start, 0);
    cum_seq_lens[at + loop + 1] = cum_through;
  }
  /// What row `loop` has once: the 0 before its cumulative lengths, and where it begins.
  /// \param before,through tokens of all loops before `loop`, and with it.
  KOKKOS_FUNCTION void write_offsets(std::int32_t loop, std::int64_t before,
                                     std::int64_t through) const {
    cum_seq_lens[std::int64_t{loop} * (std::int64_t{batch_size} + 1)] = 0;
    if (offsets == nullptr) return;
    offsets[loop] = Kokkos::min(before, total_tokens);
    if (loop + 1 == chunked_loop_num) {
      offsets[loop + 1] = Kokkos::min(through, total_tokens);
    }
  }
};

}  // namespace chunked_prefill::impl
