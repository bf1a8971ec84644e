// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/impl/packs.hpp>
#include <chunked_prefill/concepts.hpp>
#include <cstddef>

namespace chunked_prefill::impl {

/// Copies a matrix into one of another type.
template <class From, class To>
struct CopyRows {
  From from;
  To to;

  KOKKOS_FUNCTION void operator()(std::size_t row, std::size_t column) const {
    to(row, column) = converted<typename To::value_type>(from(row, column));
  }
};
template <ExecutionSpace Space, class From, class To>
void copy_rows(const Space& space, const From& from, const To& to) {
  if (to.size() == 0) return;
  Kokkos::parallel_for("chunked_prefill::copy_rows",
                       Kokkos::MDRangePolicy<Space, Kokkos::Rank<2>, std::size_t>(
                           space, {0, 0}, {to.extent(0), to.extent(1)}),
                       CopyRows<From, To>{from, to});
}

}  // namespace chunked_prefill::impl
