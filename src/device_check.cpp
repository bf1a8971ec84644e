// SPDX-License-Identifier: MIT
#include <chunked_prefill/device_check.hpp>
#include <sstream>
#include <string>

namespace chunked_prefill {

std::string DeviceFault::message() const {
  std::ostringstream text;
  switch (array) {
    case Array::prefix_lens:
      text << "prefix_lens";
      if (sequence < 0) {
        text << ": " << value << " tokens on the device, the shape has room for " << most;
        return text.str();
      }
      text << '[' << sequence << "]: " << value << " on the device";
      break;
    case Array::req_pool_indices:
      text << "req_pool_indices[" << sequence << "]: " << value;
      break;
    case Array::req_to_page:
      text << "req_to_page: page id " << value << " at position " << position << " of sequence "
           << sequence;
      break;
  }
  if (array == Array::prefix_lens && least == most) {
    text << ", the plan has " << most;
  } else {
    text << " is not in [" << least << ", " << most << ']';
  }
  return text.str();
}

namespace impl {

DeviceFault device_fault(const FaultRecord& record) {
  const std::uint64_t item = FaultPlace::item(record.place);
  DeviceFault fault{.array = DeviceFault::Array::req_to_page,
                    .sequence = FaultPlace::sequence(record.place),
                    .position = record.position,
                    .value = record.value,
                    .least = record.least,
                    .most = record.most};
  if (item == FaultPlace::total) fault.sequence = -1;
  if (item == FaultPlace::length || item == FaultPlace::total) {
    fault.array = DeviceFault::Array::prefix_lens;
  } else if (item == FaultPlace::request_row) {
    fault.array = DeviceFault::Array::req_pool_indices;
  }
  return fault;
}

}  // namespace impl

}  // namespace chunked_prefill
