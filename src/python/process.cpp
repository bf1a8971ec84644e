// SPDX-License-Identifier: MIT
#include "process.hpp"

#include <pthread.h>

#include <atomic>
#include <map>
#include <utility>

#include "../startup/kokkos_info.hpp"
#include "../startup/kokkos_settings.hpp"

namespace chunked_prefill::python {
namespace {

struct Process {
  std::mutex mutex;  ///< guards what follows
  bool was_seen = false;
  bool owns_kokkos = false;
  std::map<void*, std::function<void()>> drops;
#ifdef KOKKOS_ENABLE_CUDA
  std::map<std::uintptr_t, Kokkos::Cuda> streams;
#endif
};
Process& process() {
  static Process process;
  return process;
}
std::atomic<bool> forked = false;

void drop_kokkos_objects() {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  for (const auto& [owner, drop] : own.drops) drop();
  own.drops.clear();
#ifdef KOKKOS_ENABLE_CUDA
  own.streams.clear();
#endif
}

#ifdef KOKKOS_ENABLE_CUDA
void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw Error(std::string("CUDA: ") + cudaGetErrorString(error));
}

/// What allocates, such as Kokkos for an instance on a new stream, may do so while another stream
/// of the thread captures a graph.
class AllowsAllocation {
 public:
  AllowsAllocation() { check_cuda(cudaThreadExchangeStreamCaptureMode(&m_mode)); }
  ~AllowsAllocation() { cudaThreadExchangeStreamCaptureMode(&m_mode); }
  AllowsAllocation(const AllowsAllocation&) = delete;
  AllowsAllocation& operator=(const AllowsAllocation&) = delete;

 private:
  cudaStreamCaptureMode m_mode = cudaStreamCaptureModeRelaxed;
};
#endif

}  // namespace

bool was_forked() { return forked; }

void before_finalize(void* owner, std::function<void()> drop) {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  own.drops.emplace(owner, std::move(drop));
}
void forget(void* owner) {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  own.drops.erase(owner);
}

std::mutex& host_mutex() {
  static std::mutex mutex;
  return mutex;
}

#ifdef KOKKOS_ENABLE_CUDA
KeepsCurrentDevice::KeepsCurrentDevice() { check_cuda(cudaGetDevice(&m_device)); }
KeepsCurrentDevice::~KeepsCurrentDevice() {
  int now = m_device;
  if (cudaGetDevice(&now) == cudaSuccess && now != m_device) cudaSetDevice(m_device);
}

Kokkos::Cuda on_stream(std::uintptr_t stream) {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  const auto found = own.streams.find(stream);
  if (found != own.streams.end()) return found->second;
  const AllowsAllocation relaxed;
  return own.streams.emplace(stream, Kokkos::Cuda(reinterpret_cast<cudaStream_t>(stream)))
      .first->second;
}
#endif

std::string name(const Device& device) {
  if (device.type == Device::cpu) return "cpu";
  const std::string type =
      device.type == Device::cuda ? "cuda" : "DLPack device " + std::to_string(device.type);
  return type + ":" + std::to_string(device.id);
}

void initialize(const Device& device) {
  if (forked) {
    throw Error("this process was forked off one in which Kokkos ran: start it with spawn");
  }
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  if (!Kokkos::is_initialized()) {
    if (Kokkos::is_finalized()) throw Error("Kokkos is finalised in this process");
    auto settings = startup::kokkos_settings();
#ifdef KOKKOS_ENABLE_CUDA
    const KeepsCurrentDevice kept;
    if (device.type == Device::cuda) settings.set_device_id(device.id);
#endif
    Kokkos::initialize(settings);
    own.owns_kokkos = true;
  }
  if (!own.was_seen) {
    Kokkos::push_finalize_hook(drop_kokkos_objects);
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    own.was_seen = true;
  }
  if (device.type == Device::cpu) return;
#ifdef KOKKOS_ENABLE_CUDA
  if (device.type == Device::cuda) {
    if (device.id != Kokkos::device_id()) {
      throw InvalidArgument("prefix_lens", "on " + name(device) + ", and Kokkos runs on cuda:" +
                                               std::to_string(Kokkos::device_id()) +
                                               " in this process");
    }
    return;
  }
#endif
  throw InvalidArgument("prefix_lens",
                        "on " + name(device) + ", for which this build has no Kokkos backend");
}

void finalize() {
  if (forked) return;
  {
    Process& own = process();
    const std::lock_guard lock(own.mutex);
    if (!std::exchange(own.owns_kokkos, false)) return;
  }
  if (!Kokkos::is_initialized()) return;
#ifdef KOKKOS_ENABLE_CUDA
  const KeepsCurrentDevice kept;
#endif
  Kokkos::finalize();
}

std::string configuration() {
  std::string text = "Kokkos " + startup::kokkos_version() + "\nbackends";
  for (const std::string& space : startup::execution_spaces()) text += ' ' + space;
  return text;
}

}  // namespace chunked_prefill::python
