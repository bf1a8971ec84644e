// SPDX-License-Identifier: MIT
#include "kernels.hpp"

#include <Kokkos_Core.hpp>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "check.hpp"
#include "process.hpp"

namespace chunked_prefill::python {
namespace {

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

void fill(const Device& device, std::uintptr_t stream, const Split& split, const Prefix& prefix,
          const Layout& layout, std::int32_t* buffer, Check* check) {
  if (check != nullptr && check->device() != device) {
    throw InvalidArgument(
        "check", "of " + name(check->device()) + ", and prefix_lens are on " + name(device));
  }
  on_device(device, stream, [&]<class Space>(const Space& space) {
    using Memory = typename Space::memory_space;
    fill_on<Memory>(
        space, split, prefix, layout, buffer,
        check == nullptr ? nullptr : &std::get<DeviceCheck<Memory>>(check->state().check));
  });
  if (check != nullptr) check->built_on(stream);
}

void host_table(const ChunkPlan& plan, const Integers& prefix_lens, const Layout& layout,
                std::int32_t* buffer) {
  check_contiguous("prefix_lens_cpu", prefix_lens);
  impl::check_extent("prefix_lens_cpu", prefix_lens.size,
                     static_cast<std::size_t>(plan.batch_size()));
  on_host([&](const Host& space) {
    const auto loops = static_cast<std::size_t>(plan.chunked_loop_num());
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
  on_device(device, stream, [&]<class Space>(const Space& space) {
    using Memory = typename Space::memory_space;
    with_type(prefix_lens.is_int64, [&](auto type) {
      chunked_prefill::chunking(space, input<Memory, decltype(type)>(prefix_lens), chunk_len,
                                table<Memory>(static_cast<std::size_t>(chunked_loop_num),
                                              prefix_lens.size, layout, buffer));
    });
  });
}

}  // namespace chunked_prefill::python
