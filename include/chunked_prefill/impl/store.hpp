// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <type_traits>

namespace chunked_prefill::impl {

/// The slot `count` after `slot`; beyond the type it wraps.
template <class Slot>
KOKKOS_FUNCTION constexpr Slot plus(Slot slot, std::int32_t count) {
  using Unsigned = std::make_unsigned_t<Slot>;
  return static_cast<Slot>(static_cast<Unsigned>(slot) + static_cast<Unsigned>(count));
}

/// 16 bytes of slots, the widest store of every lane.
template <class Slot>
struct alignas(16) Pack {
  static constexpr int size = 16 / sizeof(Slot);
  Slot slots[size];
};

/// A lane's store of a pack. Slots are written once, and read once soon after by something else: on
/// CUDA they are the first to leave the cache when it is full.
template <class Slot>
KOKKOS_FUNCTION void store(Pack<Slot>* to, const Pack<Slot>& pack) {
#if defined(KOKKOS_ENABLE_CUDA)
  KOKKOS_IF_ON_DEVICE((__stcs(reinterpret_cast<int4*>(to), Kokkos::bit_cast<int4>(pack)); return;))
#endif
  *to = pack;
}

}  // namespace chunked_prefill::impl
