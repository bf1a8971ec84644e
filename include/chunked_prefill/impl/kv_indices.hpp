// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/search.hpp>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill::impl {

/// Kernel 2: the slots of all loops, one thread a tile of the flat output.
///
/// Tiles of the output, not sequences, are shared out: a batch of one long prefix and a batch of
/// many short ones keep a device equally busy. A thread finds where its tile begins by search, and
/// steps through the sequences from there. On a device its lanes write a step together, 16 bytes a
/// store; on the host it writes page after page.
template <Index RequestIndex, Index Slot>
struct KvIndices {
  const std::int32_t* req_to_page;       ///< (max_requests, max_pages)
  std::int64_t row_stride;               ///< of req_to_page, elements
  const RequestIndex* req_pool_indices;  ///< (batch_size)
  std::int32_t batch_size;
  std::int32_t chunked_loop_num;
  const std::int32_t* starts;        ///< (chunked_loop_num, batch_size)
  const std::int32_t* cum_seq_lens;  ///< (chunked_loop_num, batch_size + 1)
  const std::int64_t* offsets;       ///< (chunked_loop_num + 1), or null when there is one loop
  Divisor page_size;
  Slot* chunk_kv_indices;     ///< (total_tokens)
  std::int64_t total_tokens;  ///< no slot is written at or past this
  std::int64_t tile = 0;      ///< slots a thread writes, whole steps; 0: `launch` chooses
  std::int32_t lane_num = 1;  ///< lanes of a thread; set by `launch`

  /// Slots of one 16-byte store.
  static constexpr int pack = 16 / sizeof(Slot);
  /// Stores that a lane has in flight inside a sequence: all page ids are loaded before the first
  /// is stored.
  static constexpr int unroll = 4;

  /// How far into a 16-byte unit the output begins; tiles are cut on those units.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t lead() const {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(chunk_kv_indices) % 16 /
                                     sizeof(Slot));
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t rank =
        std::int64_t{team.league_rank()} * team.team_size() + team.team_rank();
    const std::int64_t unit = rank * tile - lead();
    const std::int64_t begin = Kokkos::max(unit, std::int64_t{0});
    Sequence sequence;
    if (begin >= total_tokens || !find(team, sequence, begin)) return;
    const std::int64_t end =
        Kokkos::min(unit + tile, Kokkos::min(total_tokens, loop_offset(chunked_loop_num)));
    if constexpr (runs_on_host<typename Team::execution_space>) {
      write_pages(sequence, begin, end);
    } else {
      write_steps(team, sequence, unit, end);
    }
  }

 private:
  struct alignas(16) Pack {
    Slot slots[pack];
  };

  /// One sequence of one loop: the flat indices up to `end` are its tokens, in order.
  struct Sequence {
    std::int32_t loop = 0;
    std::int32_t index = 0;
    std::int64_t loop_begin = 0;
    std::int64_t loop_end = 0;
    std::int64_t end = 0;
    std::int64_t position_shift = 0;         ///< position in the sequence = flat index + this
    const std::int32_t* page_ids = nullptr;  ///< its row of the page table
  };

  KOKKOS_FUNCTION std::int64_t loop_offset(std::int32_t loop) const {
    if (offsets != nullptr) return offsets[loop];
    return loop == 0 ? 0 : cum_seq_lens[batch_size];
  }
  KOKKOS_FUNCTION const std::int32_t* cum_row(std::int32_t loop) const {
    return cum_seq_lens + std::int64_t{loop} * (std::int64_t{batch_size} + 1);
  }

  /// Finds the sequence that flat index `flat` belongs to; the lanes of the thread search together.
  /// False past the last token.
  template <class Team>
  KOKKOS_FUNCTION bool find(const Team& team, Sequence& sequence, std::int64_t flat) const {
    const std::int32_t loop = offsets != nullptr
                                  ? last_at_most(team, offsets, chunked_loop_num + 1, flat)
                                  : static_cast<std::int32_t>(flat >= loop_offset(1));
    if (loop == chunked_loop_num) return false;
    enter_loop(sequence, loop);
    const auto in_loop = static_cast<std::int32_t>(flat - sequence.loop_begin);
    enter(sequence, last_at_most(team, cum_row(loop), batch_size, in_loop));
    return true;
  }

  /// Moves on to the sequence that flat index `flat` belongs to, usually the same or the next.
  KOKKOS_FUNCTION void advance(Sequence& sequence, std::int64_t flat) const {
    if (flat < sequence.end) return;
    std::int32_t first = sequence.index + 1;
    if (flat >= sequence.loop_end) {
      enter_loop(sequence, last_at_most(offsets, sequence.loop + 1, chunked_loop_num, flat));
      first = 0;
    }
    enter(sequence, last_at_most(cum_row(sequence.loop), first, batch_size,
                                 static_cast<std::int32_t>(flat - sequence.loop_begin)));
  }

  KOKKOS_FUNCTION void enter_loop(Sequence& sequence, std::int32_t loop) const {
    sequence.loop = loop;
    sequence.loop_begin = loop_offset(loop);
    sequence.loop_end = loop_offset(loop + 1);
  }

  KOKKOS_FUNCTION void enter(Sequence& sequence, std::int32_t index) const {
    const std::int32_t* const cum = cum_row(sequence.loop);
    const std::int64_t row = std::int64_t{sequence.loop} * batch_size;
    sequence.index = index;
    sequence.end = Kokkos::min(sequence.loop_end, sequence.loop_begin + cum[index + 1]);
    sequence.position_shift = std::int64_t{starts[row + index]} - cum[index] - sequence.loop_begin;
    sequence.page_ids =
        req_to_page + static_cast<std::int64_t>(req_pool_indices[index]) * row_stride;
  }

  /// Slots are computed unsigned, so that ids beyond int32 slots wrap instead of being undefined;
  /// int64 slots are exact.
  using Unsigned = std::make_unsigned_t<Slot>;
  KOKKOS_FUNCTION static Slot plus(Slot slot, std::int32_t count) {
    return static_cast<Slot>(static_cast<Unsigned>(slot) + static_cast<Unsigned>(count));
  }
  KOKKOS_FUNCTION Slot slot_on_page(std::int32_t page_id, std::int32_t within) const {
    return plus(static_cast<Slot>(static_cast<Unsigned>(page_id) *
                                  static_cast<Unsigned>(page_size.value())),
                within);
  }
  /// Slot of position `position` of a sequence.
  KOKKOS_FUNCTION Slot slot(const std::int32_t* page_ids, std::int32_t position) const {
    const std::int32_t page = page_size.quotient(position);
    return slot_on_page(page_ids[page], position - page * page_size.value());
  }

  KOKKOS_FUNCTION void write_pages(Sequence& sequence, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t flat = begin; flat < end;) {
      advance(sequence, flat);
      const std::int64_t count = Kokkos::min(sequence.end, end) - flat;
      write_positions(sequence.page_ids, static_cast<std::int32_t>(flat + sequence.position_shift),
                      static_cast<std::int32_t>(count), chunk_kv_indices + flat);
      flat += count;
    }
  }

  /// The slots of `count` positions of one sequence from `position` on, by plain loops that
  /// compilers vectorise.
  KOKKOS_FUNCTION void write_positions(const std::int32_t* page_ids, std::int32_t position,
                                       std::int32_t count, Slot* out) const {
    const std::int32_t size = page_size.value();
    if (size == 1) {
      for (std::int32_t k = 0; k < count; ++k) out[k] = page_ids[position + k];
      return;
    }
    std::int32_t page = page_size.quotient(position);
    for (std::int32_t within = position - page * size; count > 0; within = 0, ++page) {
      const Slot first = slot_on_page(page_ids[page], within);
      const std::int32_t here = Kokkos::min(count, size - within);
      for (std::int32_t k = 0; k < here; ++k) out[k] = plus(first, k);
      out += here;
      count -= here;
    }
  }

  /// `begin` lies on a 16-byte unit, before the output's first element in the first tile.
  template <class Team>
  KOKKOS_FUNCTION void write_steps(const Team& team, Sequence& sequence, std::int64_t begin,
                                   std::int64_t end) const {
    const std::int32_t step = lane_num * pack;
    for (std::int64_t flat = begin; flat < end;) {
      if (flat >= 0) advance(sequence, flat);
      if (flat >= 0 && flat + unroll * step <= Kokkos::min(sequence.end, end)) {
        write_inside(team, sequence, flat);
        flat += unroll * step;
      } else {
        write_across(team, sequence, flat, end);
        flat += step;
      }
    }
  }

  /// The first slot of a pack, and how many follow it on the same page.
  struct PackStart {
    Slot first;
    std::int32_t left;
  };
  KOKKOS_FUNCTION PackStart pack_start(const std::int32_t* page_ids, std::int32_t position) const {
    const std::int32_t page = page_size.quotient(position);
    const std::int32_t within = position - page * page_size.value();
    return {slot_on_page(page_ids[page], within), page_size.value() - within};
  }
  KOKKOS_FUNCTION Pack finish(const PackStart& start, const std::int32_t* page_ids,
                              std::int32_t position) const {
    Pack values;
    if (start.left >= pack) {
      for (int k = 0; k < pack; ++k) values.slots[k] = plus(start.first, k);
    } else {  // over the end of a page, or of several small ones
      values.slots[0] = start.first;
      for (int k = 1; k < pack; ++k) values.slots[k] = slot(page_ids, position + k);
    }
    return values;
  }

  /// `unroll` steps that lie inside one sequence.
  template <class Team>
  KOKKOS_FUNCTION void write_inside(const Team& team, const Sequence& sequence,
                                    std::int64_t flat) const {
    const std::int32_t* const page_ids = sequence.page_ids;
    const auto position = static_cast<std::int32_t>(flat + sequence.position_shift);
    Pack* const packs = reinterpret_cast<Pack*>(chunk_kv_indices + flat);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, lane_num), [&](const std::int32_t lane) {
      PackStart starts_of[unroll];
      for (int u = 0; u < unroll; ++u) {
        starts_of[u] = pack_start(page_ids, position + (u * lane_num + lane) * pack);
      }
      for (int u = 0; u < unroll; ++u) {
        packs[u * lane_num + lane] =
            finish(starts_of[u], page_ids, position + (u * lane_num + lane) * pack);
      }
    });
  }

  /// A step over the end of a sequence or of the tile: each lane goes on from `sequence` by itself.
  template <class Team>
  KOKKOS_FUNCTION void write_across(const Team& team, const Sequence& sequence, std::int64_t flat,
                                    std::int64_t end) const {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, lane_num), [&](const std::int32_t lane) {
      const std::int64_t first = Kokkos::max(flat + std::int64_t{lane} * pack, std::int64_t{0});
      const std::int64_t last = Kokkos::min(flat + (std::int64_t{lane} + 1) * pack, end);
      if (first >= last) return;
      Sequence mine = sequence;
      advance(mine, first);
      const auto position = static_cast<std::int32_t>(first + mine.position_shift);
      if (last - first == pack && last <= mine.end) {
        *reinterpret_cast<Pack*>(chunk_kv_indices + first) =
            finish(pack_start(mine.page_ids, position), mine.page_ids, position);
        return;
      }
      for (std::int64_t k = first; k < last; ++k) {
        advance(mine, k);
        chunk_kv_indices[k] =
            slot(mine.page_ids, static_cast<std::int32_t>(k + mine.position_shift));
      }
    });
  }
};

/// Enqueues kernel 2 on `space`; nothing when there is no slot to write.
///
/// Left to choose, it takes the smallest tile that fills the machine once: more tiles than can run
/// together would repeat the searches, fewer would leave threads idle.
template <ExecutionSpace Space, Index RequestIndex, Index Slot>
void launch(const Space& space, KvIndices<RequestIndex, Slot> kernel) {
  if (kernel.total_tokens == 0) return;
  using Kernel = KvIndices<RequestIndex, Slot>;
  const std::int64_t length = kernel.lead() + kernel.total_tokens;
  kernel.lane_num = lanes<Space>();
  const int team_size = runs_on_host<Space> ? 1 : 4;
  if (kernel.tile == 0) {
    // Several tiles a host thread, so that uneven ones even out.
    const std::int64_t tiles = runs_on_host<Space> ? std::int64_t{4} * space.concurrency()
                                                   : space.concurrency() / kernel.lane_num / 2;
    const std::int64_t step =
        runs_on_host<Space> ? 4096 : std::int64_t{kernel.lane_num} * Kernel::pack;
    kernel.tile = ceil_div(ceil_div(length, std::max(tiles, std::int64_t{1})), step) * step;
  }
  launch_teams("chunked_prefill::kv_indices", space, ceil_div(length, kernel.tile * team_size),
               team_size, kernel);
}

}  // namespace chunked_prefill::impl
