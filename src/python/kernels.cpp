// SPDX-License-Identifier: MIT
#include "kernels.hpp"

#include <pthread.h>

#include <Kokkos_Core.hpp>
#include <atomic>
#include <chunked_prefill/chunked_prefill.hpp>
#include <map>
#include <mutex>
#include <set>
#include <variant>

#include "../startup/kokkos_info.hpp"
#include "../startup/kokkos_settings.hpp"

namespace chunked_prefill::python {
namespace {

using Host = Kokkos::DefaultHostExecutionSpace;
#ifdef KOKKOS_ENABLE_CUDA
using OnStream = Kokkos::Cuda;
#endif

/// The process's Kokkos, as this module sees it. `mutex` guards all of it.
struct Process {
  std::mutex mutex;
  bool owns_kokkos = false;
  std::set<Check*> checks;
  std::mutex host_mutex;  ///< one build on the host at a time: its threads are one team
#ifdef KOKKOS_ENABLE_CUDA
  std::map<std::uintptr_t, OnStream> streams;  ///< an instance for each stream that was built on
#endif
};
Process& process() {
  static Process process;
  return process;
}
std::atomic<bool> was_forked = false;

#ifdef KOKKOS_ENABLE_CUDA
void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw Error(std::string("CUDA: ") + cudaGetErrorString(error));
}

/// Kokkos makes its GPU the calling thread's. The caller's choice comes back.
class KeepsCurrentDevice {
 public:
  KeepsCurrentDevice() { check_cuda(cudaGetDevice(&m_device)); }
  ~KeepsCurrentDevice() {
    int now = m_device;
    if (cudaGetDevice(&now) == cudaSuccess && now != m_device) cudaSetDevice(m_device);
  }
  KeepsCurrentDevice(const KeepsCurrentDevice&) = delete;
  KeepsCurrentDevice& operator=(const KeepsCurrentDevice&) = delete;

 private:
  int m_device = 0;
};

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

OnStream on_stream(std::uintptr_t stream) {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  const auto found = own.streams.find(stream);
  if (found != own.streams.end()) return found->second;
  const AllowsAllocation relaxed;
  return own.streams.emplace(stream, OnStream(reinterpret_cast<cudaStream_t>(stream)))
      .first->second;
}
#endif

template <class MemorySpace, class T>
Array1D<T, MemorySpace> part(std::int32_t* buffer, std::size_t begin, std::size_t size) {
  return Array1D<T, MemorySpace>(reinterpret_cast<T*>(buffer + begin), size);
}

template <class MemorySpace, class Slot>
MetadataBuffers<MemorySpace, Slot> buffers(std::int32_t* words, const Layout& layout) {
  return {.starts = part<MemorySpace, std::int32_t>(words, layout.starts, layout.table_size),
          .ends = part<MemorySpace, std::int32_t>(words, layout.ends, layout.table_size),
          .len_in_chunk =
              part<MemorySpace, std::int32_t>(words, layout.len_in_chunk, layout.table_size),
          .cum_seq_lens =
              part<MemorySpace, std::int32_t>(words, layout.cum_seq_lens, layout.cum_seq_lens_size),
          .offsets = part<MemorySpace, std::int64_t>(words, layout.offsets, layout.offsets_size),
          .chunk_kv_indices = part<MemorySpace, Slot>(words, layout.chunk_kv_indices,
                                                      layout.chunk_kv_indices_size)};
}

template <class MemorySpace, class T>
typename PagedPrefix<MemorySpace>::template Input<T> input(const Integers& integers) {
  using View = typename PagedPrefix<MemorySpace>::template Input<T>;
  return View(static_cast<const T*>(integers.data),
              Kokkos::LayoutStride(integers.size, integers.stride));
}

/// Calls `use` with a value of the element type.
template <class Use>
void with_type(bool is_int64, const Use& use) {
  if (is_int64) {
    use(std::int64_t{});
  } else {
    use(std::int32_t{});
  }
}

void check_contiguous(const char* name, const Integers& integers) {
  if (integers.stride != 1) {
    throw InvalidArgument(
        name, "has stride " + std::to_string(integers.stride) + " and must be contiguous");
  }
}

template <class MemorySpace>
Chunks<MemorySpace> table(std::size_t loops, std::size_t batch_size, const Layout& layout,
                          std::int32_t* words) {
  const auto rows = [&](std::size_t begin, std::size_t columns) {
    return Array2D<std::int32_t, MemorySpace>(words + begin, loops, columns);
  };
  return {.starts = rows(layout.starts, batch_size),
          .ends = rows(layout.ends, batch_size),
          .len_in_chunk = rows(layout.len_in_chunk, batch_size),
          .cum_seq_lens = rows(layout.cum_seq_lens, batch_size + 1)};
}

template <class MemorySpace, class Space, class Length, class RequestIndex, class Slot>
void fill_on(const Space& space, const Split& split, const Prefix& prefix, const Layout& layout,
             std::int32_t* words, DeviceCheck<MemorySpace>* check) {
  const PagedPrefix<MemorySpace, Length, RequestIndex> paged{
      input<MemorySpace, Length>(prefix.prefix_lens),
      PageTable<MemorySpace>(
          prefix.req_to_page.data,
          Kokkos::LayoutStride(prefix.req_to_page.max_requests, prefix.req_to_page.row_stride,
                               prefix.req_to_page.max_pages, prefix.req_to_page.page_stride)),
      input<MemorySpace, RequestIndex>(prefix.req_pool_indices), prefix.page_size,
      prefix.num_pages};
  ChunkedPrefillMetadata<MemorySpace, Slot> metadata(buffers<MemorySpace, Slot>(words, layout));
  if (split.plan == nullptr && check == nullptr) {
    chunked_prefill::fill(space, split.shape, paged, metadata);
  } else if (split.plan == nullptr) {
    chunked_prefill::fill(space, split.shape, paged, metadata, *check);
  } else if (check == nullptr) {
    chunked_prefill::fill(space, *split.plan, paged, metadata);
  } else {
    check_contiguous("prefix_lens_cpu", split.prefix_lens_host);
    with_type(split.prefix_lens_host.is_int64, [&](auto type) {
      const std::span lens(static_cast<const decltype(type)*>(split.prefix_lens_host.data),
                           split.prefix_lens_host.size);
      chunked_prefill::fill(space, *split.plan, paged, metadata, lens, *check);
    });
  }
}

template <class MemorySpace, class Space>
void fill_on(const Space& space, const Split& split, const Prefix& prefix, const Layout& layout,
             std::int32_t* words, DeviceCheck<MemorySpace>* check) {
  with_type(prefix.prefix_lens.is_int64, [&](auto length) {
    with_type(prefix.req_pool_indices.is_int64, [&](auto request) {
      with_type(layout.is_int64, [&](auto slot) {
        fill_on<MemorySpace, Space, decltype(length), decltype(request), decltype(slot)>(
            space, split, prefix, layout, words, check);
      });
    });
  });
}

}  // namespace

struct Check::State {
  std::variant<DeviceCheck<Kokkos::HostSpace>
#ifdef KOKKOS_ENABLE_CUDA
               ,
               DeviceCheck<OnStream::memory_space>
#endif
               >
      check;
};

namespace {

/// Lets go of everything that must not outlive Kokkos.
void drop_kokkos_objects() {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  for (Check* check : own.checks) check->drop();
  own.checks.clear();
#ifdef KOKKOS_ENABLE_CUDA
  own.streams.clear();
#endif
}

}  // namespace

std::string name(const Device& device) {
  if (device.type == Device::cpu) return "cpu";
  const std::string type =
      device.type == Device::cuda ? "cuda" : "DLPack device " + std::to_string(device.type);
  return type + ":" + std::to_string(device.id);
}

namespace {

Layout layout(const MetadataSizes& sizes, bool is_int64) {
  Layout layout{.is_int64 = is_int64,
                .chunk_kv_indices_size = sizes.chunk_kv_indices,
                .table_size = sizes.starts,
                .cum_seq_lens_size = sizes.cum_seq_lens,
                .offsets_size = sizes.offsets};
  const auto take = [&](std::size_t words) {
    constexpr std::size_t most = std::size_t{1} << 58;  // so that sums and bytes are no overflow
    if (words > most) {
      throw InvalidArgument("chunked_loop_num * batch_size",
                            "takes " + std::to_string(words) + " words, beyond any memory");
    }
    const std::size_t begin = layout.words;
    layout.words += (words + 3) / 4 * 4;
    return begin;
  };
  layout.chunk_kv_indices = take(sizes.chunk_kv_indices * (is_int64 ? 2 : 1));
  layout.len_in_chunk = take(sizes.starts);
  layout.starts = take(sizes.starts);
  layout.ends = take(sizes.starts);
  layout.cum_seq_lens = take(sizes.cum_seq_lens);
  layout.offsets = take(sizes.offsets * 2);
  return layout;
}

}  // namespace

Layout layout(const ChunkShape& shape, bool is_int64) {
  return layout(required_sizes(shape), is_int64);
}

Layout table_layout(std::int64_t chunked_loop_num, std::int64_t batch_size) {
  impl::check_range("num_chunks", chunked_loop_num, 0, INT32_MAX);
  impl::check_range("batch_size", batch_size, 0, INT32_MAX);
  return layout(required_sizes(batch_size, chunked_loop_num, 0), false);
}

void check_within(const ChunkPlan& plan, const ChunkShape& shape) {
  impl::check_within(plan.shape(), shape);
}

void initialize(const Device& device) {
  if (was_forked) {
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
    Kokkos::push_finalize_hook(drop_kokkos_objects);
    pthread_atfork(nullptr, nullptr, [] { was_forked = true; });
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
  if (was_forked) return;
  if (process().owns_kokkos && Kokkos::is_initialized()) {
#ifdef KOKKOS_ENABLE_CUDA
    const KeepsCurrentDevice kept;
#endif
    Kokkos::finalize();
  }
}

Check::Check(const Device& device) : m_device(device) {
  initialize(device);
#ifdef KOKKOS_ENABLE_CUDA
  const KeepsCurrentDevice kept;
  if (device.type == Device::cuda) {
    m_state = std::make_unique<State>(State{DeviceCheck<OnStream::memory_space>()});
  }
#endif
  if (!m_state) m_state = std::make_unique<State>(State{DeviceCheck<Kokkos::HostSpace>()});
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  own.checks.insert(this);
}

Check::~Check() {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  own.checks.erase(this);
}

void Check::drop() { m_state.reset(); }

Check::State& Check::state() {
  if (!m_state) throw Error("check: Kokkos was finalised since it was made");
  return *m_state;
}

std::optional<std::string> Check::first_fault(std::optional<std::uintptr_t> given) {
  const std::uintptr_t stream = given.value_or(m_stream);
  initialize(m_device);
  std::optional<DeviceFault> fault;
#ifdef KOKKOS_ENABLE_CUDA
  if (m_device.type == Device::cuda) {
    const KeepsCurrentDevice kept;
    fault =
        std::get<DeviceCheck<OnStream::memory_space>>(state().check).first_fault(on_stream(stream));
  } else
#endif
  {
    static_cast<void>(stream);
    fault = std::get<DeviceCheck<Kokkos::HostSpace>>(state().check).first_fault(Host());
  }
  return fault ? std::optional(fault->message()) : std::nullopt;
}

namespace {

/// Calls `use(space)` with the execution space of `device`: an instance on `stream`, or the host's,
/// which has done its work on return.
template <class Use>
void on_space(const Device& device, std::uintptr_t stream, const Use& use) {
  initialize(device);
#ifdef KOKKOS_ENABLE_CUDA
  if (device.type == Device::cuda) {
    const KeepsCurrentDevice kept;
    return use(on_stream(stream));
  }
#endif
  static_cast<void>(stream);
  const std::lock_guard lock(process().host_mutex);
  const Host space;
  use(space);
  space.fence("chunked_prefill::python");
}

}  // namespace

void fill(const Device& device, std::uintptr_t stream, const Split& split, const Prefix& prefix,
          const Layout& layout, std::int32_t* buffer, Check* check) {
  if (check != nullptr && check->device() != device) {
    throw InvalidArgument(
        "check", "of " + name(check->device()) + ", and prefix_lens are on " + name(device));
  }
  if (check != nullptr) check->built_on(stream);
  on_space(device, stream, [&]<class Space>(const Space& space) {
    using Memory = typename Space::memory_space;
    fill_on<Memory>(
        space, split, prefix, layout, buffer,
        check == nullptr ? nullptr : &std::get<DeviceCheck<Memory>>(check->state().check));
  });
}

void host_table(const ChunkPlan& plan, const Integers& prefix_lens, const Layout& layout,
                std::int32_t* buffer) {
  check_contiguous("prefix_lens_cpu", prefix_lens);
  impl::check_extent("prefix_lens_cpu", prefix_lens.size,
                     static_cast<std::size_t>(plan.batch_size()));
  on_space(Device{}, 0, [&](const auto&) {
    const auto loops = static_cast<std::size_t>(plan.chunked_loop_num());
    const Host space;
    with_type(prefix_lens.is_int64, [&](auto type) {
      impl::enqueue_table(
          space, plan.shape(),
          impl::IndexArray(static_cast<const decltype(type)*>(prefix_lens.data)),
          impl::chunk_table(table<Kokkos::HostSpace>(loops, prefix_lens.size, layout, buffer)));
    });
  });
}

void chunking(const Device& device, std::uintptr_t stream, const Integers& prefix_lens,
              std::int64_t chunked_loop_num, std::int64_t chunk_len, const Layout& layout,
              std::int32_t* buffer) {
  on_space(device, stream, [&]<class Space>(const Space& space) {
    using Memory = typename Space::memory_space;
    with_type(prefix_lens.is_int64, [&](auto type) {
      chunked_prefill::chunking(space, input<Memory, decltype(type)>(prefix_lens), chunk_len,
                                table<Memory>(static_cast<std::size_t>(chunked_loop_num),
                                              prefix_lens.size, layout, buffer));
    });
  });
}

std::string configuration() {
  std::string text = "Kokkos " + startup::kokkos_version() + "\nbackends";
  for (const std::string& space : startup::execution_spaces()) text += ' ' + space;
  return text;
}

}  // namespace chunked_prefill::python
