// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/execution.hpp>
#include <cstdint>

namespace chunked_prefill::impl {

/// Threads of a team that writes a tile.
template <ExecutionSpace Space>
inline constexpr std::int32_t tile_team_size = runs_on_host<Space> ? 1 : 4;

/// How the flat output is shared out among teams.
struct Tiling {
  std::int64_t size = 0;   ///< slots of a tile, whole 16-byte units; 0: `choose` decides on both
  bool streaming = false;  ///< host: the output is larger than the caches

  /// Chooses for an output of `length` slots of `slot_bytes` bytes.
  ///
  /// A tile a thread on the host. On a device the smallest tiles that fill the machine once, half
  /// of the threads that it could hold if kernels took no registers (those of this library take
  /// at most 64): more tiles than can run together would repeat the search for their beginnings,
  /// fewer would leave threads idle. But none so small that a lane has less than two packs to
  /// search for, and none larger than `most_thread_bytes` a thread: the searches of later teams
  /// hide behind the stores of earlier ones, which move through memory in a narrow front.
  template <ExecutionSpace Space>
  void choose(const Space& space, std::int64_t length, std::size_t slot_bytes) {
    if (size != 0) return;
    const auto bytes = static_cast<std::int64_t>(slot_bytes);
    streaming = length * bytes >= streaming_bytes;
    const std::int64_t threads = space.concurrency() / lane_num<Space>;
    if constexpr (runs_on_host<Space>) {
      size = whole(length, threads, host_step);
    } else {
      constexpr std::int64_t team = tile_team_size<Space>;
      size = std::min(
          whole(length, threads / team / 2, team * lane_num<Space> * least_lane_bytes / bytes),
          team * most_thread_bytes / bytes);
    }
  }

 private:
  /// The fewest whole steps, and at least one, that cover `length` in `parts` parts.
  static std::int64_t whole(std::int64_t length, std::int64_t parts, std::int64_t step) {
    length = std::max(length, std::int64_t{1});
    return ceil_div(ceil_div(length, std::max(parts, std::int64_t{1})), step) * step;
  }

  static constexpr std::int64_t host_step = 4096;
  static constexpr std::int64_t least_lane_bytes = 32;
  static constexpr std::int64_t most_thread_bytes = 4096;
  /// Where caches stop to help, about: as large as a last-level cache often is.
  static constexpr std::int64_t streaming_bytes = std::int64_t{32} << 20;
};

}  // namespace chunked_prefill::impl
