// SPDX-License-Identifier: MIT
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace chunked_prefill {

/// Base class of every exception this library makes. Memory that cannot be had is reported as
/// Kokkos and the standard library do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A host precondition does not hold. Thrown before anything is enqueued or written.
/// `what()` names the argument, its value and the bound.
class InvalidArgument : public Error {
 public:
  /// `argument` is the field's name, with the index for an element of an array
  /// (`prefix_lens[3]`); `problem` gives its value and the bound.
  InvalidArgument(std::string argument, std::string_view problem)
      : Error(argument + ": " + std::string(problem)), m_argument(std::move(argument)) {}

  /// The argument at fault, for example `prefix_lens[3]`.
  [[nodiscard]] const std::string& argument() const noexcept { return m_argument; }

 private:
  std::string m_argument;
};

}  // namespace chunked_prefill
