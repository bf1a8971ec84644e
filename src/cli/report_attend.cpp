// SPDX-License-Identifier: MIT
#include "report_attend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

std::string bytes_words(std::int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", number / 1e9);
  if (bytes >= 1000000) return fmt::format("{:.1f} MB", number / 1e6);
  return fmt::format("{:.1f} kB", number / 1e3);
}

}  // namespace

std::array<std::string, 3> attend_heading(const Batch& batch, const AttendArguments& arguments,
                                          const Attended& attended, std::size_t most_name) {
  return {fmt::format("{}: {}, {}, page_size {}", name_end(one_line(batch.source), most_name),
                      counted(std::ssize(batch.prefix_lens), "sequence"),
                      counted(attended.tokens, "cached token"), grouped(batch.page_size)),
          fmt::format("{}, {} of {} + {}, values of {}",
                      counted(attended.query_tokens, "new token"), counted(arguments.heads, "head"),
                      arguments.nope_dim, arguments.rope_dim, arguments.value_dim),
          fmt::format("chunk_capacity {}, cached rows of {} + {} in {}, {}",
                      grouped(batch.chunk_capacity), arguments.latent_dim, arguments.rope_dim,
                      name(arguments.cache_type), arguments.execution_space)};
}

std::string policy_label(const AttendArguments& arguments, const AttendedPolicy& policy) {
  if (policy.policy == Policy::equal || arguments.grain == 1) return name(policy.policy);
  return fmt::format("packed/{}", arguments.grain);
}

std::string seconds_words(double seconds) {
  const auto three_digits = [](double number, std::string_view unit) {
    return fmt::format("{:.{}f} {}", number, number < 9.995 ? 2 : number < 99.95 ? 1 : 0, unit);
  };
  if (seconds < 0.9995e-3) return three_digits(1e6 * seconds, "us");
  if (seconds < 0.9995) return three_digits(1e3 * seconds, "ms");
  return three_digits(seconds, "s");
}

std::string report_attend_text(const Batch& batch, const AttendArguments& arguments,
                               const Attended& attended) {
  std::string text;
  for (const std::string& line : attend_heading(batch, arguments, attended, 30)) {
    text += line + '\n';
  }
  text += '\n';
  const auto row = [&](std::string_view name, const auto& cell) {
    text += fmt::format("{:<22}", name);
    for (const AttendedPolicy* policy : attended.policies()) {
      text += fmt::format("{:>13}", policy->refused.empty() ? cell(*policy) : "-");
    }
    text += '\n';
  };
  text += fmt::format("{:<22}{:>13}{:>13}\n", "", policy_label(arguments, attended.equal),
                      policy_label(arguments, attended.packed));
  row("loops", [](const AttendedPolicy& policy) { return grouped(policy.loops); });
  for (std::size_t stage = 0; stage < stage_count; ++stage) {
    row(fmt::format("  {}", stage_names[stage]),
        [&](const AttendedPolicy& policy) { return seconds_words(policy.seconds[stage]); });
  }
  row("all stages",
      [](const AttendedPolicy& policy) { return seconds_words(total(policy.seconds)); });
  row("largest difference",
      [](const AttendedPolicy& policy) { return fmt::format("{:.1e}", policy.difference); });
  row("  of the LSE",
      [](const AttendedPolicy& policy) { return fmt::format("{:.1e}", policy.lse_difference); });
  if (!attended.equal.refused.empty()) {
    text += fmt::format("equal: {}\n", attended.equal.refused);
  }
  text += '\n';
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<22}{:>26}\n", name, value);
  };
  line("workspace", bytes_words(attended.workspace_bytes));
  line("cache", bytes_words(attended.cache_bytes));
  line("new tokens x heads", grouped(attended.query_tokens * arguments.heads));
  line("  compared", grouped(attended.compared));
  line("tolerance", fmt::format("{:.0e}", attention_tolerance));
  return text;
}

std::string report_attend_json(const Batch& batch, const AttendArguments& arguments,
                               const Attended& attended) {
  using Json = nlohmann::ordered_json;
  Json report = {{"batch", one_line(batch.source)},
                 {"execution_space", arguments.execution_space},
                 {"batch_size", batch.prefix_lens.size()},
                 {"page_size", batch.page_size},
                 {"chunk_capacity", batch.chunk_capacity},
                 {"grain", arguments.grain},
                 {"heads", arguments.heads},
                 {"nope_dim", arguments.nope_dim},
                 {"rope_dim", arguments.rope_dim},
                 {"value_dim", arguments.value_dim},
                 {"latent_dim", arguments.latent_dim},
                 {"cache_type", name(arguments.cache_type)},
                 {"seed", arguments.seed},
                 {"tokens", attended.tokens},
                 {"query_tokens", attended.query_tokens},
                 {"workspace_bytes", attended.workspace_bytes},
                 {"cache_bytes", attended.cache_bytes},
                 {"query_heads", attended.query_tokens * arguments.heads},
                 {"query_heads_compared", attended.compared},
                 {"tolerance", attention_tolerance}};
  for (const AttendedPolicy* policy : attended.policies()) {
    Json& of = report[name(policy->policy)];
    if (!policy->refused.empty()) continue;  // null
    of = {{"loops", policy->loops},
          {"difference", policy->difference},
          {"lse_difference", policy->lse_difference},
          {"seconds", Json::object()}};
    for (std::size_t stage = 0; stage < stage_count; ++stage) {
      std::string key = stage_names[stage];
      std::ranges::replace_if(
          key, [](char c) { return c == ' ' || c == '-'; }, '_');
      of["seconds"][key] = policy->seconds[stage];
    }
  }
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace chunked_prefill::cli
