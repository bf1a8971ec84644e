// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/lanes.hpp>
#include <chunked_prefill/impl/search.hpp>
#include <chunked_prefill/impl/slot_writers.hpp>
#include <chunked_prefill/impl/store.hpp>
#include <chunked_prefill/impl/tiling.hpp>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill::impl {

/// The slots of all loops, one team a tile of the flat output.
///
/// Tiles of the output, not sequences, are shared out: a batch of one long prefix and a batch of
/// many short ones keep a device equally busy. A team finds where its tile begins, and goes through
/// the loops from there. On a device its threads share a loop out, and the lanes of a thread write
/// a step together, 16 bytes each; on the host one thread writes page after page.
///
/// Where a loop begins and which sequences it holds is asked of `rows`, TableRows or StagedRows.
template <Index Slot>
struct SlotTiles {
  const std::int32_t* req_to_page;  ///< (max_requests, max_pages)
  std::int64_t row_stride;          ///< of req_to_page, elements
  Divisor page_size;
  Slot* chunk_kv_indices;     ///< (total_tokens)
  std::int64_t total_tokens;  ///< no slot is written at or past this
  Tiling tiling = {};         ///< `launch` chooses what is not given

  static constexpr std::int32_t pack = Pack<Slot>::size;
  /// Steps inside a sequence that a thread takes at once.
  static constexpr std::int32_t unroll = 4;

  /// How far into a 16-byte unit the output begins; tiles are cut on those units.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t lead() const { return lead(chunk_kv_indices); }

  /// Flat indices [begin, end).
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  /// Of tile `tile`.
  [[nodiscard]] KOKKOS_FUNCTION Range range(std::int64_t tile) const {
    const std::int64_t unit = tile * tiling.size - lead();
    return {.begin = Kokkos::max(unit, std::int64_t{0}),
            .end = Kokkos::min(unit + tiling.size, total_tokens)};
  }

  /// Writes tile `tile`. The whole team calls it.
  template <class Team, class Rows>
  KOKKOS_FUNCTION void write(const Team& team, const Rows& rows, std::int64_t tile) const {
    auto [begin, end] = range(tile);
    typename Rows::Row row;
    while (begin < end && rows.find(team, row, begin)) {
      const std::int64_t stop = Kokkos::min(end, std::int64_t{row.end});
      write(team, rows, row, {begin, stop});
      begin = stop;
    }
  }

  /// Writes `range` of loop `row`, of which that holds every token. The whole team calls it.
  template <class Team, class Rows>
  KOKKOS_FUNCTION void write(const Team& team, const Rows& rows, const typename Rows::Row& row,
                             const Range& range) const {
    const auto [begin, end] = range;
    if (begin >= end) return;
    write(team, Part<Rows>{.rows = rows,
                           .row = row,
                           .first = static_cast<std::int32_t>(begin - row.begin),
                           .size = static_cast<std::int32_t>(end - begin),
                           .out = chunk_kv_indices + begin});
  }

 private:
  /// The part of a tile that lies in one loop. Its tokens are counted from its first.
  template <class Rows>
  struct Part {
    const Rows& rows;
    const typename Rows::Row& row;
    std::int32_t first;  ///< in the loop
    std::int32_t size;   ///< tokens
    Slot* out;           ///< (size)
  };
  /// One sequence of a part. It has the tokens of the part up to `end`.
  struct Sequence {
    std::int32_t index;
    std::int32_t end;
    std::int32_t position_shift;   ///< position in the sequence = token of the part + this
    const std::int32_t* page_ids;  ///< its row of the page table
  };

  template <class Rows>
  KOKKOS_FUNCTION Sequence sequence_at(const Part<Rows>& part, std::int32_t index) const {
    const std::int32_t* const cum = part.rows.cum(part.row);
    return {.index = index,
            .end = cum[index + 1] - part.first,
            .position_shift = part.row.start(index) - cum[index] + part.first,
            .page_ids = req_to_page + part.rows.request(index) * row_stride};
  }
  /// The sequence that has token `token`.
  template <class Team, class Rows>
  KOKKOS_FUNCTION Sequence locate(const Team& team, const Part<Rows>& part,
                                  std::int32_t token) const {
    return sequence_at(part, part.rows.locate(team, part.row, part.first + token));
  }
  /// Moves on to the sequence that has token `token`, usually the same or the next.
  template <class Rows>
  KOKKOS_FUNCTION void advance(const Part<Rows>& part, Sequence& sequence,
                               std::int32_t token) const {
    if (token < sequence.end) return;
    sequence = sequence_at(part, last_at_most(part.rows.cum(part.row), sequence.index + 1,
                                              part.rows.batch_size, part.first + token));
  }

  /// Where a token is: its page, and its place on the page.
  struct Place {
    std::int32_t page_id;
    std::int32_t within;
  };
  KOKKOS_FUNCTION Place place(const std::int32_t* page_ids, std::int32_t position) const {
    const std::int32_t page = page_size.quotient(position);
    return {.page_id = page_ids[page], .within = position - page * page_size.value()};
  }
  /// Slots are computed unsigned, so that ids beyond int32 slots wrap instead of being undefined;
  /// int64 slots are exact.
  using Unsigned = std::make_unsigned_t<Slot>;
  KOKKOS_FUNCTION Slot slot(const Place& place) const {
    return plus(static_cast<Slot>(static_cast<Unsigned>(place.page_id) *
                                  static_cast<Unsigned>(page_size.value())),
                place.within);
  }
  /// How far into a 16-byte unit `at` lies, in slots.
  KOKKOS_FUNCTION static std::int32_t lead(const Slot* at) {
    return static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(at) % 16 / sizeof(Slot));
  }

  /// Writes a part, shared out among the threads of the team.
  template <class Team, class Rows>
  KOKKOS_FUNCTION void write(const Team& team, const Part<Rows>& part) const {
    if constexpr (runs_on_host<typename Team::execution_space>) {
      if (tiling.streaming) {
        write_sequences<StreamingWriter<Slot>>(team, part);
      } else {
        write_sequences<PlainWriter<Slot>>(team, part);
      }
    } else {
      const std::int32_t begin = -lead(part.out);
      const std::int32_t share =
          ceil_div(part.size - begin, threads<Team> * step<Team>) * step<Team>;
      const std::int32_t first = begin + team.team_rank() * share;
      if (first < part.size) {
        write_steps(team, part, first, Kokkos::min(first + share, part.size));
      }
    }
  }

  /// Host: sequence after sequence.
  template <class Writer, class Team, class Rows>
  KOKKOS_FUNCTION void write_sequences(const Team& team, const Part<Rows>& part) const {
    Writer writer(part.out, part.size);
    Sequence sequence = locate(team, part, 0);
    for (std::int32_t token = 0; token < part.size;) {
      advance(part, sequence, token);
      const std::int32_t count = Kokkos::min(sequence.end, part.size) - token;
      write_positions(writer, sequence.page_ids, token + sequence.position_shift, count);
      token += count;
    }
    writer.finish();
  }

  /// The slots of `count` positions of one sequence from `position` on, page after page.
  template <class Writer>
  KOKKOS_FUNCTION void write_positions(Writer& writer, const std::int32_t* page_ids,
                                       std::int32_t position, std::int32_t count) const {
    const std::int32_t size = page_size.value();
    if (size == 1) return writer.ids(page_ids + position, count);
    std::int32_t page = page_size.quotient(position);
    for (std::int32_t within = position - page * size; count > 0; within = 0, ++page) {
      const std::int32_t here = Kokkos::min(count, size - within);
      writer.run(slot({.page_id = page_ids[page], .within = within}), here);
      count -= here;
    }
  }

  template <class Team>
  static constexpr std::int32_t threads = tile_team_size<typename Team::execution_space>;
  template <class Team>
  static constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
  /// Slots that the lanes of a thread write together, a pack each.
  template <class Team>
  static constexpr std::int32_t step = lanes<Team>* pack;

  /// Device: the tokens from `begin`, which lies on a 16-byte unit and may be negative, to `end`.
  template <class Team, class Rows>
  KOKKOS_FUNCTION void write_steps(const Team& team, const Part<Rows>& part, std::int32_t begin,
                                   std::int32_t end) const {
    Sequence sequence = locate(team, part, Kokkos::max(begin, 0));
    for (std::int32_t unit = begin; unit < end;) {
      advance(part, sequence, Kokkos::max(unit, 0));
      const std::int32_t inside = (Kokkos::min(sequence.end, end) - unit) / step<Team>;
      if (unit >= 0 && inside > 0) {
        const std::int32_t steps = inside < unroll ? inside : unroll;
        write_inside(team, sequence, part.out + unit, unit + sequence.position_shift, steps);
        unit += steps * step<Team>;
      } else {
        write_across(team, part, sequence, unit, end);
        unit += step<Team>;
      }
    }
  }

  /// `steps` steps, at most `unroll`, of one sequence from `position` on. Where packs and pages are
  /// aligned, all page ids are loaded before the first is used; the other two ways would need so
  /// many registers for that that fewer teams ran.
  template <class Team>
  KOKKOS_FUNCTION void write_inside(const Team& team, const Sequence& sequence, Slot* out,
                                    std::int32_t position, std::int32_t steps) const {
    const std::int32_t* const page_ids = sequence.page_ids;
    const std::int32_t size = page_size.value();
    for_lanes(team, [&](const std::int32_t lane) {
      const auto packs = reinterpret_cast<Pack<Slot>*>(out) + lane;
      const std::int32_t mine = position + lane * pack;
      if (position % pack == 0 && size % pack == 0) {  // no pack reaches over a page's end
        Place first[unroll];
        for (std::int32_t u = 0; u < unroll; ++u) {
          if (u < steps) first[u] = place(page_ids, mine + u * step<Team>);
        }
        for (std::int32_t u = 0; u < unroll; ++u) {
          if (u < steps) store(packs + u * lanes<Team>, run(slot(first[u])));
        }
      } else if (size >= pack - 1) {  // none reaches over two
        CHUNKED_PREFILL_ROLLED
        for (std::int32_t u = 0; u < steps; ++u) {
          const Place begin = place(page_ids, mine + u * step<Team>);
          const Place last = place(page_ids, mine + u * step<Team> + pack - 1);
          store(packs + u * lanes<Team>, run(begin, last));
        }
      } else {
        CHUNKED_PREFILL_ROLLED
        for (std::int32_t u = 0; u < steps; ++u) {
          store(packs + u * lanes<Team>, look_up(page_ids, mine + u * step<Team>));
        }
      }
    });
  }
  KOKKOS_FUNCTION static Pack<Slot> run(Slot first) {
    Pack<Slot> values;
    for (std::int32_t k = 0; k < pack; ++k) values.slots[k] = plus(first, k);
    return values;
  }
  KOKKOS_FUNCTION Pack<Slot> run(const Place& first, const Place& last) const {
    const Slot up = slot(first);
    const Slot down = slot(last);
    const std::int32_t on_first = page_size.value() - first.within;
    Pack<Slot> values;
    for (std::int32_t k = 0; k < pack; ++k) {
      values.slots[k] = k < on_first ? plus(up, k) : plus(down, k - (pack - 1));
    }
    return values;
  }
  KOKKOS_FUNCTION Pack<Slot> look_up(const std::int32_t* page_ids, std::int32_t position) const {
    Place places[pack];
    for (std::int32_t k = 0; k < pack; ++k) places[k] = place(page_ids, position + k);
    Pack<Slot> values;
    for (std::int32_t k = 0; k < pack; ++k) values.slots[k] = slot(places[k]);
    return values;
  }

  /// What lies in [0, end) of the step at `unit`, over the end of a sequence or not full: each lane
  /// finds its own sequences, slot by slot.
  template <class Team, class Rows>
  KOKKOS_FUNCTION void write_across(const Team& team, const Part<Rows>& part,
                                    const Sequence& sequence, std::int32_t unit,
                                    std::int32_t end) const {
    for_lanes(team, [&](const std::int32_t lane) {
      Sequence mine = sequence;
      Place places[pack];
      for (std::int32_t k = 0; k < pack; ++k) {
        const std::int32_t token = unit + k * lanes<Team> + lane;
        if (token < 0 || token >= end) continue;
        advance(part, mine, token);
        places[k] = place(mine.page_ids, token + mine.position_shift);
      }
      for (std::int32_t k = 0; k < pack; ++k) {
        const std::int32_t token = unit + k * lanes<Team> + lane;
        if (token >= 0 && token < end) part.out[token] = slot(places[k]);
      }
    });
  }
};

}  // namespace chunked_prefill::impl
