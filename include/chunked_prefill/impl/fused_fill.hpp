// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/lanes.hpp>
#include <chunked_prefill/impl/slot_tiles.hpp>
#include <chunked_prefill/impl/staged_rows.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// The chunk table and the slots in one kernel: no slot waits for the table, since every team
/// computes the loop that it writes from the prefix lengths. That has every team read the whole
/// batch, which costs less than a second launch up to StagedRows::most_sequences; longer batches
/// take ChunkRows and KvIndices, which read it once a loop.
template <Index Slot, Shard Held>
struct FusedFill {
  using Rows = StagedRows<Held>;

  typename Rows::Batch batch;
  ChunkTable table;
  SlotTiles<Slot> tiles;
  // Set by `launch`. The teams [0, row_teams) of the league write rows of the table, and those from
  // `first_tile_team` on a tile of the slots each.
  std::int32_t row_teams = 0;
  std::int32_t first_tile_team = 0;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const Rows rows = Rows::stage(team, batch);
    const std::int32_t rank = team.league_rank();
    if constexpr (runs_on_host<typename Team::execution_space>) {
      if (!batch.is_packed) return write_both(team, rows, rank);
    }
    if (rank < row_teams) write_rows(team, rows, rank);
    if (rank >= first_tile_team) tiles.write(team, rows, rank - first_tile_team);
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void write_rows(const Team& team, const Rows& rows, std::int32_t first) const {
    if (batch.is_packed) return rows.write_packed(team, table, first, row_teams);
    CHUNKED_PREFILL_ROLLED
    for (std::int64_t loop = first; loop < table.chunked_loop_num; loop += row_teams) {
      rows.write(team, rows.row(team, static_cast<std::int32_t>(loop)), table);
    }
  }

  /// Host: a thread that writes slots of a loop is at its row already. A row belongs to the tile in
  /// which the loop before ends, the first to the first.
  template <class Team>
  KOKKOS_FUNCTION void write_both(const Team& team, const Rows& rows, std::int32_t tile) const {
    const auto part = tiles.range(tile);
    const bool is_last = tile + 1 == row_teams;
    typename Rows::Row row;
    if (tile == 0) {
      row = rows.row(team, 0);
      rows.write(team, row, table);
    } else if (!rows.find(team, row, part.begin)) {
      return;
    }
    write_slots(team, rows, row, part);
    while ((row.end <= part.end || is_last) && row.loop + 1 < table.chunked_loop_num) {
      row = rows.next(team, row);
      rows.write(team, row, table);
      write_slots(team, rows, row, part);
    }
  }
  /// What of loop `row` lies in `part`.
  template <class Team>
  KOKKOS_FUNCTION void write_slots(const Team& team, const Rows& rows,
                                   const typename Rows::Row& row,
                                   const typename SlotTiles<Slot>::Range& part) const {
    tiles.write(team, rows, row,
                {.begin = Kokkos::max(part.begin, std::int64_t{row.begin}),
                 .end = Kokkos::min(part.end, std::int64_t{row.end})});
  }
};

/// Whether one kernel does: the batch is short and its tokens, padded to whole grains, can be
/// counted in 31 bits.
inline bool can_fuse(const ChunkShape& shape) {
  const std::int64_t grain = shape.grain;
  const std::int64_t longest = ceil_div(std::int64_t{shape.max_prefix_len}, grain) * grain;
  return shape.batch_size <= StagedRows<WholeSequence>::most_sequences &&
         shape.batch_size * longest <= StagedRows<WholeSequence>::most_tokens;
}

/// Enqueues the fused kernel on `space`.
template <ExecutionSpace Space, Index Slot, Shard Held>
void launch(const Space& space, FusedFill<Slot, Held> kernel) {
  using Rows = StagedRows<Held>;
  const std::int64_t length = kernel.tiles.lead() + kernel.tiles.total_tokens;
  kernel.tiles.tiling.choose(space, length, sizeof(Slot));
  kernel.batch.template prepare<Space>();
  auto teams = static_cast<std::int32_t>(ceil_div(length, kernel.tiles.tiling.size));
  std::int32_t quads = kernel.batch.quads;
  if constexpr (runs_on_host<Space>) {
    // A team is a thread, which takes its share of both.
    teams = std::max(teams, 1);
    kernel.row_teams = teams;
    // Scratch stays, and must not grow from launch to launch.
    quads = Rows::template scratch_quads<Space>(Rows::most_sequences, true);
  } else {
    // Rows and tiles side by side.
    constexpr std::int32_t most_row_teams = 1 << 20;
    kernel.row_teams = std::min(kernel.table.chunked_loop_num, most_row_teams);
    kernel.first_tile_team = kernel.row_teams;
    teams += kernel.row_teams;
  }
  launch_teams("chunked_prefill::fused_fill", space, teams, tile_team_size<Space>, kernel,
               Rows::template Scratch<Space>::shmem_size(quads));
}

}  // namespace chunked_prefill::impl
