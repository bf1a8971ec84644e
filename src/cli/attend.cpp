// SPDX-License-Identifier: MIT
#include "attend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chunked_prefill/error.hpp>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "build.hpp"
#include "check.hpp"
#include "memory.hpp"
#include "normal.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "unchunked.hpp"

namespace chunked_prefill::cli {
namespace {

/// Keys that the serial program goes through, so that it takes about a second.
constexpr double most_keys_compared = 1 << 19;

std::int64_t query_tokens(const Batch& batch, const AttendArguments& arguments) {
  return std::ssize(batch.prefix_lens) * arguments.new_tokens;
}

/// Up to the last that a prefix covers.
std::int64_t slots_needed(const Batch& batch) {
  std::int64_t slots = 0;
  for (std::size_t i = 0; i < batch.prefix_lens.size(); ++i) {
    std::int64_t tokens = batch.prefix_lens[i];
    for (std::size_t page = 0; tokens > 0; ++page, tokens -= batch.page_size) {
      slots = std::max(
          slots, batch.page_id(i, page) * batch.page_size + std::min(tokens, batch.page_size));
    }
  }
  return slots;
}

/// Refuses what needs more memory than there is, with the arrays counted that grow with the batch.
void check_memory(const Batch& batch, const AttendArguments& arguments, std::int64_t slots) {
  const auto queries = static_cast<double>(query_tokens(batch, arguments));
  const auto heads = static_cast<double>(arguments.heads);
  const auto query_dim = static_cast<double>(arguments.nope_dim + arguments.rope_dim);
  const auto value_dim = static_cast<double>(arguments.value_dim);
  const auto row_dim = static_cast<double>(arguments.latent_dim + arguments.rope_dim);
  const double columns = heads * static_cast<double>(arguments.nope_dim + arguments.value_dim);
  const double cache =
      static_cast<double>(slots) * row_dim * static_cast<double>(bytes(arguments.cache_type));
  require_memory("prefix_lens",
                 fmt::format("{} of {} bytes", counted(slots, "slot"),
                             grouped((arguments.latent_dim + arguments.rope_dim) *
                                     bytes(arguments.cache_type))),
                 cache);
  const double data =
      static_cast<double>(arguments.latent_dim) * columns + queries * (heads * query_dim + row_dim);
  const double state = queries * heads * (value_dim + 1);
  const double workspace = static_cast<double>(batch.chunk_capacity) * (row_dim + columns) + state;
  require_memory("chunk_capacity",
                 fmt::format("{} a loop and {} of {}", counted(batch.chunk_capacity, "token"),
                             counted(query_tokens(batch, arguments), "new token"),
                             counted(arguments.heads, "head")),
                 cache + 4 * (2 * data + 2 * state + workspace));
}

AttentionData make_data(const AttendArguments& arguments, std::int64_t query_tokens,
                        Normal& normal) {
  const auto drawn = [&](std::int64_t count, float scale) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = scale * normal();
    return values;
  };
  const auto query_dim = arguments.nope_dim + arguments.rope_dim;
  AttentionData data;
  // Keys and values of variance 1, scores of 4: some keys matter more than others.
  data.kv_b =
      drawn(arguments.latent_dim * arguments.heads * (arguments.nope_dim + arguments.value_dim),
            1 / std::sqrt(static_cast<float>(arguments.latent_dim)));
  data.query = drawn(query_tokens * arguments.heads * query_dim, 2);
  data.rows = drawn(query_tokens * (arguments.latent_dim + arguments.rope_dim), 1);
  data.softmax_scale = 1 / std::sqrt(static_cast<float>(query_dim));
  return data;
}

/// The largest of differences and of the values expected; a NaN is as far off as can be.
struct Difference {
  double largest = 0, value = 0;

  void add(float got, double expected) {
    const double off = std::abs(got - expected);
    largest = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(largest, off);
    value = std::max(value, std::abs(expected));
  }
  [[nodiscard]] double relative() const { return largest == 0 ? 0 : largest / value; }
};

class Step {
 public:
  Step(const Batch& batch, const AttendArguments& arguments)
      : m_batch(batch), m_arguments(arguments) {
    m_equal = {.chunk_capacity = batch.chunk_capacity};
    m_packed = {
        .chunk_capacity = batch.chunk_capacity, .policy = Policy::packed, .grain = arguments.grain};
    const auto batch_size = std::ssize(batch.prefix_lens);
    if (batch_size > batch.chunk_capacity) {
      m_result.equal.refused =
          fmt::format("{} cannot be split equally among {}", counted(batch.chunk_capacity, "token"),
                      counted(batch_size, "sequence"));
    }
    m_result.packed.policy = Policy::packed;
  }

  Attended run() {
    refuse_early();
    Normal normal(m_arguments.seed);
    const AttentionData data = make_data(m_arguments, query_tokens(m_batch, m_arguments), normal);
    const auto attention = make_attention(m_batch, m_arguments, data, m_slots, normal);
    m_result.tokens = 0;
    for (const std::int32_t length : m_batch.prefix_lens) m_result.tokens += length;
    m_result.query_tokens = query_tokens(m_batch, m_arguments);
    m_result.cache_bytes =
        m_slots * (m_arguments.latent_dim + m_arguments.rope_dim) * bytes(m_arguments.cache_type);
    m_result.workspace_bytes = attention->workspace_bytes();

    const auto compared = some_query_heads(m_batch, m_arguments, most_keys_compared);
    m_result.compared = std::ssize(compared);
    std::vector<Unchunked> expected;
    for (std::size_t k = 0; k < compared.size(); ++k) {
      expected.push_back(unchunked(m_batch, m_arguments, data, *attention, compared[k]));
      m_progress.show(static_cast<double>(k + 1) / static_cast<double>(compared.size()),
                      "serial program");
    }
    if (m_result.equal.refused.empty()) {
      attend(*attention, m_equal, compared, expected, m_result.equal);
    }
    attend(*attention, m_packed, compared, expected, m_result.packed);
    return m_result;
  }

 private:
  /// Before Kokkos starts.
  void refuse_early() {
    const std::array both{m_packed, m_equal};
    const std::span builds(both.data(), m_result.equal.refused.empty() ? 2 : 1);
    cli::check_memory(m_batch, builds, IndexType::int64);
    check_pages(m_batch, IndexType::int64);
    m_slots = slots_needed(m_batch);
    check_memory(m_batch, m_arguments, m_slots);
    for (const PlanOptions& options : builds) (void)plan_chunks(m_batch.prefix_lens, options);
  }

  void attend(Attention& attention, const PlanOptions& options,
              const std::vector<QueryHead>& compared, const std::vector<Unchunked>& expected,
              AttendedPolicy& result) {
    const char* const policy = name(options.policy);
    const AttentionResult got = attention.run(options, [&](std::int64_t done, std::int64_t all) {
      m_progress.show(static_cast<double>(done) / static_cast<double>(all),
                      fmt::format("{}, loop {} of {}", policy, grouped(done), grouped(all)));
    });
    result.loops = got.loops;
    result.seconds = got.seconds;
    Difference values, lse;
    for (std::size_t k = 0; k < compared.size(); ++k) {
      const auto& [sequence, token, head] = compared[k];
      const auto at = static_cast<std::size_t>(
          (static_cast<std::int64_t>(sequence) * m_arguments.new_tokens + token) *
              m_arguments.heads +
          head);
      const auto& of = expected[k];
      for (std::size_t d = 0; d < of.values.size(); ++d) {
        values.add(got.values[at * of.values.size() + d], of.values[d]);
      }
      lse.add(got.lse[at], of.lse);
    }
    result.difference = values.relative();
    result.lse_difference = lse.relative();
    for (const auto& [what, difference] :
         {std::pair("values", result.difference), std::pair("LSE", result.lse_difference)}) {
      if (difference <= attention_tolerance) continue;
      throw CheckFailed(
          fmt::format("policy {}: the {} differ from unchunked attention by {:.2g} of the largest, "
                      "above {:.0e}",
                      policy, what, difference, attention_tolerance));
    }
  }

  const Batch& m_batch;
  const AttendArguments& m_arguments;
  std::int64_t m_slots = 0;  ///< of the cache
  PlanOptions m_equal, m_packed;
  Progress m_progress;
  Attended m_result;
};

}  // namespace

Attended attend(const Batch& batch, const AttendArguments& arguments) {
  if (batch.shard.world_size > 1) {
    throw InvalidArgument("shard", fmt::format("attention is to whole sequences, the batch has "
                                               "{} alone",
                                               shard_words(batch.shard)));
  }
  const auto tokens = query_tokens(batch, arguments);
  if (tokens > INT32_MAX / arguments.heads) {
    throw InvalidArgument("--new-tokens",
                          fmt::format("{} of {} with {} are above {}", arguments.new_tokens,
                                      counted(std::ssize(batch.prefix_lens), "sequence"),
                                      counted(arguments.heads, "head"), INT32_MAX));
  }
  return Step(batch, arguments).run();
}

}  // namespace chunked_prefill::cli
