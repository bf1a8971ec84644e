// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/chunk_rows.hpp>
#include <chunked_prefill/impl/chunk_table.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/packed_split.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Tokens of some sequences, and the same padded to whole grains.
struct PackedTokens {
  std::int64_t tokens = 0;
  std::int64_t padded = 0;

  KOKKOS_FUNCTION PackedTokens& operator+=(const PackedTokens& other) {
    tokens += other.tokens;
    padded += other.padded;
    return *this;
  }
};

}  // namespace chunked_prefill::impl

template <>
struct Kokkos::reduction_identity<chunked_prefill::impl::PackedTokens> {
  KOKKOS_FUNCTION static chunked_prefill::impl::PackedTokens sum() { return {}; }
};

namespace chunked_prefill::impl {

/// The chunk table of a packed split by itself, one team a loop, for batches of any size. Shared
/// out as by ChunkRows. The cumulative lengths of a loop are those of the batch, cut where the loop
/// begins and ends; those places are known to whoever holds the sequences in which it does.
struct PackedRows {
  IndexArray prefix_lens;  ///< (batch_size)
  PackedSplit<TokenShard> split;
  ChunkTable table;

  template <ExecutionSpace Space>
  using Scratch = Kokkos::View<PackedTokens*, typename Space::scratch_memory_space,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  template <ExecutionSpace Space>
  using CutScratch = Kokkos::View<std::int64_t*, typename Space::scratch_memory_space,
                                  Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  template <ExecutionSpace Space>
  static std::size_t scratch_bytes(int team_size) {
    return Scratch<Space>::shmem_size(team_size) + CutScratch<Space>::shmem_size(2);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using Space = typename Team::execution_space;
    const std::int32_t loop = team.league_rank();
    const std::int64_t cuts[] = {split.cut(loop), split.cut(loop + std::int64_t{1})};
    const std::int32_t n = table.batch_size;
    const std::int32_t part = ceil_div(n, static_cast<std::int32_t>(team.team_size()));
    const std::int32_t first = Kokkos::min(n, team.team_rank() * part);
    const std::int32_t size = Kokkos::min(n - first, part);
    const Scratch<Space> of_thread(team.team_scratch(0), team.team_size());
    const CutScratch<Space> offsets(team.team_scratch(0), 2);

    // Tokens of each thread's part.
    PackedTokens sum;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team, size),
        [&](const std::int32_t k, PackedTokens& to) { to += tokens(first + k); },
        Kokkos::Sum<PackedTokens>(sum));
    Kokkos::single(Kokkos::PerThread(team), [&] { of_thread(team.team_rank()) = sum; });
    team.team_barrier();

    // Tokens of the parts before this one, and of all.
    PackedTokens before;
    PackedTokens all;
    for (int t = 0; t < team.team_size(); ++t) {
      if (t == team.team_rank()) before = all;
      all += of_thread(t);
    }
    // The tokens before both cuts: all, unless a sequence holds one.
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      for (int k = 0; k < 2; ++k) {
        if (cuts[k] >= all.padded) offsets(k) = all.tokens;
      }
    });
    Kokkos::parallel_scan(Kokkos::ThreadVectorRange(team, size),
                          [&](const std::int32_t k, PackedTokens& to, const bool final) {
                            const PackedTokens own = tokens(first + k);
                            if (final) {
                              for (int c = 0; c < 2; ++c) {
                                const std::int64_t padded_before = before.padded + to.padded;
                                const std::int64_t within = cuts[c] - padded_before;
                                if (within >= 0 && within < own.padded) {
                                  offsets(c) = before.tokens + to.tokens +
                                               before_cut(cuts[c], own, padded_before);
                                }
                              }
                            }
                            to += own;
                          });
    team.team_barrier();

    const std::int64_t begin = offsets(0);
    const std::int64_t end = offsets(1);
    Kokkos::parallel_scan(
        Kokkos::ThreadVectorRange(team, size),
        [&](const std::int32_t k, PackedTokens& to, const bool final) {
          const std::int32_t i = first + k;
          const PackedTokens own = tokens(i);
          if (final) {
            const std::int64_t padded_before = before.padded + to.padded;
            const std::int64_t through = before.tokens + to.tokens + own.tokens;
            table.write(loop, i, before_cut(cuts[0], own, padded_before),
                        before_cut(cuts[1], own, padded_before),
                        static_cast<std::int32_t>(Kokkos::clamp(through, begin, end) - begin));
          }
          to += own;
        });
    Kokkos::single(Kokkos::PerTeam(team), [&] { table.write_offsets(loop, begin, end); });
  }

 private:
  [[nodiscard]] KOKKOS_FUNCTION std::int32_t before_cut(std::int64_t cut, const PackedTokens& own,
                                                        std::int64_t padded_before) const {
    return split.before(cut, static_cast<std::int32_t>(own.tokens), padded_before);
  }
  [[nodiscard]] KOKKOS_FUNCTION PackedTokens tokens(std::int32_t i) const {
    return {.tokens = split.length(prefix_lens, i), .padded = split.padded(prefix_lens, i)};
  }
};

/// Enqueues the chunk table on `space`; nothing when there are no loops.
template <ExecutionSpace Space>
void launch(const Space& space, const PackedRows& rows) {
  if (rows.table.chunked_loop_num == 0) return;
  const int team_size = row_team_size(space, rows, rows.table.batch_size);
  launch_teams("chunked_prefill::chunk_rows", space, rows.table.chunked_loop_num, team_size, rows,
               PackedRows::scratch_bytes<Space>(team_size));
}

}  // namespace chunked_prefill::impl
