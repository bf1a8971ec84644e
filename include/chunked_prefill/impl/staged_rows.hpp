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
struct StagedRows {
  static constexpr std::int32_t most_sequences = 512;
  static constexpr std::int64_t most_tokens = INT32_MAX;

  /// Four numbers, which a lane reads or writes at once.
  struct alignas(16) Quad {
    std::int32_t of[4];
  };
  template <ExecutionSpace Space>
  using Scratch = Kokkos::View<Quad*, typename Space::scratch_memory_space,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  /// What is read.
  struct Batch {
    IndexArray prefix_lens;       ///< (batch_size)
    IndexArray req_pool_indices;  ///< (batch_size)
    EqualSplit split;
    // Set by `prepare`, on the host.
    Divisor most_per_loop = {};  ///< batch_size * chunk_len
    std::int32_t padded = 0;     ///< batch_size rounded up to whole quads, as many for every lane
    std::int32_t quads = 0;      ///< of scratch

    template <ExecutionSpace Space>
    void prepare() {
      most_per_loop = Divisor(split.batch_size * split.chunk_len);
      padded = padded_size<Space>(split.batch_size);
      quads = scratch_quads<Space>(split.batch_size);
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
    std::int32_t first_position = 0;  ///< of the loop in every sequence

    /// Position of sequence `i` at which the loop begins.
    KOKKOS_FUNCTION std::int32_t start(std::int32_t) const { return first_position; }
  };

  /// Scratch that a batch of `batch_size` takes.
  template <ExecutionSpace Space>
  static std::int32_t scratch_quads(std::int32_t batch_size) {
    return (3 * padded_size<Space>(batch_size) + 4) / 4 + ceil_div(batch_size, 4);
  }

  /// Reads the batch. The whole team calls it, and waits before it reads what the others have read.
  template <class Team>
  KOKKOS_FUNCTION static StagedRows stage(const Team& team, const Batch& batch) {
    const Scratch<typename Team::execution_space> scratch(team.team_scratch(0), batch.quads);
    const StagedRows rows{.batch = batch,
                          .batch_size = batch.split.batch_size,
                          .scratch = reinterpret_cast<std::int32_t*>(scratch.data())};
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, batch.padded), [&](const std::int32_t i) {
      std::int32_t prefix_len = 0;
      if (i < rows.batch_size) {
        prefix_len = batch.prefix_lens.clamped(i, batch.split.max_prefix_len);
        rows.requests()[i] = static_cast<std::int32_t>(batch.req_pool_indices[i]);
      }
      rows.prefix_lens()[i] = prefix_len;
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

  /// Writes row `loop` of an equal split's chunk table. The whole team calls it.
  template <class Team>
  KOKKOS_FUNCTION void write_row(const Team& team, const ChunkTable& table,
                                 std::int32_t loop) const {
    const Row row = seek(team, loop, 0);
    const std::int32_t start = row.first_position;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, batch_size), [&](const std::int32_t i) {
      table.write(loop, i, start, batch.split.end(prefix_lens()[i], start), cum()[i + 1]);
    });
    Kokkos::single(Kokkos::PerTeam(team), [&] { table.write_offsets(loop, row.begin, row.end); });
  }

  /// Writes every `step`-th row of a packed split's chunk table from row `first` on. The whole team
  /// calls it, with a batch of one loop: its cumulative lengths, cut at those of a loop, are the
  /// loop's.
  template <class Team>
  KOKKOS_FUNCTION void write_packed_rows(const Team& team, const PackedSplit& split,
                                         const ChunkTable& table, std::int32_t first,
                                         std::int32_t step) const {
    seek(team, 0, 0);
    if (team.team_rank() == 0) write_padded_before(team, split);
    team.team_barrier();
    CHUNKED_PREFILL_ROLLED
    for (std::int64_t loop = first; loop < table.chunked_loop_num; loop += step) {
      const auto tokens_before = [&](std::int64_t cut, std::int32_t i) {
        return PackedSplit::before(cut, prefix_lens()[i], padded_before()[i]);
      };
      const std::int64_t cut = split.cut(loop);
      const std::int64_t next_cut = split.cut(loop + 1);
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
  /// (padded) cut at the plan's, 0 behind the batch.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* prefix_lens() const { return scratch; }
  /// (padded) of the loop that the team is at; behind the batch the length of the loop.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* cum() const { return scratch + batch.padded; }
  /// (4) of that loop: its length, index, begin and first position. The length lies right behind
  /// `cum`, and so is cum[batch_size] of a batch that is not padded.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* shared() const { return scratch + 2 * batch.padded; }
  /// (batch_size) rows of the page table.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* requests() const { return shared() + 4; }
  /// (padded) padded tokens of a packed split before each sequence.
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t* padded_before() const {
    return requests() + ceil_div(batch_size, 4) * 4;
  }
  KOKKOS_FUNCTION static Quad& quad(std::int32_t* first) { return *reinterpret_cast<Quad*>(first); }
  KOKKOS_FUNCTION static const Quad& quad(const std::int32_t* first) {
    return *reinterpret_cast<const Quad*>(first);
  }

  /// Loop `loop`, or the later one that holds flat index `flat`. The whole team calls it.
  ///
  /// The loop looked at holds [begin, end), and no later one holds more: `flat` lies at least
  /// (flat - begin) / (end - begin) loops on. The steps are those of Newton's method on a concave
  /// function: one for prefixes of equal length, rarely more than three.
  template <class Team>
  KOKKOS_FUNCTION Row seek(const Team& team, std::int64_t loop, std::int32_t flat) const {
    team.team_barrier();  // the batch is read, and nobody reads the last loop any more
    if (team.team_rank() == 0) {
      while (true) {
        const std::int32_t start = batch.split.start(loop);
        const std::int32_t begin = count_before(team, start);
        const std::int32_t end = count_before(team, batch.split.start(loop + 1));
        if (flat < end || begin == end) {
          write_cum(team, start);
          Kokkos::single(Kokkos::PerThread(team), [&] {
            shared()[0] = end - begin;
            shared()[1] = static_cast<std::int32_t>(loop);
            shared()[2] = begin;
            shared()[3] = start;
          });
          break;
        }
        loop += (flat - begin) / (end - begin);
      }
    }
    team.team_barrier();
    const std::int32_t begin = shared()[2];
    return {.loop = shared()[1],
            .begin = begin,
            .end = begin + shared()[0],
            .first_position = shared()[3]};
  }

  /// Tokens before `position` in all sequences. One thread calls it.
  template <class Team>
  KOKKOS_FUNCTION std::int32_t count_before(const Team& team, std::int32_t position) const {
    constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
    return lane_sum(team, [&](const std::int32_t lane) {
      std::int32_t sum = 0;
      CHUNKED_PREFILL_ROLLED
      for (std::int32_t i = 4 * lane; i < batch.padded; i += 4 * lanes) {
        const Quad lens = quad(prefix_lens() + i);
        for (const std::int32_t len : lens.of) sum += EqualSplit::tokens_before(len, position);
      }
      return sum;
    });
  }

  /// Writes the cumulative lengths of the loop that begins at `start`. One thread calls it; each of
  /// its lanes scans a stretch of the batch.
  template <class Team>
  KOKKOS_FUNCTION void write_cum(const Team& team, std::int32_t start) const {
    const std::int32_t stretch = batch.padded / lane_num<typename Team::execution_space>;
    lane_scan(
        team,
        [&](const std::int32_t lane) {
          std::int32_t sum = 0;
          CHUNKED_PREFILL_ROLLED
          for (std::int32_t i = lane * stretch; i < (lane + 1) * stretch; i += 4) {
            const Quad lens = quad(prefix_lens() + i);
            for (const std::int32_t len : lens.of) sum += batch.split.tokens(len, start);
          }
          return sum;
        },
        [&](const std::int32_t lane, std::int32_t sum) {
          CHUNKED_PREFILL_ROLLED
          for (std::int32_t i = lane * stretch; i < (lane + 1) * stretch; i += 4) {
            const Quad lens = quad(prefix_lens() + i);
            Quad sums;
            for (std::int32_t k = 0; k < 4; ++k) {
              sums.of[k] = sum;
              sum += batch.split.tokens(lens.of[k], start);
            }
            quad(cum() + i) = sums;
          }
        });
  }

  template <class Team>
  KOKKOS_FUNCTION void write_padded_before(const Team& team, const PackedSplit& split) const {
    const std::int32_t stretch = batch.padded / lane_num<typename Team::execution_space>;
    lane_scan(
        team,
        [&](const std::int32_t lane) {
          std::int32_t sum = 0;
          CHUNKED_PREFILL_ROLLED
          for (std::int32_t i = lane * stretch; i < (lane + 1) * stretch; ++i) {
            sum += static_cast<std::int32_t>(split.padded(prefix_lens()[i]));
          }
          return sum;
        },
        [&](const std::int32_t lane, std::int32_t sum) {
          CHUNKED_PREFILL_ROLLED
          for (std::int32_t i = lane * stretch; i < (lane + 1) * stretch; ++i) {
            padded_before()[i] = sum;
            sum += static_cast<std::int32_t>(split.padded(prefix_lens()[i]));
          }
        });
  }
};

}  // namespace chunked_prefill::impl
