// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Where a fault is, as one number that is the smaller the earlier the fault comes: by sequence;
/// of one sequence its length, then its row of the page table, then page after page; behind the
/// last sequence the tokens of all.
class FaultPlace {
 public:
  enum Item : std::uint64_t { length, total, request_row, first_page };
  static constexpr std::uint64_t none = ~std::uint64_t{0};

  KOKKOS_FUNCTION static std::uint64_t of(std::int32_t sequence, std::uint64_t item) {
    return static_cast<std::uint64_t>(sequence) << item_bits | item;
  }
  KOKKOS_FUNCTION static std::int32_t sequence(std::uint64_t place) {
    return static_cast<std::int32_t>(place >> item_bits);
  }
  KOKKOS_FUNCTION static std::uint64_t item(std::uint64_t place) {
    return place & ((std::uint64_t{1} << item_bits) - 1);
  }

 private:
  static constexpr int item_bits = 33;  // pages are counted in 31, sequences too
};

/// What kernels and host know of the faults of a DeviceCheck; zeros before the first build.
struct FaultRecord {
  std::uint64_t found;  ///< FaultPlace of the build at hand
  // Of the first build with a fault since the host looked:
  std::uint64_t place;
  std::int64_t position;
  std::int64_t value;
  std::int64_t least;
  std::int64_t most;
  std::int32_t is_set;  ///< whether there was one

  KOKKOS_FUNCTION void add(std::uint64_t at) { Kokkos::atomic_min(&found, at); }
};

}  // namespace chunked_prefill::impl
