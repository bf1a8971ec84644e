// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/attention/impl/packs.hpp>
#include <chunked_prefill/attention/impl/word_rows.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill::impl {

/// A matrix as kernels walk it.
template <class T>
struct RowMatrix {
  T* data;
  std::int64_t row_stride;  ///< elements
  std::int32_t columns;

  KOKKOS_FUNCTION T* row(std::int64_t row) const { return data + row * row_stride; }
};
template <class View>
auto row_matrix(const View& view) {
  return RowMatrix<typename View::value_type>{
      .data = view.data(),
      .row_stride = static_cast<std::int64_t>(view.stride(0)),
      .columns = static_cast<std::int32_t>(view.extent(1))};
}

/// Copies rows `size` elements at a time, some rows a team: the parts of a row lie side by side in
/// the cache and apart in the outputs.
template <class From, class Slot, class Latent, class Rope, int size>
struct GatherRows {
  RowMatrix<const From> cache;
  const Slot* slots;  ///< (tokens)
  RowMatrix<Latent> latent;
  RowMatrix<Rope> rope;
  std::int64_t tokens;
  Divisor packs;  ///< of a row of the cache
  std::int32_t latent_packs;
  std::int32_t rows_per_team;
  float scale;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t first = std::int64_t{team.league_rank()} * rows_per_team;
    const auto count =
        static_cast<std::int32_t>(Kokkos::min(std::int64_t{rows_per_team}, tokens - first));
    if constexpr (runs_on_host<typename Team::execution_space>) {
      for (std::int64_t token = first; token < first + count; ++token) {
        const From* const from = cache.row(slots[token]);
        copy(from, latent.row(token), latent.columns);
        copy(from + latent.columns, rope.row(token), rope.columns);
      }
    } else {
      Kokkos::parallel_for(
          Kokkos::TeamVectorRange(team, count * packs.value()), [&](const std::int32_t k) {
            const std::int32_t in_team = packs.quotient(k);
            const std::int32_t pack = k - in_team * packs.value();
            const std::int64_t token = first + in_team;
            const auto some =
                reinterpret_cast<const ElementPack<From, size>*>(cache.row(slots[token]))[pack];
            if (pack < latent_packs) {
              store_pack(some, latent.row(token), pack);
            } else {
              store_pack(some, rope.row(token), pack - latent_packs);
            }
          });
    }
  }

 private:
  template <class To>
  KOKKOS_FUNCTION To scaled(From value) const {
    if (scale == 1.0F) return converted<To>(value);
    return static_cast<To>(static_cast<float>(value) * scale);
  }
  template <class To>
  KOKKOS_FUNCTION void store_pack(const ElementPack<From, size>& some, To* row,
                                  std::int32_t pack) const {
    ElementPack<To, size> pack_out;
    for (int k = 0; k < size; ++k) pack_out.of[k] = scaled<To>(some.of[k]);
    reinterpret_cast<ElementPack<To, size>*>(row)[pack] = pack_out;
  }
  template <class To>
  KOKKOS_FUNCTION void copy(const From* from, To* to, std::int32_t count) const {
    const std::int32_t done = convert_words(from, to, count, scale);
    if (scale == 1.0F) {
      CHUNKED_PREFILL_INDEPENDENT
      for (std::int32_t k = done; k < count; ++k) to[k] = converted<To>(from[k]);
    } else {
      CHUNKED_PREFILL_INDEPENDENT
      for (std::int32_t k = done; k < count; ++k) {
        to[k] = static_cast<To>(static_cast<float>(from[k]) * scale);
      }
    }
  }
};

template <int size, ExecutionSpace Space, class From, class Slot, class Latent, class Rope>
void launch_gather_packs(const Space& space, const RowMatrix<From>& cache, const Slot* slots,
                         const RowMatrix<Latent>& latent, const RowMatrix<Rope>& rope,
                         std::size_t tokens, float scale) {
  const std::int32_t packs = cache.columns / size;
  GatherRows<std::remove_const_t<From>, std::remove_const_t<Slot>, Latent, Rope, size> kernel{
      .cache = {cache.data, cache.row_stride, cache.columns},
      .slots = slots,
      .latent = latent,
      .rope = rope,
      .tokens = static_cast<std::int64_t>(tokens),
      .packs = Divisor(packs),
      .latent_packs = latent.columns / size,
      .rows_per_team = std::max(packs_per_team<Space> / packs, 1),
      .scale = scale};
  launch_teams("chunked_prefill::gather_rows", space,
               ceil_div(kernel.tokens, std::int64_t{kernel.rows_per_team}), pack_team_size<Space>,
               kernel);
}

template <ExecutionSpace Space, class From, class Slot, class Latent, class Rope>
void launch_gather(const Space& space, const RowMatrix<From>& cache, const Slot* slots,
                   const RowMatrix<Latent>& latent, const RowMatrix<Rope>& rope, std::size_t tokens,
                   float scale) {
  if (tokens == 0 || cache.columns == 0) return;
  constexpr int size = pack_size<Space, From, Latent, Rope>;
  const auto whole = [&](const auto& matrix) {
    return are_whole_packs(matrix.data, size, static_cast<std::size_t>(matrix.columns),
                           static_cast<std::size_t>(matrix.row_stride));
  };
  if (whole(cache) && whole(latent) && whole(rope)) {
    launch_gather_packs<size>(space, cache, slots, latent, rope, tokens, scale);
  } else {
    launch_gather_packs<1>(space, cache, slots, latent, rope, tokens, scale);
  }
}

}  // namespace chunked_prefill::impl
