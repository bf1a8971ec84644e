// SPDX-License-Identifier: MIT
#include "arguments.hpp"

#include <algorithm>
#include <chunked_prefill/error.hpp>
#include <utility>

namespace chunked_prefill::python {

namespace {

/// What a string of Python's says.
std::string text_of(nb::handle string) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(string.ptr(), &size);
  if (text != nullptr) return std::string(text, static_cast<std::size_t>(size));
  PyErr_Clear();
  return "(no text)";  // such as of half a character
}

/// The parts of DLPack's C interface for exchange (1.2) that this module calls: of every producer
/// that has it, in the attribute `__dlpack_c_exchange_api__` of its type.
struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeApi* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, nb::dlpack::dltensor* tensor);
  int (*current_work_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

/// The exchange interface of the type asked for last: tensors of a call are of one.
struct LastType {
  PyTypeObject* type = nullptr;  ///< kept, so that its address names no other type
  const ExchangeApi* api = nullptr;
} last;

/// Null where the producer has none.
const ExchangeApi* exchange_api(nb::handle object) {
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (type == last.type) return last.api;
  const ExchangeApi* api = nullptr;
  PyObject* const capsule =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule != nullptr && PyCapsule_IsValid(capsule, "dlpack_exchange_api") != 0) {
    api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    while (api != nullptr && api->major > 1) api = api->previous;
  }
  PyErr_Clear();
  Py_XDECREF(capsule);
  Py_INCREF(type);
  PyTypeObject* const before = std::exchange(last, {type, api}).type;
  Py_XDECREF(before);  // may run code of the caller's
  return api;
}

/// At most 40 bytes of `text`, whole characters.
std::string shortened(const std::string& text) {
  std::size_t size = std::min<std::size_t>(text.size(), 40);
  while (size < text.size() && size > 0 && (text[size] & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

/// Throws `error` again if it is an interrupt, an exit or the like.
void pass_on_interrupt(const nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) throw error;
}

/// The first line of an exception's words: torch has the stack in its C++ follow.
std::string message_of(const nb::python_error& error) {
  const std::string text = text_of(nb::str(error.value()));
  return text.substr(0, text.find('\n'));
}

/// The words of the Python exception that a producer set, which is cleared.
std::string pending_error() {
  if (PyErr_Occurred() == nullptr) return "cannot be read by DLPack";
  const nb::python_error error;
  pass_on_interrupt(error);
  return message_of(error);
}

bool has_attribute(nb::handle object, const char* name) {
  if (nb::steal(PyObject_GetAttrString(object.ptr(), name)).is_valid()) return true;
  pass_on_interrupt(nb::python_error());
  return false;
}

/// The capsule of `__dlpack__`, asked not to make streams wait for each other. One of DLPack 1 can
/// be of memory that must not be written: inputs are not.
nb::object capsule(const char* name, nb::handle object) {
  try {
    const nb::object device = object.attr("__dlpack_device__")();
    const auto type = nb::cast<std::int32_t>(nb::int_(nb::object(device[0])));
    const nb::object make = object.attr("__dlpack__");
    if (type != Device::cpu) return make(nb::arg("stream") = -1);
    try {
      return make(nb::arg("max_version") = nb::make_tuple(1, 0));
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      return make();  // of an older framework
    }
  } catch (const nb::python_error& error) {
    pass_on_interrupt(error);
    throw InvalidArgument(name, std::string("of type ") + kind_of(object) +
                                    " cannot be read by DLPack: " + message_of(error));
  } catch (const nb::cast_error&) {
    throw InvalidArgument(name, "of type " + kind_of(object) + " has no DLPack device");
  }
}

}  // namespace

std::string kind_of(nb::handle object) { return text_of(nb::inst_name(object)); }

void forget_last_type() {
  PyTypeObject* const before = std::exchange(last, {}).type;
  Py_XDECREF(before);
}

Tensor::Tensor(const char* name, nb::handle object) : m_name(name) {
  const ExchangeApi* const api = exchange_api(object);
  if (api != nullptr && api->dltensor_from_py_object_no_sync != nullptr) {
    nb::dlpack::dltensor tensor;
    if (api->dltensor_from_py_object_no_sync(object.ptr(), &tensor) != 0) {
      throw InvalidArgument(name, pending_error());
    }
    m_owner = nb::borrow(object);
    read(tensor);
    return;
  }
  if (PyType_Check(object.ptr()) || !has_attribute(object, "__dlpack__")) {
    throw InvalidArgument(name, "of type " + kind_of(object) + " is no tensor");
  }
  const nb::object from = capsule(name, object);
  if (!nb::try_cast(from, m_array)) {
    throw InvalidArgument(name, "of type " + kind_of(object) + " cannot be read by DLPack");
  }
  nb::dlpack::dltensor tensor{};
  tensor.data = const_cast<void*>(m_array.data());
  tensor.device = {m_array.device_type(), m_array.device_id()};
  tensor.ndim = static_cast<std::int32_t>(m_array.ndim());
  tensor.dtype = m_array.dtype();
  tensor.shape = const_cast<std::int64_t*>(m_array.shape_ptr());
  tensor.strides = const_cast<std::int64_t*>(m_array.stride_ptr());
  read(tensor);
}

void Tensor::read(const nb::dlpack::dltensor& tensor) {
  m_data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  m_device = {tensor.device.device_type, tensor.device.device_id};
  if (m_device.type == Device::cuda_host) m_device = {Device::cpu, 0};
  if (m_device.type == Device::cpu) m_device.id = 0;
  m_rank = tensor.ndim;
  m_type = tensor.dtype;
  if (m_rank > 2) return;
  const bool is_empty = std::count(tensor.shape, tensor.shape + m_rank, 0) > 0;
  std::int64_t contiguous = 1;
  for (std::int32_t d = m_rank - 1; d >= 0; --d) {
    m_shape[d] = tensor.shape[d];
    // Of one element or none a stride says nothing.
    m_stride[d] =
        tensor.strides == nullptr || m_shape[d] <= 1 || is_empty ? contiguous : tensor.strides[d];
    contiguous *= m_shape[d];
  }
  if (tensor.data == nullptr && contiguous > 0) throw InvalidArgument(m_name, "has no data");
}

std::string Tensor::type() const {
  static constexpr const char* codes[] = {"int",    "uint",    "float", "handle",
                                          "bfloat", "complex", "bool"};
  const std::string code =
      m_type.code < std::size(codes) ? codes[m_type.code] : "type " + std::to_string(m_type.code);
  return code + std::to_string(m_type.bits);
}

void Tensor::require_rank(std::int32_t rank, const char* shown) const {
  if (m_rank != rank) {
    throw InvalidArgument(m_name, std::string("has ") + std::to_string(m_rank) +
                                      " dimensions and must have " + shown);
  }
  for (std::int32_t d = 0; d < rank; ++d) {
    if (m_stride[d] < 0) {
      throw InvalidArgument(
          m_name, "has stride " + std::to_string(m_stride[d]) + ", and must not run backwards");
    }
  }
}

Integers Tensor::integers() const {
  require_rank(1, "1");
  if (m_type.code != 0 || (m_type.bits != 32 && m_type.bits != 64) || m_type.lanes != 1) {
    throw InvalidArgument(m_name, "has elements of " + type() + " and must have int32 or int64");
  }
  return {.data = m_data,
          .size = static_cast<std::size_t>(m_shape[0]),
          .stride = static_cast<std::size_t>(m_stride[0]),
          .is_int64 = m_type.bits == 64};
}

Pages Tensor::pages() const {
  require_rank(2, "2: (max_requests, max_pages)");
  if (m_type.code != 0 || m_type.bits != 32 || m_type.lanes != 1) {
    throw InvalidArgument(m_name, "has elements of " + type() + " and must have int32");
  }
  return {.data = reinterpret_cast<const std::int32_t*>(m_data),
          .max_requests = static_cast<std::size_t>(m_shape[0]),
          .max_pages = static_cast<std::size_t>(m_shape[1]),
          .row_stride = static_cast<std::size_t>(m_stride[0]),
          .page_stride = static_cast<std::size_t>(m_stride[1])};
}

std::int32_t* Tensor::buffer(std::size_t words) const {
  const Integers held = integers();
  if (held.is_int64 || held.stride != 1 || held.size < words) {
    throw InvalidArgument(m_name, "has " + std::to_string(held.size) + " elements of " + type() +
                                      " and must have " + std::to_string(words) +
                                      " contiguous ones of int32");
  }
  return reinterpret_cast<std::int32_t*>(m_data);
}

void Tensor::require(const Device& device, const char* beside) const {
  if (m_device == device) return;
  throw InvalidArgument(m_name,
                        "is on " + name(m_device) + ", and " + beside + " on " + name(device));
}

std::uintptr_t stream_handle(nb::handle stream, nb::handle tensor, const Device& device) {
  if (!stream.is_none()) return static_cast<std::uintptr_t>(integer("stream", stream));
  if (device.type == Device::cpu) return 0;
  const ExchangeApi* const api = exchange_api(tensor);
  void* current = nullptr;
  if (api == nullptr || api->current_work_stream == nullptr) {
    throw InvalidArgument("stream", "is None, and tensors of type " + kind_of(tensor) +
                                        " do not tell their current stream: give its handle");
  }
  if (api->current_work_stream(device.type, device.id, &current) != 0) {
    throw InvalidArgument("stream", pending_error());
  }
  return reinterpret_cast<std::uintptr_t>(current);
}

std::int64_t integer(const char* name, nb::handle object) {
  nb::object index;
  if (!PyBool_Check(object.ptr())) index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) {
    if (PyErr_Occurred() != nullptr) pass_on_interrupt(nb::python_error());
    throw InvalidArgument(name, "of type " + kind_of(object) + " is no integer");
  }
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    const auto digits = nb::steal(PyObject_Str(index.ptr()));
    PyErr_Clear();  // Python does not write out more than some thousands
    throw InvalidArgument(
        name,
        (digits.is_valid() ? text_of(digits).substr(0, 40) : "(many digits)") + " is beyond int64");
  }
  return value;
}

bool is_int64_type(const char* name, nb::handle object) {
  const std::string type = text_of(nb::str(object));
  if (type == "int32" || type == "torch.int32") return false;
  if (type == "int64" || type == "torch.int64") return true;
  throw InvalidArgument(name, '"' + shortened(type) + "\" is not int32 or int64");
}

PlanOptions plan_options(nb::handle chunk_capacity, nb::handle policy, nb::handle grain,
                         nb::handle shard) {
  PlanOptions options{.chunk_capacity = integer("chunk_capacity", chunk_capacity),
                      .grain = integer("grain", grain)};
  const std::string word = text_of(nb::str(policy));
  if (word == "packed") {
    options.policy = Policy::packed;
  } else if (word != "equal") {
    throw InvalidArgument("policy", '"' + shortened(word) + "\" is not equal or packed");
  }
  if (shard.is_none()) return options;
  if (!nb::isinstance<nb::tuple>(shard) || nb::len(shard) != 3) {
    throw InvalidArgument("shard", "is no tuple of world_size, rank and interleave");
  }
  const auto element = [&](std::size_t k, const char* name) {
    const std::int64_t value = integer(name, nb::object(shard[k]));
    if (value < INT32_MIN || value > INT32_MAX) {
      throw InvalidArgument(name, std::to_string(value) + " is beyond int32");
    }
    return static_cast<std::int32_t>(value);
  };
  options.shard = {.world_size = element(0, "shard.world_size"),
                   .rank = element(1, "shard.rank"),
                   .interleave = element(2, "shard.interleave")};
  return options;
}

}  // namespace chunked_prefill::python
