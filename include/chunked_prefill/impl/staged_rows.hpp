// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/equal_split.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/lanes.hpp>
#include <chunked_prefill/impl/packed_split.hpp>
#include <chunked_prefill/impl/search.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// What SlotTiles asks of a batch, computed from the prefix lengths by each team for itself: the
/// batch is read into team scratch once, and one thread computes the loop that its team writes.
/// Needs no other kernel before it. Batches are at most `most_sequences` long, and their tokens are
/// counted in 31 bits.
template <Shard Held>
struct StagedRows {
  static constexpr std::int32_t most_sequences = 512;
  static constexpr std::int64_t most_tokens = INT32_MAX;
  using Stretch = typename EqualSplit<Held>::Stretch;

  /// Four numbers, which a lane reads or writes at once.
  struct alignas(16) Quad {
    std::int32_t of[4];
  };
  template <ExecutionSpace Space>
  using Scratch = Kokkos::View<Quad*, typename Space::scratch_memory_space,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  /// What is read, and how it is split.
  struct Batch {
    IndexArray prefix_lens;       ///< (batch_size)
    IndexArray req_pool_indices;  ///< (batch_size)
    EqualSplit<Held> split;       ///< of a packed batch one loop, in whose order its slots are
    PackedSplit<Held> packed;     ///< of the table, where `is_packed`
    bool is_packed = false;
    // Set by `prepare`, on the host.
    Divisor most_per_loop = {};
    std::int32_t padded = 0;  ///< batch_size rounded up to whole quads, as many for every lane
    std::int32_t quads = 0;   ///< of scratch

    template <ExecutionSpace Space>
    void prepare() {
      most_per_loop = Divisor(split.most_per_loop());
      padded = padded_size<Space>(split.batch_size);
      quads = scratch_quads<Space>(split.batch_size, is_packed);
    }
  };

  const Batch& batch;
  std::int32_t batch_size;
  std::int32_t* scratch;  ///< (4 * batch.quads) the arrays below, one after another

  /// One loop.
  struct Row {
    std::int32_t loop = -1;
    std::int32_t begin = 0;  ///< its flat indices are [begin, end)
    std::int32_t end = 0;
    std::int32_t place = 0;  ///< at which it begins in every sequence

    /// Place in sequence `i` at which the loop begins.
    KOKKOS_FUNCTION std::int32_t start(std::int32_t) const { return place; }
  };

  /// Scratch that a batch of `batch_size` takes.
  template <ExecutionSpace Space>
  static std::int32_t scratch_quads(std::int32_t batch_size, bool is_packed) {
    return ((is_packed ? 3 : 2) * padded_size<Space>(batch_size) + 4) / 4 + ceil_div(batch_size, 4);
  }

  /// Reads the batch. The whole team calls it, and waits before it reads what the others have read.
  template <class Team>
  KOKKOS_FUNCTION static StagedRows stage(const Team& team, const Batch& batch) {
    const Scratch<typename Team::execution_space> scratch(team.team_scratch(0), batch.quads);
    const StagedRows rows{.batch = batch,
                          .batch_size = batch.split.batch_size,
                          .scratch = reinterpret_cast<std::int32_t*>(scratch.data())};
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, batch.padded), [&](const std::int32_t i) {
      std::int32_t length = 0;
      if (i < rows.batch_size) {
        length = batch.split.length(batch.prefix_lens, i);
        rows.requests()[i] = static_cast<std::int32_t>(batch.req_pool_indices[i]);
      }
      rows.lengths()[i] = length;
    });
    return rows;
  }

  /// Makes `row` the loop that holds flat index `flat`, a later one than it was; false past the
  /// last token. The whole team calls it.
  template <class Team>
  KOKKOS_FUNCTION bool find(const Team& team, Row& row, std::int64_t flat) const {
    const auto index = static_cast<std::int32_t>(flat);
    row = seek(team, Kokkos::max(batch.most_per_loop.quotient(index), row.loop + 1), index);
    return row.end > row.begin;
  }
  /// The sequence that has token `in_row` of the loop.
  template <class Team>
  KOKKOS_FUNCTION std::int32_t locate(const Team& team, const Row& row, std::int32_t in_row) const {
    using Space = typename Team::execution_space;
    if constexpr (runs_on_host<Space>) {
      return last_at_most(cum(row), 0, batch_size, in_row);
    } else {
      // All loads in flight at once, where halving would wait for one after another. Behind the
      // batch, cum is the length of the loop.
      const std::int32_t at_most = lane_sum(team, [&](const std::int32_t lane) {
        std::int32_t sum = 0;
        CHUNKED_PREFILL_ROLLED
        for (std::int32_t i = 4 * lane; i < batch.padded; i += 4 * lane_num<Space>) {
          const Quad ends = quad(cum(row) + i);
          for (const std::int32_t end : ends.of) sum += end <= in_row ? 1 : 0;
        }
        return sum;
      });
      return at_most - 1;
    }
  }
  /// (batch_size + 1) the cumulative lengths of the loop.
  KOKKOS_FUNCTION const std::int32_t* cum(const Row&) const { return cum(); }
  KOKKOS_FUNCTION std::int64_t request(std::int32_t i) const { return requests()[i]; }

  /// Loop `loop`. The whole team calls it.
  template <class Team>
  KOKKOS_FUNCTION Row row(const Team& team, std::int32_t loop) const {
    return seek(team, loop, -1);
  }
  /// The loop after `row`, whether or not it holds anything. The whole team calls it.
  template <class Team>
  KOKKOS_FUNCTION Row next(const Team& team, const Row& row) const {
    const std::int64_t loop = std::int64_t{row.loop} + 1;
    const auto stretch = batch.split.stretch(loop);
    wait_for_team(team);  // nobody reads the last loop any more
    if (team.team_rank() == 0) {
      enter(team, loop, stretch, row.end, count_before(team, stretch.end));
    }
    wait_for_team(team);
    return entered();
  }
  /// Writes row `row` of an equal split's chunk table. The whole team calls it, and is at that
  /// loop.
  template <class Team>
  KOKKOS_FUNCTION void write(const Team& team, const Row& row, const ChunkTable& table) const {
    const auto stretch = batch.split.stretch(row.loop);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, batch_size), [&](const std::int32_t i) {
      table.write(row.loop, i, stretch.begin, stretch.end_in(lengths()[i]), cum()[i + 1]);
    });
    Kokkos::single(Kokkos::PerTeam(team),
                   [&] { table.write_offsets(row.loop, row.begin, row.end); });
  }

  /// Writes every `step`-th row of a packed split's chunk table from row `first` on. The whole team
  /// calls it: the cumulative lengths of the one loop of its slots, cut at those of a loop, are the
  /// loop's.
  template <class Team>
  KOKKOS_FUNCTION void write_packed(const Team& team, const ChunkTable& table, std::int32_t first,
                                    std::int32_t step) const {
    const PackedSplit<Held>& split = batch.packed;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, batch.padded), [&](const std::int32_t i) {
      padded_before()[i] =
          i < batch_size ? static_cast<std::int32_t>(split.padded(batch.prefix_lens, i)) : 0;
    });
    wait_for_team(team);
    if (team.team_rank() == 0) {
      const auto all = batch.split.stretch(0);
      enter(team, 0, all, 0, count_before(team, all.end));
      write_sums(team, padded_before(), padded_before(),
                 [](std::int32_t padded) { return padded; });
    }
    wait_for_team(team);
    CHUNKED_PREFILL_ROLLED
    for (std::int64_t loop = first; loop < table.chunked_loop_num; loop += step) {
      const std::int64_t cut = split.cut(loop);
      const std::int64_t next_cut = split.cut(loop + 1);
      const auto tokens_before = [&](std::int64_t at, std::int32_t i) {
        return split.before(at, lengths()[i], padded_before()[i]);
      };
      const auto count = [&](std::int64_t at) {
        constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
        return lane_sum(team, [&](const std::int32_t lane) {
          std::int32_t sum = 0;
          CHUNKED_PREFILL_ROLLED
          for (std::int32_t i = lane; i < batch_size; i += lanes) sum += tokens_before(at, i);
          return sum;
        });
      };
      const std::int32_t begin = count(cut);
      const std::int32_t end = count(next_cut);
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, batch_size), [&](const std::int32_t i) {
        table.write(static_cast<std::int32_t>(loop), i, tokens_before(cut, i),
                    tokens_before(next_cut, i), Kokkos::clamp(cum()[i + 1], begin, end) - begin);
      });
      Kokkos::single(Kokkos::PerTeam(team),
                     [&] { table.write_offsets(static_cast<std::int32_t>(loop), begin, end); });
    }
  }

 private:
  template <ExecutionSpace Space>
  static std::int32_t padded_size(std::int32_t batch_size) {
    constexpr std::int32_t step = 4 * lane_num<Space>;
    return ceil_div(batch_size, step) * step;
  }
  /// (padded) of the sequences, 0 behind the batch.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* lengths() const { return scratch; }
  /// (padded) of the loop that the team is at; behind the batch the length of the loop.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* cum() const { return scratch + batch.padded; }
  /// (4) of that loop: its length, index, begin and place. The length lies right behind `cum`,
  /// and so is cum[batch_size] of a batch that is not padded.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* shared() const { return scratch + 2 * batch.padded; }
  /// (batch_size) rows of the page table.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* requests() const { return shared() + 4; }
  /// (padded) of a packed batch: padded tokens before each sequence.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* padded_before() const {
    return requests() + ceil_div(batch_size, 4) * 4;
  }
  KOKKOS_FUNCTION static Quad& quad(std::int32_t* first) { return *reinterpret_cast<Quad*>(first); }
  KOKKOS_FUNCTION static const Quad& quad(const std::int32_t* first) {
    return *reinterpret_cast<const Quad*>(first);
  }

  /// Loop `loop`, or the later one that holds flat index `flat`; -1 is held by every loop. The
  /// whole team calls it.
  ///
  /// The loop looked at holds [begin, end), and no later stretch holds more for its length: `flat`
  /// lies at least (flat - begin) / (end - begin) such stretches on. The steps are those of
  /// Newton's method on a concave function: one for prefixes of equal length, rarely more than
  /// three.
  template <class Team>
  KOKKOS_FUNCTION Row seek(const Team& team, std::int64_t loop, std::int32_t flat) const {
    wait_for_team(team);  // the batch is read, and nobody reads the last loop any more
    if (team.team_rank() == 0) {
      while (true) {
        const auto stretch = batch.split.stretch(loop);
        const std::int32_t begin = count_before(team, stretch.begin);
        const std::int32_t end = count_before(team, stretch.end);
        if (flat < end || (begin == end && batch.split.is_last(stretch))) {
          enter(team, loop, stretch, begin, end);
          break;
        }
        loop = batch.split.loop_after(loop, stretch,
                                      begin == end ? 0 : (flat - begin) / (end - begin));
      }
    }
    wait_for_team(team);
    return entered();
  }
  /// Lets the team know of the loop that it goes to. One thread calls it.
  template <class Team>
  KOKKOS_FUNCTION void enter(const Team& team, std::int64_t loop, const Stretch& stretch,
                             std::int32_t begin, std::int32_t end) const {
    write_sums(team, lengths(), cum(), [&](std::int32_t length) { return stretch.tokens(length); });
    Kokkos::single(Kokkos::PerThread(team), [&] {
      shared()[0] = end - begin;
      shared()[1] = static_cast<std::int32_t>(loop);
      shared()[2] = begin;
      shared()[3] = stretch.begin;
    });
  }
  KOKKOS_FUNCTION Row entered() const {
    const std::int32_t begin = shared()[2];
    return {.loop = shared()[1], .begin = begin, .end = begin + shared()[0], .place = shared()[3]};
  }

  /// Tokens before `place` in all sequences. One thread calls it.
  template <class Team>
  KOKKOS_FUNCTION std::int32_t count_before(const Team& team, std::int32_t place) const {
    constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
    return lane_sum(team, [&](const std::int32_t lane) {
      std::int32_t sum = 0;
      CHUNKED_PREFILL_ROLLED
      for (std::int32_t i = 4 * lane; i < batch.padded; i += 4 * lanes) {
        const Quad some = quad(lengths() + i);
        for (const std::int32_t length : some.of)
          sum += EqualSplit<Held>::tokens_before(length, place);
      }
      return sum;
    });
  }

  /// Writes the exclusive sums of `tokens` of each element of `from`, both (padded). One thread
  /// calls it; each of its lanes scans a part of the batch. `from` and `to` may be the same.
  template <class Team, class Tokens>
  KOKKOS_FUNCTION void write_sums(const Team& team, const std::int32_t* from, std::int32_t* to,
                                  const Tokens& tokens) const {
    const std::int32_t part = batch.padded / lane_num<typename Team::execution_space>;
    lane_scan(
        team,
        [&](const std::int32_t lane) {
          std::int32_t sum = 0;
          CHUNKED_PREFILL_ROLLED
          for (std::int32_t i = lane * part; i < (lane + 1) * part; i += 4) {
            const Quad some = quad(from + i);
            for (const std::int32_t value : some.of) sum += tokens(value);
          }
          return sum;
        },
        [&](const std::int32_t lane, std::int32_t sum) {
          CHUNKED_PREFILL_ROLLED
          for (std::int32_t i = lane * part; i < (lane + 1) * part; i += 4) {
            const Quad some = quad(from + i);
            Quad sums;
            for (std::int32_t k = 0; k < 4; ++k) {
              sums.of[k] = sum;
              sum += tokens(some.of[k]);
            }
            quad(to + i) = sums;
          }
        });
  }
};

}  // namespace chunked_prefill::impl
