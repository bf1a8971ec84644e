// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/equal_split.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/search.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// What SlotTiles asks of a batch, computed from the prefix lengths by each team for itself: the
/// batch is read into team scratch once, and one thread computes the loop that its team writes.
/// Needs no other kernel before it. Batches are at most `most_sequences` long, and their tokens are
/// counted in 31 bits.
struct StagedRows {
  EqualSplit split;
  Divisor most_per_loop;  ///< batch_size * chunk_len
  std::int32_t batch_size;
  std::int32_t* prefix_lens;  ///< scratch, (batch_size), cut at the plan's
  std::int32_t* requests;     ///< scratch, (batch_size) rows of the page table
  std::int32_t* cum;          ///< scratch, (batch_size + 1) of the loop that the team is at
  std::int32_t* shared;       ///< scratch, (4) loop, begin, end and first position of that loop

  static constexpr std::int32_t most_sequences = 512;
  static constexpr std::int64_t most_tokens = INT32_MAX;

  /// One loop.
  struct Row {
    std::int32_t loop = -1;
    std::int32_t begin = 0;  ///< its flat indices are [begin, end)
    std::int32_t end = 0;
    std::int32_t first_position = 0;    ///< of the loop in every sequence
    const std::int32_t* cum = nullptr;  ///< (batch_size + 1) its cumulative lengths

    /// Position of sequence `i` at which the loop begins.
    KOKKOS_FUNCTION std::int32_t start(std::int32_t) const { return first_position; }
  };

  template <ExecutionSpace Space>
  using Scratch = Kokkos::View<std::int32_t*, typename Space::scratch_memory_space,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  /// Elements of all four scratch arrays.
  KOKKOS_FUNCTION static constexpr int scratch_size(std::int32_t batch_size) {
    return 3 * batch_size + 1 + 4;
  }

  /// Reads the batch. The whole team calls it, and waits before it reads what the others have read.
  template <class Team>
  KOKKOS_FUNCTION static StagedRows stage(const Team& team, const EqualSplit& split,
                                          const Divisor& most_per_loop,
                                          const IndexArray& prefix_lens,
                                          const IndexArray& req_pool_indices) {
    const std::int32_t n = split.batch_size;
    const Scratch<typename Team::execution_space> scratch(team.team_scratch(0), scratch_size(n));
    StagedRows rows{.split = split,
                    .most_per_loop = most_per_loop,
                    .batch_size = n,
                    .prefix_lens = scratch.data(),
                    .requests = scratch.data() + n,
                    .cum = scratch.data() + 2 * n,
                    .shared = scratch.data() + 3 * n + 1};
    const std::int32_t half = (n + 1) / 2;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, half), [&](const std::int32_t i) {
      // Two sequences a lane: all that it loads is under way before it waits for any.
      const std::int32_t j = Kokkos::min(i + half, n - 1);
      const std::int32_t lens[] = {prefix_lens.clamped(i, split.max_prefix_len),
                                   prefix_lens.clamped(j, split.max_prefix_len)};
      const std::int64_t table_rows[] = {req_pool_indices[i], req_pool_indices[j]};
      rows.prefix_lens[i] = lens[0];
      rows.requests[i] = static_cast<std::int32_t>(table_rows[0]);
      if (i + half < n) {
        rows.prefix_lens[j] = lens[1];
        rows.requests[j] = static_cast<std::int32_t>(table_rows[1]);
      }
    });
    return rows;
  }

  /// Makes `row` the loop that holds flat index `flat`, a later one than it was; false past the
  /// last token. The whole team calls it.
  template <class Team>
  KOKKOS_FUNCTION bool find(const Team& team, Row& row, std::int64_t flat) const {
    const auto index = static_cast<std::int32_t>(flat);
    row = seek(team, Kokkos::max(most_per_loop.quotient(index), row.loop + 1), index);
    return row.end > row.begin;
  }
  /// The sequence that has token `in_row` of the loop.
  template <class Team>
  KOKKOS_FUNCTION std::int32_t locate(const Team&, const Row& row, std::int32_t in_row) const {
    return last_at_most(row.cum, 0, batch_size, in_row);
  }
  KOKKOS_FUNCTION std::int64_t request(std::int32_t i) const { return requests[i]; }

  /// Writes row `loop` of the chunk table. The whole team calls it.
  template <class Team>
  KOKKOS_FUNCTION void write_row(const Team& team, const ChunkTable& table,
                                 std::int32_t loop) const {
    const Row row = seek(team, loop, 0);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, batch_size), [&](const std::int32_t i) {
      table.write(split, loop, i, row.first_position, prefix_lens[i], row.cum[i + 1]);
    });
    Kokkos::single(Kokkos::PerTeam(team),
                   [&] { table.write_offsets(split, loop, row.begin, row.end); });
  }

 private:
  /// Two counts, summed as the halves of one number.
  struct Counts {
    std::int32_t before;   ///< in all loops before the one looked at
    std::int32_t in_loop;  ///< in that loop
    KOKKOS_FUNCTION explicit Counts(std::int64_t both)
        : before(static_cast<std::int32_t>(both >> 32)), in_loop(static_cast<std::int32_t>(both)) {}
  };

  /// Loop `loop`, or the later one that holds flat index `flat`. The whole team calls it.
  ///
  /// `flat` lies `beyond` tokens after the beginning of the loop looked at, and no later loop holds
  /// more than its `in_loop` tokens: at least `beyond / in_loop` loops lie between. The steps are
  /// those of Newton's method on a concave function: one for prefixes of equal length, rarely more
  /// than three.
  template <class Team>
  KOKKOS_FUNCTION Row seek(const Team& team, std::int64_t loop, std::int32_t flat) const {
    team.team_barrier();  // the batch is read, and nobody reads the last loop any more
    if (team.team_rank() == 0) {
      while (true) {
        const std::int32_t start = split.start(loop);
        const Counts tokens = scan(team, start);
        const std::int32_t beyond = flat - tokens.before;
        if (beyond < tokens.in_loop || tokens.in_loop == 0) {
          Kokkos::single(Kokkos::PerThread(team), [&] {
            cum[batch_size] = tokens.in_loop;
            shared[0] = static_cast<std::int32_t>(loop);
            shared[1] = tokens.before;
            shared[2] = tokens.before + tokens.in_loop;
            shared[3] = start;
          });
          break;
        }
        loop += beyond / tokens.in_loop;
      }
    }
    team.team_barrier();
    return {.loop = shared[0],
            .begin = shared[1],
            .end = shared[2],
            .first_position = shared[3],
            .cum = cum};
  }

  /// Counts the tokens of the loop that begins at `start` and of those before it, and writes its
  /// cumulative lengths. Each lane scans a stretch of the batch.
  template <class Team>
  KOKKOS_FUNCTION Counts scan(const Team& team, std::int32_t start) const {
    constexpr std::int32_t lanes = lane_num<typename Team::execution_space>;
    std::int32_t stretch = (batch_size + lanes - 1) / lanes;
    if (stretch > 2) stretch |= 1;  // lanes an odd number of words apart meet in no scratch bank
    std::int64_t total = 0;
    Kokkos::parallel_scan(
        Kokkos::ThreadVectorRange(team, lanes),
        [&](const std::int32_t lane, std::int64_t& sum, const bool final) {
          const std::int32_t last = Kokkos::min(batch_size, (lane + 1) * stretch);
          for (std::int32_t i = lane * stretch; i < last; ++i) {
            const std::int32_t length = prefix_lens[i];
            if (final) cum[i] = Counts(sum).in_loop;
            sum += (std::int64_t{EqualSplit::tokens_before(length, start)} << 32) +
                   split.tokens(length, start);
          }
        },
        total);
    return Counts(total);
  }
};

}  // namespace chunked_prefill::impl
