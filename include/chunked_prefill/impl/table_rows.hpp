// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/search.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// What SlotTiles asks of a batch, answered by a chunk table that an earlier kernel wrote.
struct TableRows {
  const std::int32_t* starts;        ///< (chunked_loop_num, batch_size)
  const std::int32_t* cum_seq_lens;  ///< (chunked_loop_num, batch_size + 1)
  const std::int64_t* offsets;       ///< (chunked_loop_num + 1), or null when there is one loop
  IndexArray req_pool_indices;       ///< (batch_size)
  std::int32_t batch_size;
  std::int32_t chunked_loop_num;

  /// One loop.
  struct Row {
    std::int32_t loop = -1;
    std::int64_t begin = 0;  ///< its flat indices are [begin, end)
    std::int64_t end = 0;
    const std::int32_t* cum = nullptr;  ///< (batch_size + 1) its cumulative lengths
    const std::int32_t* starts = nullptr;

    /// Position of sequence `i` at which the loop begins.
    KOKKOS_FUNCTION std::int32_t start(std::int32_t i) const { return starts[i]; }
  };

  /// Makes `row` the loop that holds flat index `flat`, a later one than it was; false past the
  /// last token.
  template <class Team>
  KOKKOS_FUNCTION bool find(const Team& team, Row& row, std::int64_t flat) const {
    if (offsets == nullptr) {
      row.loop = static_cast<std::int32_t>(flat >= offset(1));
    } else {
      // Usually the next loop; a shard can have loops in between that hold nothing.
      ++row.loop;
      const bool is_next =
          row.loop > 0 && (row.loop == chunked_loop_num || offsets[row.loop + 1] > flat);
      if (!is_next) row.loop = last_at_most(team, offsets, chunked_loop_num + 1, flat);
    }
    row.begin = offset(row.loop);
    row.end = row.loop < chunked_loop_num ? offset(row.loop + 1) : row.begin;
    row.cum = cum_seq_lens + std::int64_t{row.loop} * (std::int64_t{batch_size} + 1);
    row.starts = starts + std::int64_t{row.loop} * batch_size;
    return row.end > row.begin;
  }
  /// The sequence that has token `in_row` of the loop; lanes search together, as each look at the
  /// table takes long.
  template <class Team>
  KOKKOS_FUNCTION std::int32_t locate(const Team& team, const Row& row, std::int32_t in_row) const {
    return last_at_most(team, row.cum, batch_size, in_row);
  }
  /// (batch_size + 1) the cumulative lengths of the loop.
  KOKKOS_FUNCTION const std::int32_t* cum(const Row& row) const { return row.cum; }
  KOKKOS_FUNCTION std::int64_t request(std::int32_t i) const { return req_pool_indices[i]; }

 private:
  KOKKOS_FUNCTION std::int64_t offset(std::int32_t loop) const {
    if (offsets != nullptr) return offsets[loop];
    return loop == 0 ? 0 : cum_seq_lens[batch_size];
  }
};

}  // namespace chunked_prefill::impl
