// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/concepts.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Precedes a loop whose iterations are independent of each other, even where its arrays are the
// same memory.
#if defined(__clang__)
#define CHUNKED_PREFILL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define CHUNKED_PREFILL_INDEPENDENT _Pragma("GCC ivdep")
#else
#define CHUNKED_PREFILL_INDEPENDENT
#endif

namespace chunked_prefill::impl {

/// `size` elements that a lane reads or writes at once.
template <class T, int size>
struct alignas(sizeof(T) * size) ElementPack {
  T of[size];
};

/// Elements of a pack of several types: 16 bytes of the widest. Hosts go through rows element after
/// element.
template <ExecutionSpace Space, class... T>
inline constexpr int pack_size = runs_on_host<Space>
                                     ? 1
                                     : 16 / static_cast<int>(std::max({sizeof(T)...}));

/// Whether rows of `row` elements, `strides` elements apart, are whole packs of `size` elements
/// from `data` on.
template <class T, class... Strides>
bool are_whole_packs(const T* data, int size, std::size_t row, Strides... strides) {
  const auto bytes = sizeof(T) * static_cast<std::size_t>(size);
  const auto whole = [&](std::size_t elements) {
    return elements % static_cast<std::size_t>(size) == 0;
  };
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0 && whole(row) &&
         (whole(strides) && ...);
}

/// Threads of a team that moves packs, and how many packs it moves, or a row where that has more.
template <ExecutionSpace Space>
inline constexpr int pack_team_size = runs_on_host<Space> ? 1 : 8;
template <ExecutionSpace Space>
inline constexpr std::int32_t packs_per_team = runs_on_host<Space> ? 32768 : 1024;

template <class To, class From>
KOKKOS_FUNCTION To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

}  // namespace chunked_prefill::impl
