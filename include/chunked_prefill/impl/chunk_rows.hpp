// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/equal_split.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// The chunk table by itself, one team a loop, for batches of any size. The threads of a team share
/// the batch out in parts, and the lanes of a thread scan a part. Sums pass from thread to
/// thread through team scratch, behind one barrier; a batch that one thread can take needs none.
///
/// Raw pointers, not Views: a functor beyond 512 bytes is launched through constant memory on CUDA
/// and waits for the launch before it.
struct ChunkRows {
  IndexArray prefix_lens;  ///< (batch_size)
  EqualSplit<TokenShard> split;
  ChunkTable table;

  /// Tokens of a thread's part of the batch, for the other threads of its team.
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
    const auto stretch = split.stretch(loop);
    const std::int32_t part =
        ceil_div(split.batch_size, static_cast<std::int32_t>(team.team_size()));
    const std::int32_t first = Kokkos::min(split.batch_size, team.team_rank() * part);
    const std::int32_t size = Kokkos::min(split.batch_size - first, part);

    // Tokens in this loop of the sequences before this part, and in earlier loops of all.
    std::int32_t sum_before = 0;
    std::int64_t offset = 0;
    if (table.offsets != nullptr) {
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, size),
          [&](const std::int32_t k, std::int64_t& sum) {
            sum += EqualSplit<TokenShard>::tokens_before(length(first + k), stretch.begin);
          },
          offset);
    }
    if (team.team_size() > 1) {
      const Scratch<typename Team::execution_space> tokens(team.team_scratch(0), team.team_size());
      std::int64_t in_loop = 0;
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, size),
          [&](const std::int32_t k, std::int64_t& sum) {
            sum += stretch.tokens(length(first + k));
          },
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

    std::int32_t sum_through = 0;  // tokens of this part in this loop
    // The range begins at 0: the vector scan of Kokkos 4.5 on CUDA overlooks where one begins.
    Kokkos::parallel_scan(
        Kokkos::ThreadVectorRange(team, size),
        [&](const std::int32_t k, std::int32_t& sum, const bool final) {
          const std::int32_t own = length(first + k);
          sum += stretch.tokens(own);
          if (final) {
            table.write(loop, first + k, stretch.begin, stretch.end_in(own), sum_before + sum);
          }
        },
        sum_through);

    Kokkos::single(Kokkos::PerThread(team), [&] {
      // The last thread with sequences knows the loop's total.
      if (first + size == split.batch_size && (size > 0 || first == 0)) {
        table.write_offsets(loop, offset, offset + sum_before + sum_through);
      }
    });
  }

 private:
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t length(std::int32_t i) const {
    return split.length(prefix_lens, i);
  }
};

/// Threads of a team that writes a row: on a device one sequence a lane, as far as a team reaches.
template <ExecutionSpace Space, class Rows>
int row_team_size(const Space& space, const Rows& rows, std::int32_t batch_size) {
  if constexpr (runs_on_host<Space>) {
    return 1;
  } else {
    const int most = 1024 / lane_num<Space>;
    const int wanted = std::clamp(ceil_div(batch_size, lane_num<Space>), 1, most);
    if (wanted < most) return wanted;
    // Not every device has teams that large.
    return std::min(wanted, Kokkos::TeamPolicy<Space>(space, 1, 1, lane_num<Space>)
                                .team_size_max(rows, Kokkos::ParallelForTag()));
  }
}

/// Enqueues the chunk table on `space`; nothing when there are no loops.
template <ExecutionSpace Space>
void launch(const Space& space, const ChunkRows& rows) {
  if (rows.table.chunked_loop_num == 0) return;
  const int team_size = row_team_size(space, rows, rows.table.batch_size);
  const std::size_t scratch = team_size > 1 ? ChunkRows::Scratch<Space>::shmem_size(team_size) : 0;
  launch_teams("chunked_prefill::chunk_rows", space, rows.table.chunked_loop_num, team_size, rows,
               scratch);
}

}  // namespace chunked_prefill::impl
