// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <chunked_prefill/plan.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "batch.hpp"
#include "index_type.hpp"

namespace chunked_prefill::cli {

/// "equal", "packed, grain 64".
[[nodiscard]] std::string policy_words(const ChunkPlan& plan);
/// "rank 3 of 8, interleave 1".
[[nodiscard]] std::string shard_words(const ContextShard& shard);

/// Rows of equal length, one a loop.
struct Table {
  std::vector<std::int32_t> values;
  std::size_t columns = 0;

  [[nodiscard]] std::span<const std::int32_t> row(std::size_t loop) const {
    return std::span(values).subspan(loop * columns, columns);
  }
};

/// All that the library gave for a batch, as plain host data.
struct Build {
  PlanOptions options;  ///< as asked for
  ChunkPlan plan;
  std::string execution_space;
  IndexType index_type = IndexType::int32;
  Table starts, ends, len_in_chunk;            ///< (chunked_loop_num, batch_size)
  Table cum_seq_lens;                          ///< (chunked_loop_num, batch_size + 1)
  std::vector<std::int64_t> chunk_kv_offsets;  ///< (chunked_loop_num + 1)
  std::vector<std::int64_t> chunk_kv_indices;  ///< (total tokens), of either index type

  [[nodiscard]] std::size_t loops() const {
    return static_cast<std::size_t>(plan.chunked_loop_num());
  }
  /// Slots of one loop, as the device's offsets divide them.
  [[nodiscard]] std::span<const std::int64_t> slots(std::size_t loop) const {
    const auto begin = static_cast<std::size_t>(chunk_kv_offsets[loop]);
    const auto end = static_cast<std::size_t>(chunk_kv_offsets[loop + 1]);
    return std::span(chunk_kv_indices).subspan(begin, end - begin);
  }
};

/// Builds the metadata of one batch after another on one execution space, in the same buffers.
/// Initialises Kokkos for as long as it lives, so there can be one in a process.
class Builder {
 public:
  /// \param execution_space one of `startup::execution_spaces()`.
  /// \throws InvalidArgument naming an environment variable that Kokkos would end the process for.
  Builder(IndexType index_type, const std::string& execution_space);
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  /// Plans and fills, and waits for the device.
  /// \returns how long that took, copying the batch to the device excepted.
  std::chrono::duration<double> build(const Batch& batch, const PlanOptions& options);
  [[nodiscard]] const ChunkPlan& plan() const;
  /// Copies the last build back.
  [[nodiscard]] Build read_back() const;

 private:
  struct State;
  std::unique_ptr<State> m_state;
};

/// Builds the batch's metadata under each of the policies that `arguments` name, and copies it
/// back.
///
/// \throws InvalidArgument as the library does, before Kokkos is initialised; also when the results
///   need more memory than there is.
[[nodiscard]] std::vector<Build> build(const Batch& batch, const PlanArguments& arguments);

/// Loops that a plan will have, 0 where `options` do not go together; takes no memory for each, as
/// the plan does.
[[nodiscard]] std::int64_t loops_needed(const Batch& batch, const PlanOptions& options);

/// Refuses builds that together need more memory than there is, naming `prefix_lens`.
void check_memory(const Batch& batch, std::span<const PlanOptions> builds, IndexType index_type);

}  // namespace chunked_prefill::cli
