// SPDX-License-Identifier: MIT
#include "arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/version.hpp>
#include <sstream>

#include "build.hpp"
#include "output.hpp"

namespace chunked_prefill::cli {
namespace {

/// Printed as it stands; CLI11 would reflow it.
constexpr const char* plan_footer = R"(
BATCH.json is an object like
  {"prefix_lens": [256, 512, 768, 1024], "page_size": 64, "chunk_capacity": 1024}
  prefix_lens        cached tokens of each sequence
  page_size          tokens a page holds
  chunk_capacity     tokens a loop may hold; or its factors chunked_prefill_size
                     and mla_chunk_multiplier, by default 8192 and 4
  req_to_page        rows of page ids, and req_pool_indices, each sequence's row;
                     without both: sequence i on row i, pages numbered consecutively

Without --json and --svg, prints the loops and draws which part of which sequence
each covers. Exit status: 0 done, 1 failed verification, 2 bad usage or bad input.
)";

/// The option's value as typed, before it is judged.
struct Typed {
  PlanArguments plan;
  std::string policy = "equal";
  std::string grain = "1";
  std::string index_type = "int32";
};

std::string version_text() {
  const auto spaces = execution_spaces();
  return fmt::format("chunked_prefill {}\nKokkos {}\nexecution spaces: {} (default {})\n", version,
                     kokkos_version(), fmt::join(spaces, ", "), default_execution_space());
}

CLI::App* add_plan(CLI::App& app, Typed& typed) {
  auto* plan = app.add_subcommand("plan", "Build the prefix metadata of one batch and show it");
  plan->add_option("BATCH.json", typed.plan.batch, "the batch; - for standard input")
      ->type_name("");
  plan->add_option("--policy", typed.policy, "how prefixes are cut into loops (default equal)")
      ->type_name("equal|packed");
  plan->add_option("--grain", typed.grain, "tokens that packed cuts are multiples of (default 1)")
      ->type_name("N");
  plan->add_option("--json", typed.plan.json, "write every array as one JSON document")
      ->type_name("FILE|-");
  plan->add_option("--svg", typed.plan.svg, "draw the loops as a picture")->type_name("FILE|-");
  plan->add_option("--index-type", typed.index_type, "type of the slots (default int32)")
      ->type_name("int32|int64");
  plan->add_flag("--check", typed.plan.check, "verify every value against a serial computation");
  plan->add_option("--execution-space", typed.plan.execution_space,
                   fmt::format("where the kernels run: {} (default {})",
                               fmt::join(execution_spaces(), ", "), default_execution_space()))
      ->type_name("NAME");
  return plan;
}

void refuse_extras(const CLI::App& app, const char* kind) {
  const auto extras = app.remaining();
  if (extras.empty()) return;
  const bool option = extras[0].size() > 1 && extras[0][0] == '-';
  throw InvalidArgument(extras[0], option ? "unknown option" : kind);
}

Policy judge_policy(const std::string& policy) {
  if (policy == "equal") return Policy::equal;
  if (policy == "packed") return Policy::packed;
  throw InvalidArgument("--policy", fmt::format("\"{}\" is neither equal nor packed", policy));
}

std::int64_t judge_grain(const std::string& grain, Policy policy) {
  std::int64_t tokens = 0;
  const auto* end = grain.data() + grain.size();
  const auto [rest, error] = std::from_chars(grain.data(), end, tokens);
  if (error != std::errc() || rest != end || tokens < 1) {
    throw InvalidArgument("--grain", fmt::format("\"{}\" is not a positive integer", grain));
  }
  if (policy == Policy::equal && tokens != 1) {
    throw InvalidArgument("--grain", fmt::format("{} belongs to --policy packed", tokens));
  }
  return tokens;
}

IndexType judge_index_type(const std::string& type) {
  if (type == "int32") return IndexType::int32;
  if (type == "int64") return IndexType::int64;
  throw InvalidArgument("--index-type", fmt::format("\"{}\" is neither int32 nor int64", type));
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string judge_execution_space(const std::string& typed) {
  const auto spaces = execution_spaces();
  const auto found = std::find_if(spaces.begin(), spaces.end(), [&](const std::string& space) {
    return lower_case(space) == lower_case(typed);
  });
  if (found != spaces.end()) return *found;
  throw InvalidArgument("--execution-space", fmt::format("\"{}\" is not built in; available: {}",
                                                         typed, fmt::join(spaces, ", ")));
}

void judge_output(const char* option, const std::string& batch,
                  std::optional<std::string>& output) {
  if (!output) return;
  if (output->empty()) throw InvalidArgument(option, "the file name is empty");
  if (is_standard_output(*output)) {
    output = "-";
  } else if (is_same_file(batch, *output)) {
    throw InvalidArgument(option, fmt::format("{} is the batch itself", *output));
  }
}

void judge_files(PlanArguments& plan) {
  if (plan.batch.empty()) throw InvalidArgument("BATCH.json", "the file name is empty");
  judge_output("--json", plan.batch, plan.json);
  judge_output("--svg", plan.batch, plan.svg);
  if (plan.json && plan.svg && (*plan.json == *plan.svg || is_same_file(*plan.json, *plan.svg))) {
    throw InvalidArgument("--svg", fmt::format("{} is where --json goes", *plan.svg));
  }
}

}  // namespace

std::variant<PlanArguments, Answer> parse_arguments(int argc, const char* const* argv) {
  CLI::App app("Chunked-prefill prefix metadata for MLA attention, on Kokkos.", "chunked_prefill");
  Typed typed;
  auto* plan = add_plan(app, typed);
  for (auto* level : {&app, plan}) {
    level->set_version_flag("--version", version_text,
                            "print the versions of library and Kokkos, and the execution spaces");
    level->allow_extras();  // judged below, in this tool's words
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    app.exit(asked, text, text);
    std::string answer = text.str();
    while (answer.ends_with('\n')) answer.pop_back();
    answer += '\n';
    if (plan->parsed() > 0 && asked.get_name() == "CallForHelp") answer += plan_footer;
    return Answer{answer};
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();  // "--option: ..."
    throw InvalidArgument(what.substr(0, what.find(':')), "needs one value, given once");
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument("arguments", error.what());
  }

  refuse_extras(app, "unknown subcommand, plan is the one there is");
  if (plan->parsed() == 0) {
    throw InvalidArgument("subcommand", "missing, plan is the one there is; see --help");
  }
  refuse_extras(*plan, "unexpected argument, one batch is planned at a time");
  typed.plan.policy = judge_policy(typed.policy);
  typed.plan.grain = judge_grain(typed.grain, typed.plan.policy);
  typed.plan.index_type = judge_index_type(typed.index_type);
  typed.plan.execution_space = plan->get_option("--execution-space")->count() > 0
                                   ? judge_execution_space(typed.plan.execution_space)
                                   : default_execution_space();
  if (plan->get_option("BATCH.json")->count() == 0) {
    throw InvalidArgument("BATCH.json", "missing, give a file or - for standard input");
  }
  judge_files(typed.plan);
  return typed.plan;
}

}  // namespace chunked_prefill::cli
