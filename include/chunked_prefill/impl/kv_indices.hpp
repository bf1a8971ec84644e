// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/slot_tiles.hpp>
#include <chunked_prefill/impl/table_rows.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// The slots by themselves, of a chunk table that is there.
template <Index Slot>
struct KvIndices {
  SlotTiles<Slot> tiles;
  TableRows rows;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    tiles.write(team, rows, team.league_rank());
  }
};

/// Enqueues the slots on `space`; nothing when there is no slot to write.
template <ExecutionSpace Space, Index Slot>
void launch(const Space& space, KvIndices<Slot> kernel) {
  if (kernel.tiles.total_tokens == 0) return;
  const std::int64_t length = kernel.tiles.lead() + kernel.tiles.total_tokens;
  kernel.tiles.tiling.choose(space, length, sizeof(Slot));
  launch_teams("chunked_prefill::kv_indices", space, ceil_div(length, kernel.tiles.tiling.size),
               tile_team_size<Space>, kernel);
}

}  // namespace chunked_prefill::impl
