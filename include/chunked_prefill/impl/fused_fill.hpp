// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/lanes.hpp>
#include <chunked_prefill/impl/packed_split.hpp>
#include <chunked_prefill/impl/slot_tiles.hpp>
#include <chunked_prefill/impl/staged_rows.hpp>
#include <chunked_prefill/plan.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// The chunk table and the slots in one kernel: no slot waits for the table, since every team
/// computes the loop that it writes from the prefix lengths. That has every team read the whole
/// batch, which costs less than a second launch up to StagedRows::most_sequences; longer batches
/// take ChunkRows and KvIndices, which read it once a loop.
template <Index Slot>
struct FusedFill {
  StagedRows::Batch batch;  ///< the slots of a packed split are those of one loop
  PackedSplit packed;       ///< of the table; unused when it is split equally
  bool is_packed;
  ChunkTable table;
  SlotTiles<Slot> tiles;
  // Set by `launch`. The teams of ranks [0, row_teams) write rows of the table, and those from
  // `first_tile_team` on a tile of the slots each.
  std::int32_t row_teams = 0;
  std::int32_t first_tile_team = 0;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const auto rows = StagedRows::stage(team, batch);
    const std::int32_t rank = team.league_rank();
    if (rank < row_teams) write_table(team, rows, rank);
    if (rank >= first_tile_team) tiles.write(team, rows, rank - first_tile_team);
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void write_table(const Team& team, const StagedRows& rows,
                                   std::int32_t rank) const {
    if (is_packed) return rows.write_packed_rows(team, packed, table, rank, row_teams);
    CHUNKED_PREFILL_ROLLED
    for (std::int64_t loop = rank; loop < table.chunked_loop_num; loop += row_teams) {
      rows.write_row(team, table, static_cast<std::int32_t>(loop));
    }
  }
};

/// Whether one kernel does: the batch is short and its tokens, padded to whole grains, can be
/// counted in 31 bits.
inline bool can_fuse(const ChunkShape& shape) {
  const std::int64_t grain = shape.grain;
  const std::int64_t longest = ceil_div(std::int64_t{shape.max_prefix_len}, grain) * grain;
  return shape.batch_size <= StagedRows::most_sequences &&
         shape.batch_size * longest <= StagedRows::most_tokens;
}

/// Enqueues the fused kernel on `space`.
template <ExecutionSpace Space, Index Slot>
void launch(const Space& space, FusedFill<Slot> kernel) {
  const std::int64_t length = kernel.tiles.lead() + kernel.tiles.total_tokens;
  kernel.tiles.tiling.choose(space, length, sizeof(Slot));
  kernel.batch.template prepare<Space>();
  auto teams = static_cast<std::int32_t>(ceil_div(length, kernel.tiles.tiling.size));
  std::int32_t quads = kernel.batch.quads;
  if constexpr (runs_on_host<Space>) {
    // A team is a thread, which takes its share of both.
    kernel.row_teams = teams;
    // Scratch stays, and must not grow from launch to launch.
    quads = StagedRows::scratch_quads<Space>(StagedRows::most_sequences);
  } else {
    // Rows and tiles side by side.
    constexpr std::int32_t most_row_teams = 1 << 20;
    kernel.row_teams = std::min(kernel.table.chunked_loop_num, most_row_teams);
    kernel.first_tile_team = kernel.row_teams;
    teams += kernel.row_teams;
  }
  launch_teams("chunked_prefill::fused_fill", space, teams, tile_team_size<Space>, kernel,
               StagedRows::Scratch<Space>::shmem_size(quads));
}

}  // namespace chunked_prefill::impl
