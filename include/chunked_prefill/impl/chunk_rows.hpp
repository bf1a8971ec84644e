// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Kernel 1: the chunk table, one team a loop.
///
/// Raw pointers, not Views: a functor beyond 512 bytes is launched through constant memory on CUDA
/// and waits for the launch before it.
template <Index Length>
struct ChunkRows {
  const Length* prefix_lens;  ///< (batch_size)
  std::int32_t batch_size;
  std::int32_t chunked_loop_num;
  std::int32_t chunk_len;
  std::int32_t max_prefix_len;  ///< what the plan was made for; longer device lengths are cut here
  std::int64_t total_tokens;    ///< likewise for all prefixes together
  std::int32_t* starts;         ///< (chunked_loop_num, batch_size)
  std::int32_t* ends;           ///< (chunked_loop_num, batch_size)
  std::int32_t* len_in_chunk;   ///< (chunked_loop_num, batch_size)
  std::int32_t* cum_seq_lens;   ///< (chunked_loop_num, batch_size + 1)
  std::int64_t* offsets;        ///< (chunked_loop_num + 1), or null where nobody needs them

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t loop = team.league_rank();
    const std::int64_t start = std::int64_t{loop} * chunk_len;
    const std::int64_t stop = start + chunk_len;
    const std::int64_t row = std::int64_t{loop} * batch_size;
    std::int32_t* const cum = cum_seq_lens + row + loop;

    Kokkos::single(Kokkos::PerTeam(team), [&] { cum[0] = 0; });
    Kokkos::parallel_scan(
        Kokkos::TeamThreadRange(team, batch_size),
        [&](const std::int32_t i, std::int32_t& sum, const bool final) {
          const std::int64_t end = Kokkos::min(prefix_len(i), stop);
          const auto len = static_cast<std::int32_t>(Kokkos::max(end - start, std::int64_t{0}));
          sum += len;
          if (final) {
            starts[row + i] = static_cast<std::int32_t>(start);
            ends[row + i] = static_cast<std::int32_t>(end);
            len_in_chunk[row + i] = len;
            cum[i + 1] = sum;
          }
        });

    if (offsets == nullptr) return;
    store_offset(team, loop, start);
    if (loop + 1 == chunked_loop_num) store_offset(team, chunked_loop_num, stop);
  }

 private:
  KOKKOS_FUNCTION std::int64_t prefix_len(std::int32_t i) const {
    return Kokkos::clamp(static_cast<std::int64_t>(prefix_lens[i]), std::int64_t{0},
                         std::int64_t{max_prefix_len});
  }

  /// offsets[loop]: how many tokens lie before `position` in their sequence.
  template <class Team>
  KOKKOS_FUNCTION void store_offset(const Team& team, std::int32_t loop,
                                    std::int64_t position) const {
    std::int64_t before = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, batch_size),
        [&](const std::int32_t i, std::int64_t& sum) {
          sum += Kokkos::min(prefix_len(i), position);
        },
        before);
    Kokkos::single(Kokkos::PerTeam(team),
                   [&] { offsets[loop] = Kokkos::min(before, total_tokens); });
  }
};

/// Enqueues kernel 1 on `space`; nothing when there are no loops.
template <ExecutionSpace Space, Index Length>
void launch(const Space& space, const ChunkRows<Length>& rows) {
  if (rows.chunked_loop_num == 0) return;
  launch_teams("chunked_prefill::chunk_rows", space, rows.chunked_loop_num, rows);
}

}  // namespace chunked_prefill::impl
