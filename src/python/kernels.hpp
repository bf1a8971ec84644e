// SPDX-License-Identifier: MIT
#pragma once

#include <chunked_prefill/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

// What the module asks of Kokkos, without Kokkos or Python in it: device compilers need not take
// the binding library, and the binding library's compiler need not be a device's.

namespace chunked_prefill::python {

/// Where memory is, in DLPack's numbers.
struct Device {
  static constexpr std::int32_t cpu = 1;
  static constexpr std::int32_t cuda = 2;
  static constexpr std::int32_t cuda_host = 3;  ///< pinned
  std::int32_t type = cpu;
  std::int32_t id = 0;
  friend bool operator==(const Device&, const Device&) = default;
};
/// "cpu", "cuda:1", "DLPack device 13".
[[nodiscard]] std::string name(const Device& device);

/// One-dimensional int32 or int64 memory of the caller's.
struct Integers {
  const void* data = nullptr;
  std::size_t size = 0;
  std::size_t stride = 1;  ///< elements from one to the next
  bool is_int64 = false;
};

/// (max_requests, max_pages) int32 page ids.
struct Pages {
  const std::int32_t* data = nullptr;
  std::size_t max_requests = 0;
  std::size_t max_pages = 0;
  std::size_t row_stride = 0;   ///< elements
  std::size_t page_stride = 1;  ///< elements
};

struct Prefix {
  Integers prefix_lens;
  Pages req_to_page;
  Integers req_pool_indices;
  std::int64_t page_size = 0;
  std::int64_t num_pages = 0;
};

/// The arrays of a build in one buffer: where each begins, in 32-bit words, on whole 16 bytes.
struct Layout {
  bool is_int64 = false;  ///< the slots
  std::size_t chunk_kv_indices = 0, chunk_kv_indices_size = 0;
  std::size_t len_in_chunk = 0, starts = 0, ends = 0, table_size = 0;
  std::size_t cum_seq_lens = 0, cum_seq_lens_size = 0;
  std::size_t offsets = 0, offsets_size = 0;
  std::size_t words = 0;  ///< of the buffer
};
[[nodiscard]] Layout layout(const ChunkShape& shape, bool is_int64);

/// A DeviceCheck, on one device.
class Check {
 public:
  explicit Check(const Device& device);
  ~Check();
  Check(const Check&) = delete;
  Check& operator=(const Check&) = delete;

  [[nodiscard]] Device device() const { return m_device; }
  /// What the first build with a fault had wrong; waits for `stream`, by default the last build's.
  [[nodiscard]] std::optional<std::string> first_fault(std::optional<std::uintptr_t> stream);
  void built_on(std::uintptr_t stream) { m_stream = stream; }

  struct State;
  /// \throws Error once Kokkos was finalised.
  [[nodiscard]] State& state();

 private:
  Device m_device;
  std::uintptr_t m_stream = 0;
  std::unique_ptr<State> m_state;
};

/// What a build is of: a plan, or a shape of which no batch is known yet.
struct Split {
  const ChunkPlan* plan = nullptr;
  ChunkShape shape;
  Integers prefix_lens_host;  ///< of the plan; read with a check only
};

/// Enqueues the kernels that write `buffer`, laid out as `layout`, on `stream` of `device`. On the
/// CPU the results are complete on return.
/// \throws InvalidArgument as `fill` does; naming `prefix_lens` when Kokkos runs on another GPU or
///   has no backend for the device.
void fill(const Device& device, std::uintptr_t stream, const Split& split, const Prefix& prefix,
          const Layout& layout, std::int32_t* buffer, Check* check);

/// The plan's chunk table on the CPU, complete on return.
void host_table(const ChunkPlan& plan, const Integers& prefix_lens, const Layout& layout,
                std::int32_t* buffer);

/// The chunk table of an equal split with `chunk_len` tokens, of `chunked_loop_num` loops, on
/// `stream` of `device`.
void chunking(const Device& device, std::uintptr_t stream, const Integers& prefix_lens,
              std::int64_t chunked_loop_num, std::int64_t chunk_len, const Layout& layout,
              std::int32_t* buffer);
/// The chunk table alone. \throws InvalidArgument naming `num_chunks` or `batch_size`.
[[nodiscard]] Layout table_layout(std::int64_t chunked_loop_num, std::int64_t batch_size);

/// \throws InvalidArgument naming what of `plan` is beyond `shape`.
void check_within(const ChunkPlan& plan, const ChunkShape& shape);

/// Initialises Kokkos, unless the process has, for tensors on `device`.
/// \throws InvalidArgument naming an environment variable that Kokkos would end the process for;
///   Error in a process forked off one in which Kokkos ran.
void initialize(const Device& device);
/// Finalises Kokkos, if `initialize` initialised it. A Check that is left throws when it is used.
void finalize();

/// Versions and backends, a line each.
[[nodiscard]] std::string configuration();

}  // namespace chunked_prefill::python
