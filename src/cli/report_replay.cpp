// SPDX-License-Identifier: MIT
#include "report_replay.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "build.hpp"
#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

double tokens_per_second(const Replay& replay) {
  return replay.build_seconds > 0 ? static_cast<double>(replay.tokens) / replay.build_seconds : 0;
}

/// A number of loops; where the policy cannot split some step, there is none.
std::string number(const LoopCount& loops, std::int64_t number) {
  return loops.refused.empty() ? grouped(number) : "-";
}

std::string mean(const LoopCount& loops, std::int64_t steps) {
  if (steps == 0 || !loops.refused.empty()) return "-";
  return fmt::format("{:.2f}", static_cast<double>(loops.total) / static_cast<double>(steps));
}

/// Seconds of a build that a share `q` of all does not exceed.
double build_seconds(const Replay& replay, double q) {
  return 1e-9 * static_cast<double>(replay.build.quantile(q));
}

std::string micros(double seconds) { return fmt::format("{:.1f} us", 1e6 * seconds); }

}  // namespace

std::array<std::string, 2> replay_heading(const ReplayArguments& arguments, const Replay& replay,
                                          std::size_t most_name) {
  return {
      fmt::format("{}{}: {} of up to {}, {}", name_end(one_line(arguments.trace), most_name),
                  replay.interrupted ? ", interrupted" : "", counted(replay.steps, "step"),
                  counted(arguments.batch_size, "request"), counted(replay.requests, "request")),
      fmt::format("chunk_capacity {}, page_size {}", grouped(arguments.chunk_capacity),
                  grouped(arguments.page_size))};
}

std::string report_replay_text(const ReplayArguments& arguments, const Replay& replay) {
  const auto [trace, settings] = replay_heading(arguments, replay, 40);
  std::string text = trace + '\n' + settings + "\n\n";
  const auto row = [&](std::string_view name, std::string_view equal, std::string_view packed) {
    text += fmt::format("{:<22}{:>12}{:>12}\n", name, equal, packed);
  };
  row("", "equal",
      arguments.grain == 1 ? std::string("packed") : fmt::format("packed/{}", arguments.grain));
  const LoopCount &equal = replay.equal, &packed = replay.packed;
  row("loops", number(equal, equal.total), number(packed, packed.total));
  row("  a step, mean", mean(equal, replay.steps), mean(packed, replay.steps));
  row("  a step, most", number(equal, equal.most), number(packed, packed.most));
  if (!equal.refused.empty()) text += fmt::format("equal: {}\n", equal.refused);
  text += '\n';
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<22}{:>24}\n", name, value);
  };
  line("input tokens", grouped(replay.input_tokens));
  line("cached tokens", grouped(replay.tokens));
  line("longest prefix", grouped(replay.longest_prefix));
  line("pages used", grouped(replay.pages_used));
  line("pages evicted", grouped(replay.evictions));
  text += '\n';
  line("built", fmt::format("{} on {}", name(arguments.policy), arguments.execution_space));
  line("  a build, median", micros(build_seconds(replay, 0.5)));
  line("  a build, 99 %", micros(build_seconds(replay, 0.99)));
  line("  cached tokens a second", fmt::format("{:.3g}", tokens_per_second(replay)));
  if (arguments.verify) line("steps verified", grouped(replay.verified_steps));
  return text;
}

std::string report_replay_json(const ReplayArguments& arguments, const Replay& replay) {
  const auto loops = [](const LoopCount& count, std::int64_t number) {
    return count.refused.empty() ? nlohmann::ordered_json(number) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json report = {
      {"trace", one_line(arguments.trace)},
      {"policy", name(arguments.policy)},
      {"grain", arguments.grain},
      {"execution_space", arguments.execution_space},
      {"index_type", name(arguments.index_type)},
      {"batch_size", arguments.batch_size},
      {"chunk_capacity", arguments.chunk_capacity},
      {"page_size", arguments.page_size},
      {"cache_pages", arguments.cache_pages},
      {"interrupted", replay.interrupted},
      {"steps", replay.steps},
      {"requests", replay.requests},
      {"loops_equal", loops(replay.equal, replay.equal.total)},
      {"loops_packed", replay.packed.total},
      {"most_loops_equal", loops(replay.equal, replay.equal.most)},
      {"most_loops_packed", replay.packed.most},
      {"input_tokens", replay.input_tokens},
      {"tokens", replay.tokens},
      {"longest_prefix", replay.longest_prefix},
      {"pages_used", replay.pages_used},
      {"pages_evicted", replay.evictions},
      {"verified_steps", replay.verified_steps},
      {"seconds_median", build_seconds(replay, 0.5)},
      {"seconds_p99", build_seconds(replay, 0.99)},
      {"tokens_per_second", tokens_per_second(replay)}};
  return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

}  // namespace chunked_prefill::cli
