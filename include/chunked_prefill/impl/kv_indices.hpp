// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Index of the last element in [first, last) that is at most `value`, in a sorted array whose
/// element `first` is known to be.
template <class T>
KOKKOS_FUNCTION std::int32_t last_at_most(const T* sorted, std::int32_t first, std::int32_t last,
                                          T value) {
  while (last - first > 1) {
    const std::int32_t middle = first + (last - first) / 2;
    if (sorted[middle] <= value) {
      first = middle;
    } else {
      last = middle;
    }
  }
  return first;
}

/// Kernel 2: the slots of all loops, one team a tile of the flat output.
///
/// Tiles of the output, not sequences, are shared out: a batch of one long prefix and a batch of
/// many short ones keep a device equally busy.
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
  std::int64_t tile = 0;      ///< slots a team writes, a multiple of `pack`; set by `launch`

  /// Slots of one 16-byte store.
  static constexpr int pack = 16 / sizeof(Slot);
  struct alignas(16) Pack {
    Slot slots[pack];
  };

  /// How far into a 16-byte unit the output begins; tiles are cut on those units.
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t lead() const {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(chunk_kv_indices) % 16 /
                                     sizeof(Slot));
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t live = Kokkos::min(
        total_tokens, offsets != nullptr ? offsets[chunked_loop_num]
                                         : static_cast<std::int64_t>(cum_seq_lens[batch_size]));
    const std::int64_t tile_begin = std::int64_t{team.league_rank()} * tile - lead();
    const std::int64_t tile_end = Kokkos::min(tile_begin + tile, live);
    if (tile_end <= tile_begin) return;
    Cursor cursor(*this);

    if constexpr (runs_on_host<typename Team::execution_space>) {
      for (std::int64_t flat = Kokkos::max(tile_begin, std::int64_t{0}); flat < tile_end;) {
        const Slot first = cursor.slot(flat);
        const std::int64_t count = Kokkos::min(cursor.run_end(), tile_end) - flat;
        Slot* const run = chunk_kv_indices + flat;
        for (std::int64_t k = 0; k < count; ++k) run[k] = static_cast<Slot>(first + k);
        flat += count;
      }
    } else {
      const auto packs = static_cast<std::int32_t>((tile_end - tile_begin + pack - 1) / pack);
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, packs), [&](const std::int32_t i) {
        const std::int64_t flat = tile_begin + std::int64_t{i} * pack;
        if (flat >= 0 && flat + pack <= tile_end) {
          Pack values;
          for (int k = 0; k < pack; ++k) values.slots[k] = cursor.slot(flat + k);
          *reinterpret_cast<Pack*>(chunk_kv_indices + flat) = values;
        } else {
          for (int k = 0; k < pack; ++k) {
            if (flat + k >= 0 && flat + k < tile_end) {
              chunk_kv_indices[flat + k] = cursor.slot(flat + k);
            }
          }
        }
      });
    }
  }

 private:
  /// One thread's place in the flat output, asked for ascending flat indices. It keeps the current
  /// run, a stretch in which consecutive indices have consecutive slots, so that the searches are
  /// paid per run and not per slot.
  class Cursor {
   public:
    KOKKOS_FUNCTION explicit Cursor(const KvIndices& kernel) : m_kernel(kernel) {}

    KOKKOS_FUNCTION Slot slot(std::int64_t flat) {
      if (flat >= m_run_end) find_run(flat);
      return static_cast<Slot>(flat + m_slot_shift);
    }
    KOKKOS_FUNCTION std::int64_t run_end() const { return m_run_end; }

   private:
    KOKKOS_FUNCTION void find_run(std::int64_t flat) {
      if (flat >= m_seq_end) find_sequence(flat);
      const auto position = static_cast<std::int32_t>(flat + m_position_shift);
      const std::int32_t page = m_kernel.page_size.quotient(position);
      const std::int32_t within = position - page * m_kernel.page_size.value();
      const std::int64_t page_id = m_pages[page];
      m_slot_shift = page_id * m_kernel.page_size.value() + within - flat;
      m_run_end = Kokkos::min(m_seq_end, flat + m_kernel.page_size.value() - within);
    }

    KOKKOS_FUNCTION void find_sequence(std::int64_t flat) {
      if (flat >= m_loop_end) find_loop(flat);
      const std::int64_t row = std::int64_t{m_loop} * m_kernel.batch_size;
      const std::int32_t* const cum = m_kernel.cum_seq_lens + row + m_loop;
      const auto in_loop = static_cast<std::int32_t>(flat - m_loop_begin);
      m_seq = last_at_most(cum, m_seq, m_kernel.batch_size, in_loop);
      m_seq_end = Kokkos::min(m_loop_end, m_loop_begin + cum[m_seq + 1]);
      m_position_shift = m_kernel.starts[row + m_seq] - cum[m_seq] - m_loop_begin;
      m_pages = m_kernel.req_to_page +
                static_cast<std::int64_t>(m_kernel.req_pool_indices[m_seq]) * m_kernel.row_stride;
    }

    KOKKOS_FUNCTION void find_loop(std::int64_t flat) {
      m_seq = 0;
      if (m_kernel.offsets == nullptr) {
        m_loop_end = m_kernel.cum_seq_lens[m_kernel.batch_size];
        return;
      }
      m_loop = last_at_most(m_kernel.offsets, m_loop, m_kernel.chunked_loop_num, flat);
      m_loop_begin = m_kernel.offsets[m_loop];
      m_loop_end = m_kernel.offsets[m_loop + 1];
    }

    const KvIndices& m_kernel;
    std::int32_t m_loop = 0;
    std::int32_t m_seq = 0;
    std::int64_t m_loop_begin = 0;
    std::int64_t m_loop_end = 0;
    std::int64_t m_seq_end = 0;
    std::int64_t m_run_end = 0;
    std::int64_t m_position_shift = 0;  ///< position in the sequence = flat index + this
    std::int64_t m_slot_shift = 0;      ///< slot = flat index + this, within the run
    const std::int32_t* m_pages = nullptr;
  };
};

/// Enqueues kernel 2 on `space`; nothing when there is no slot to write.
///
/// The tile is the smallest that fills the machine once: more tiles than can run together would
/// repeat the searches, fewer would leave threads idle.
template <ExecutionSpace Space, Index RequestIndex, Index Slot>
void launch(const Space& space, KvIndices<RequestIndex, Slot> kernel) {
  if (kernel.total_tokens == 0) return;
  const std::int64_t length = kernel.lead() + kernel.total_tokens;
  // Several tiles a host thread, so that uneven ones even out.
  constexpr std::int64_t tiles_per_team = runs_on_host<Space> ? 4 : 1;
  constexpr std::int64_t unit =
      runs_on_host<Space> ? 4096 : device_team_size * KvIndices<RequestIndex, Slot>::pack;
  const std::int64_t teams =
      std::max<std::int64_t>(1, space.concurrency() / team_size<Space>) * tiles_per_team;
  kernel.tile = ceil_div(ceil_div(length, teams), unit) * unit;
  launch_teams("chunked_prefill::kv_indices", space,
               static_cast<int>(ceil_div(length, kernel.tile)), kernel);
}

}  // namespace chunked_prefill::impl
