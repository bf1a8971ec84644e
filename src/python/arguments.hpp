// SPDX-License-Identifier: MIT
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <string>

#include "kernels.hpp"

// Python objects as what the library takes. What does not fit is refused as an InvalidArgument that
// names the argument.

namespace chunked_prefill::python {

namespace nb = nanobind;

/// The name of an object's type, for messages.
[[nodiscard]] std::string kind_of(nb::handle object);

/// Lets go of the type of the tensor that was read last.
void forget_last_type();

/// A tensor of a caller's, by DLPack: nothing is copied, and no stream waits for another.
class Tensor {
 public:
  /// Holds `object`'s memory until it goes.
  Tensor(const char* name, nb::handle object);

  [[nodiscard]] Device device() const { return m_device; }
  /// As (size) int32 or int64.
  [[nodiscard]] Integers integers() const;
  /// As (max_requests, max_pages) int32.
  [[nodiscard]] Pages pages() const;
  /// As contiguous int32 words that may be written, at least `words` of them.
  [[nodiscard]] std::int32_t* buffer(std::size_t words) const;
  /// \throws InvalidArgument when it is elsewhere.
  void require(const Device& device, const char* beside) const;

 private:
  void read(const nb::dlpack::dltensor& tensor);
  void require_rank(std::int32_t rank, const char* shown) const;
  [[nodiscard]] std::string type() const;

  const char* m_name;
  nb::object m_owner;  ///< or:
  nb::ndarray<nb::ro> m_array;
  char* m_data = nullptr;
  Device m_device;
  std::int32_t m_rank = 0;
  std::int64_t m_shape[2] = {};
  std::int64_t m_stride[2] = {};
  nb::dlpack::dtype m_type{};
};

/// What `stream` means for tensors like `tensor` on `device`: an integer is a stream's handle; for
/// None the current one of the tensor's framework, which DLPack asks for; 0 on the CPU.
/// \throws InvalidArgument naming `stream` when the framework does not tell it that way.
[[nodiscard]] std::uintptr_t stream_handle(nb::handle stream, nb::handle tensor,
                                           const Device& device);

/// Whatever has `__index__` but for booleans, within int64.
[[nodiscard]] std::int64_t integer(const char* name, nb::handle object);
[[nodiscard]] bool is_int64_type(const char* name, nb::handle object);

/// `chunk_capacity`, `policy`, `grain` and `shard` = (world_size, rank, interleave) or None.
[[nodiscard]] PlanOptions plan_options(nb::handle chunk_capacity, nb::handle policy,
                                       nb::handle grain, nb::handle shard);

}  // namespace chunked_prefill::python
