// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
#include <chunked_prefill/impl/execution.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Kernel 1: the chunk table, one team a loop. The threads of a team share the batch out in
/// stretches, and the lanes of a thread scan a stretch; a small batch is one thread's, so that no
/// barrier is needed.
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

  /// Sequences that one thread scans.
  static constexpr std::int32_t most_in_a_stretch = 1024;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t loop = team.league_rank();
    const std::int64_t start = std::int64_t{loop} * chunk_len;
    const std::int64_t stop = start + chunk_len;
    const std::int32_t stretch = ceil_div(batch_size, static_cast<std::int32_t>(team.team_size()));
    const std::int32_t first = Kokkos::min(batch_size, team.team_rank() * stretch);
    const std::int32_t last = Kokkos::min(batch_size, first + stretch);

    std::int32_t tokens_before = 0;  // in this loop, by the threads before this one
    if (team.team_size() > 1) {
      std::int32_t tokens = 0;
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, first, last),
          [&](const std::int32_t i, std::int32_t& sum) { sum += len(i, start, stop); }, tokens);
      tokens_before = team.team_scan(tokens);
    }

    const std::int64_t row = std::int64_t{loop} * batch_size;
    std::int32_t* const cum = cum_seq_lens + row + loop;
    Kokkos::single(Kokkos::PerTeam(team), [&] { cum[0] = 0; });
    Kokkos::parallel_scan(Kokkos::ThreadVectorRange(team, first, last),
                          [&](const std::int32_t i, std::int32_t& sum, const bool final) {
                            const std::int32_t tokens = len(i, start, stop);
                            sum += tokens;
                            if (final) {
                              starts[row + i] = static_cast<std::int32_t>(start);
                              ends[row + i] =
                                  static_cast<std::int32_t>(Kokkos::min(prefix_len(i), stop));
                              len_in_chunk[row + i] = tokens;
                              cum[i + 1] = tokens_before + sum;
                            }
                          });

    if (offsets == nullptr) return;
    store_offset(team, first, last, loop, start);
    if (loop + 1 == chunked_loop_num) store_offset(team, first, last, chunked_loop_num, stop);
  }

 private:
  KOKKOS_FUNCTION std::int64_t prefix_len(std::int32_t i) const {
    return Kokkos::clamp(static_cast<std::int64_t>(prefix_lens[i]), std::int64_t{0},
                         std::int64_t{max_prefix_len});
  }

  KOKKOS_FUNCTION std::int32_t len(std::int32_t i, std::int64_t start, std::int64_t stop) const {
    return static_cast<std::int32_t>(
        Kokkos::max(Kokkos::min(prefix_len(i), stop) - start, std::int64_t{0}));
  }

  /// offsets[loop]: how many tokens lie before `position` in their sequence.
  template <class Team>
  KOKKOS_FUNCTION void store_offset(const Team& team, std::int32_t first, std::int32_t last,
                                    std::int32_t loop, std::int64_t position) const {
    std::int64_t before = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team, first, last),
        [&](const std::int32_t i, std::int64_t& sum) {
          sum += Kokkos::min(prefix_len(i), position);
        },
        before);
    if (team.team_size() > 1) team.team_reduce(Kokkos::Sum<std::int64_t>(before));
    Kokkos::single(Kokkos::PerTeam(team),
                   [&] { offsets[loop] = Kokkos::min(before, total_tokens); });
  }
};

/// Enqueues kernel 1 on `space`; nothing when there are no loops.
template <ExecutionSpace Space, Index Length>
void launch(const Space& space, const ChunkRows<Length>& rows) {
  if (rows.chunked_loop_num == 0) return;
  int team_size = 1;
  if constexpr (!runs_on_host<Space>) {
    // A power of two, as team scans need, of at most 1024 lanes in all.
    const auto stretches =
        static_cast<unsigned>(ceil_div(rows.batch_size, ChunkRows<Length>::most_in_a_stretch));
    team_size = static_cast<int>(std::min(std::bit_ceil(std::max(stretches, 1u)), 32u));
  }
  launch_teams("chunked_prefill::chunk_rows", space, rows.chunked_loop_num, team_size, rows);
}

}  // namespace chunked_prefill::impl
