// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/execution.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Kernel 1: the chunk table, one team a loop. The threads of a team share the batch out in
/// stretches, and the lanes of a thread scan a stretch. Sums pass from thread to thread through
/// team scratch, behind one barrier; a batch that one thread can take needs none.
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

  /// Tokens of a thread's stretch of the batch, for the other threads of its team.
  struct Tokens {
    std::int64_t before_loop;
    std::int64_t in_loop;
  };
  template <ExecutionSpace Space>
  using Scratch = Kokkos::View<Tokens*, typename Space::scratch_memory_space,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t loop = team.league_rank();
    const std::int64_t start = std::int64_t{loop} * chunk_len;
    const std::int64_t stop = start + chunk_len;
    const std::int32_t stretch = ceil_div(batch_size, static_cast<std::int32_t>(team.team_size()));
    const std::int32_t first = Kokkos::min(batch_size, team.team_rank() * stretch);
    const std::int32_t size = Kokkos::min(batch_size - first, stretch);

    // Tokens in this loop of the sequences before this stretch, and in earlier loops of all.
    std::int32_t sum_before = 0;
    std::int64_t offset = 0;
    if (offsets != nullptr) {
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, size),
          [&](const std::int32_t k, std::int64_t& sum) {
            sum += Kokkos::min(prefix_len(first + k), start);
          },
          offset);
    }
    if (team.team_size() > 1) {
      const Scratch<typename Team::execution_space> tokens(team.team_scratch(0), team.team_size());
      std::int64_t in_loop = 0;
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, size),
          [&](const std::int32_t k, std::int64_t& sum) { sum += len(first + k, start, stop); },
          in_loop);
      Kokkos::single(Kokkos::PerThread(team), [&] {
        tokens(team.team_rank()) = {.before_loop = offset, .in_loop = in_loop};
      });
      team.team_barrier();
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, team.team_rank()),
          [&](const std::int32_t k, std::int32_t& sum) {
            sum += static_cast<std::int32_t>(tokens(k).in_loop);
          },
          sum_before);
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, team.team_size()),
          [&](const std::int32_t k, std::int64_t& sum) { sum += tokens(k).before_loop; }, offset);
    }

    const std::int64_t row = std::int64_t{loop} * batch_size;
    std::int32_t* const cum = cum_seq_lens + row + loop;
    std::int32_t sum_through = 0;  // tokens of this stretch in this loop
    // The range begins at 0: the vector scan of Kokkos 4.5 on CUDA overlooks where one begins.
    Kokkos::parallel_scan(
        Kokkos::ThreadVectorRange(team, size),
        [&](const std::int32_t k, std::int32_t& sum, const bool final) {
          const std::int32_t i = first + k;
          const std::int32_t tokens = len(i, start, stop);
          sum += tokens;
          if (final) {
            starts[row + i] = static_cast<std::int32_t>(start);
            ends[row + i] = static_cast<std::int32_t>(Kokkos::min(prefix_len(i), stop));
            len_in_chunk[row + i] = tokens;
            cum[i + 1] = sum_before + sum;
          }
        },
        sum_through);

    Kokkos::single(Kokkos::PerThread(team), [&] {
      if (first == 0) cum[0] = 0;
      if (offsets == nullptr) return;
      if (first == 0) offsets[loop] = Kokkos::min(offset, total_tokens);
      if (first + size == batch_size && size > 0 && loop + 1 == chunked_loop_num) {
        offsets[chunked_loop_num] = Kokkos::min(offset + sum_before + sum_through, total_tokens);
      }
    });
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
};

/// Enqueues kernel 1 on `space`; nothing when there are no loops.
template <ExecutionSpace Space, Index Length>
void launch(const Space& space, const ChunkRows<Length>& rows) {
  if (rows.chunked_loop_num == 0) return;
  // On a device one sequence a lane, as far as a team reaches.
  int team_size = 1;
  if constexpr (!runs_on_host<Space>) {
    const int most = 1024 / lanes<Space>();
    team_size = std::clamp(ceil_div(rows.batch_size, lanes<Space>()), 1, most);
    if (team_size == most) {  // not every device has teams that large
      team_size = std::min(team_size, Kokkos::TeamPolicy<Space>(space, 1, 1, lanes<Space>())
                                          .team_size_max(rows, Kokkos::ParallelForTag()));
    }
  }
  launch_teams(
      "chunked_prefill::chunk_rows", space, rows.chunked_loop_num, team_size, rows,
      team_size > 1 ? ChunkRows<Length>::template Scratch<Space>::shmem_size(team_size) : 0);
}

}  // namespace chunked_prefill::impl
