// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chunked_prefill/impl/divisor.hpp>
#include <chunked_prefill/impl/execution.hpp>
#include <chunked_prefill/impl/fault_record.hpp>
#include <chunked_prefill/impl/index_array.hpp>
#include <chunked_prefill/impl/token_shard.hpp>
#include <cstdint>

// The kernels of a build with a DeviceCheck: CheckBatch and CheckPages before those of `fill`,
// which read no page once a fault is found, and DropFaulty behind them.

namespace chunked_prefill::impl {

/// What a build reads on the device, and what it must be.
struct CheckedInputs {
  IndexArray prefix_lens;            ///< (batch_size)
  const std::int32_t* planned_lens;  ///< (batch_size) of the plan; null: there are bounds alone
  IndexArray req_pool_indices;       ///< (batch_size)
  const std::int32_t* req_to_page;   ///< (max_requests, max_pages)
  std::int64_t row_stride;           ///< of req_to_page, elements
  std::int64_t max_requests;         ///< rows of req_to_page
  std::int64_t num_pages;            ///< ids are below this
  Divisor page_size;
  std::int32_t batch_size;
  std::int32_t max_prefix_len;
  std::int64_t total_tokens;  ///< of the rank
  TokenShard shard;
  std::int32_t* admitted_lens;  ///< (batch_size) what `fill` takes for `prefix_lens`
  FaultRecord* record;

  KOKKOS_FUNCTION std::int64_t least_len(std::int32_t i) const {
    return planned_lens == nullptr ? 0 : planned_lens[i];
  }
  KOKKOS_FUNCTION std::int64_t most_len(std::int32_t i) const {
    return planned_lens == nullptr ? max_prefix_len : planned_lens[i];
  }
  /// Tokens that the rank holds of sequence `i`, as `fill` reads its length.
  KOKKOS_FUNCTION std::int32_t local_len(std::int32_t i) const {
    return shard.local(prefix_lens.clamped(i, max_prefix_len));
  }
  KOKKOS_FUNCTION bool has_row(std::int32_t i) const {
    return req_pool_indices[i] >= 0 && req_pool_indices[i] < max_requests;
  }
  KOKKOS_FUNCTION std::int32_t page_id(std::int32_t i, std::int64_t page) const {
    return req_to_page[req_pool_indices[i] * row_stride + page];
  }
};

template <ExecutionSpace Space>
inline constexpr int check_team_size = runs_on_host<Space> ? 1 : 8;

/// Lengths, and the rows of sequences that are not empty, by one team.
struct CheckBatch {
  CheckedInputs inputs;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    FaultRecord& record = *inputs.record;
    Kokkos::single(Kokkos::PerTeam(team), [&] { record.found = FaultPlace::none; });
    team.team_barrier();
    std::int64_t total = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, inputs.batch_size),
        [&](const std::int32_t i, std::int64_t& sum) {
          const std::int64_t length = inputs.prefix_lens[i];
          if (length < inputs.least_len(i) || length > inputs.most_len(i)) {
            record.add(FaultPlace::of(i, FaultPlace::length));
          }
          const std::int32_t held = inputs.local_len(i);
          if (held > 0 && !inputs.has_row(i)) {
            record.add(FaultPlace::of(i, FaultPlace::request_row));
          }
          sum += held;
        },
        total);
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      if (total > inputs.total_tokens) {
        record.add(FaultPlace::of(inputs.batch_size, FaultPlace::total));
      }
    });
  }
};

/// Page ids inside the prefixes, by `teams_per_sequence` teams each.
struct CheckPages {
  CheckedInputs inputs;
  std::int32_t teams_per_sequence = 1;  ///< `launch` chooses

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t i = team.league_rank() / teams_per_sequence;
    const std::int32_t part = team.league_rank() % teams_per_sequence;
    const std::int32_t held = inputs.local_len(i);
    if (held == 0 || !inputs.has_row(i)) return;
    const std::int32_t pages = inputs.page_size.quotient(held - 1) + 1;
    const std::int32_t share = ceil_div(pages, teams_per_sequence);
    const std::int64_t begin = std::int64_t{part} * share;
    const std::int64_t count = Kokkos::clamp(pages - begin, std::int64_t{0}, std::int64_t{share});
    Kokkos::parallel_for(
        Kokkos::TeamVectorRange(team, static_cast<std::int32_t>(count)), [&](const std::int32_t k) {
          const std::int64_t page = begin + k;
          const std::int32_t id = inputs.page_id(i, page);
          if (id < 0 || id >= inputs.num_pages) {
            inputs.record->add(
                FaultPlace::of(i, FaultPlace::first_page + static_cast<std::uint64_t>(page)));
          }
        });
  }
};

/// The lengths on the device as they are, or zeros: then `fill` reads no page and no row.
struct AdmitLens {
  CheckedInputs inputs;

  KOKKOS_FUNCTION void operator()(std::int32_t i) const {
    inputs.admitted_lens[i] = inputs.record->found == FaultPlace::none
                                  ? inputs.prefix_lens.clamped(i, inputs.max_prefix_len)
                                  : 0;
  }
};

/// An output of a build, as 32-bit words.
struct OutputWords {
  OutputWords() = default;
  template <class View>
  explicit OutputWords(const View& output)
      : words(reinterpret_cast<std::int32_t*>(output.data())),
        count(static_cast<std::int64_t>(output.size() * sizeof(output.data()[0]) /
                                        sizeof(std::int32_t))) {}

  std::int32_t* words = nullptr;
  std::int64_t count = 0;
};

/// After a fault: zeros in every output, so that what follows on the device works on empty loops
/// and on slot 0, never on what an earlier build left; and the fault's numbers for the host, unless
/// it has those of an earlier one to read.
struct DropFaulty {
  static constexpr int outputs_num = 6;

  CheckedInputs inputs;
  OutputWords outputs[outputs_num];

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    if (inputs.record->found == FaultPlace::none) return;
    if (team.league_rank() == 0) {
      Kokkos::single(Kokkos::PerTeam(team), [&] { keep(*inputs.record); });
    }
    for (const OutputWords& output : outputs) {
      const std::int64_t share = ceil_div(output.count, std::int64_t{team.league_size()});
      const std::int64_t begin = Kokkos::min(team.league_rank() * share, output.count);
      const std::int64_t end = Kokkos::min(begin + share, output.count);
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, begin, end),
                           [&](const std::int64_t k) { output.words[k] = 0; });
    }
  }

 private:
  KOKKOS_FUNCTION void keep(FaultRecord& record) const {
    if (record.is_set != 0) return;
    record.is_set = 1;
    record.place = record.found;
    record.position = 0;
    record.least = 0;
    const std::int32_t i = FaultPlace::sequence(record.place);
    const std::uint64_t item = FaultPlace::item(record.place);
    if (item == FaultPlace::total) {
      record.value = 0;
      for (std::int32_t k = 0; k < inputs.batch_size; ++k) record.value += inputs.local_len(k);
      record.most = inputs.total_tokens;
    } else if (item == FaultPlace::length) {
      record.value = inputs.prefix_lens[i];
      record.least = inputs.least_len(i);
      record.most = inputs.most_len(i);
    } else if (item == FaultPlace::request_row) {
      record.value = inputs.req_pool_indices[i];
      record.most = inputs.max_requests - 1;
    } else {
      const auto page = static_cast<std::int64_t>(item - FaultPlace::first_page);
      record.position = page * inputs.page_size.value();
      record.value = inputs.page_id(i, page);
      record.most = inputs.num_pages - 1;
    }
  }
};

/// Enqueue the checks, and what follows a fault, on `space`.
template <ExecutionSpace Space>
void launch(const Space& space, const CheckBatch& kernel) {
  launch_teams("chunked_prefill::check_batch", space, 1, check_team_size<Space>, kernel);
}
template <ExecutionSpace Space>
void launch(const Space& space, CheckPages kernel) {
  constexpr std::int32_t pages_per_team = 4096;
  constexpr std::int32_t most_teams = 1 << 16;
  const CheckedInputs& inputs = kernel.inputs;
  const std::int32_t most_pages =
      ceil_div(inputs.shard.local(inputs.max_prefix_len), inputs.page_size.value());
  if (most_pages == 0) return;
  kernel.teams_per_sequence = std::clamp(ceil_div(most_pages, pages_per_team), 1,
                                         std::max(most_teams / inputs.batch_size, 1));
  launch_teams("chunked_prefill::check_pages", space,
               std::int64_t{inputs.batch_size} * kernel.teams_per_sequence, check_team_size<Space>,
               kernel);
}
template <ExecutionSpace Space>
void launch(const Space& space, const AdmitLens& kernel) {
  Kokkos::parallel_for("chunked_prefill::admit_lens",
                       Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int32_t>>(
                           space, 0, kernel.inputs.batch_size),
                       kernel);
}
template <ExecutionSpace Space>
void launch(const Space& space, const DropFaulty& kernel) {
  constexpr std::int64_t most_teams = 256;
  std::int64_t words = 0;
  for (const OutputWords& output : kernel.outputs) words += output.count;
  launch_teams("chunked_prefill::drop_faulty", space,
               std::clamp(words / 4096, std::int64_t{1}, most_teams), check_team_size<Space>,
               kernel);
}

}  // namespace chunked_prefill::impl
