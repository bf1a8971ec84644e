// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/concepts.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// An input array of int32 or int64 elements, told apart when it is read: one kernel serves engines
/// of either kind, at the price of a branch that all lanes take alike.
class IndexArray {
 public:
  IndexArray() = default;
  template <Index T>
  explicit IndexArray(const T* elements)
      : m_elements(elements), m_wide(sizeof(T) == sizeof(std::int64_t)) {}

  KOKKOS_FUNCTION std::int64_t operator[](std::int32_t i) const {
    return m_wide ? wide(i) : narrow(i);
  }
  /// Element `i`, or the nearer end of [0, most] where it lies outside.
  KOKKOS_FUNCTION std::int32_t clamped(std::int32_t i, std::int32_t most) const {
    return m_wide ? static_cast<std::int32_t>(
                        Kokkos::clamp(wide(i), std::int64_t{0}, std::int64_t{most}))
                  : Kokkos::clamp(narrow(i), std::int32_t{0}, most);
  }

 private:
  KOKKOS_FUNCTION std::int64_t wide(std::int32_t i) const {
    return static_cast<const std::int64_t*>(m_elements)[i];
  }
  KOKKOS_FUNCTION std::int32_t narrow(std::int32_t i) const {
    return static_cast<const std::int32_t*>(m_elements)[i];
  }

  const void* m_elements = nullptr;
  bool m_wide = false;
};

}  // namespace chunked_prefill::impl
