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

#include "../startup/kokkos_info.hpp"
#include "attention.hpp"
#include "build.hpp"
#include "output.hpp"
#include "text.hpp"

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
  shard              {"world_size": 8, "rank": 3, "interleave": 1}: one rank of a
                     context-parallel group. Lengths and chunk_capacity count the tokens
                     of all ranks; pages, slots and all that is shown, the rank's own

Without --json and --svg, prints the loops and draws which part of which sequence
each covers. --policy both shows the policies one after the other, in a picture
side by side; --grain then belongs to the packed one.
Exit status: 0 done, 1 failed verification, 2 bad usage or bad input.
)";

constexpr const char* replay_footer = R"(
TRACE holds one request a line, either Mooncake's JSON objects with input_length
and hash_ids, one id for each started block of 512 tokens, or CSV with the columns
input_length and cached_prefix. Requests are started in batches of consecutive
ones. A request's prefix is what earlier ones left in a paged cache, in which
requests with a common prefix are on the same pages; CSV says its length, and
tells no sharing. What else a row has is not looked at.

Without --json and --svg, ends with a table: steps, loops under both policies,
tokens, and the time of a build (plan, fill and wait). The picture has the loops of
each step and how they are distributed, under both policies. A packed replay goes on
where an equal split has no token for each sequence of a step. An interrupt ends the
replay after the step at hand, with the report of what was done.
Exit status: 0 done, 1 failed verification, 2 bad usage or bad input.
)";

constexpr const char* attend_footer = R"(
BATCH.json is the object that plan reads, without a shard. Its cached rows, new
tokens, queries and weights are drawn from the seed; sizes are by default those
of DeepSeek V3, but for its 128 heads. Each policy's step is computed as an
engine's would be: metadata, then loop after loop the cached rows gathered, keys
and values up-projected, attention, the results merged; at last attention to the
new tokens. In float, whatever the cache holds.

Without --json and --svg, ends with a table: loops, time of each stage with a
fence after it, memory, and the largest difference from unchunked attention, in
units of the largest value. That is computed in double by a serial program from
the same cached, rounded rows, so that the tolerance of 1e-5 is that of float
arithmetic; of long batches, for some of the new tokens and heads. An equal
split that has no token for each sequence is left out.
Exit status: 0 done, 1 difference above the tolerance, 2 bad usage or bad input.
)";

/// What all subcommands take, as typed, before it is judged.
struct Typed {
  PlanArguments plan;
  ReplayArguments replay;
  AttendArguments attend;
  std::string policy = "equal";
  std::string grain = "1";
  std::string index_type = "int32";
  std::string execution_space;
  std::string batch_size = "16", steps, chunk_capacity = "32768", page_size = "64",
              cache_pages = "1048576";
  std::string new_tokens = "1", heads = "4", nope_dim = "128", rope_dim = "64", value_dim = "128",
              latent_dim = "512", seed = "1", cache_type = "fp32";
};

std::string version_text() {
  const auto spaces = startup::execution_spaces();
  return fmt::format("chunked_prefill {}\nKokkos {}\nexecution spaces: {} (default {})\n", version,
                     startup::kokkos_version(), fmt::join(spaces, ", "),
                     startup::default_execution_space());
}

void add_number(CLI::App& command, const char* name, std::string& value, const char* help) {
  command.add_option(name, value, help)->type_name("N");
}

void add_grain(CLI::App& command, Typed& typed) {
  add_number(command, "--grain", typed.grain,
             "tokens that packed cuts are multiples of (default 1)");
}

void add_execution_space(CLI::App& command, Typed& typed) {
  command
      .add_option("--execution-space", typed.execution_space,
                  fmt::format("where the kernels run: {} (default {})",
                              fmt::join(startup::execution_spaces(), ", "),
                              startup::default_execution_space()))
      ->type_name("NAME");
}

/// Options of the library's, the same in both subcommands that show what it builds.
void add_build_options(CLI::App& command, Typed& typed, const char* policies) {
  command.add_option("--policy", typed.policy, "how prefixes are cut into loops (default equal)")
      ->type_name(policies);
  add_grain(command, typed);
  command.add_option("--index-type", typed.index_type, "type of the slots (default int32)")
      ->type_name("int32|int64");
  add_execution_space(command, typed);
}

/// Where what is computed goes instead of standard output, if `arguments` say so.
template <class Arguments>
void add_documents(CLI::App& command, Arguments& arguments, const char* json, const char* svg) {
  command.add_option("--json", arguments.json, json)->type_name("FILE|-");
  command.add_option("--svg", arguments.svg, svg)->type_name("FILE|-");
}

CLI::App* add_plan(CLI::App& app, Typed& typed) {
  auto* plan = app.add_subcommand("plan", "Build the prefix metadata of one batch and show it");
  plan->add_option("BATCH.json", typed.plan.batch, "the batch; - for standard input")
      ->type_name("");
  add_build_options(*plan, typed, "equal|packed|both");
  add_documents(*plan, typed.plan, "write every array as one JSON document",
                "draw the loops as a picture");
  plan->add_flag("--check", typed.plan.check, "verify every value against a serial computation");
  return plan;
}

CLI::App* add_replay(CLI::App& app, Typed& typed) {
  auto* replay =
      app.add_subcommand("replay", "Build the prefix metadata of every step of a request trace");
  replay->add_option("TRACE", typed.replay.trace, "the trace, JSONL or CSV")->type_name("");
  const auto number = [&](const char* name, std::string& value, const char* help) {
    add_number(*replay, name, value, help);
  };
  number("--batch-size", typed.batch_size, "requests of a step (default 16)");
  number("--steps", typed.steps, "steps at most (default all)");
  number("--chunk-capacity", typed.chunk_capacity, "tokens a loop may hold (default 32768)");
  number("--page-size", typed.page_size, "tokens a page holds (default 64)");
  number("--cache-pages", typed.cache_pages, "pages of the cache (default 1048576)");
  add_build_options(*replay, typed, "equal|packed");
  replay->add_flag("--verify", typed.replay.verify,
                   "verify every value of every step against a serial computation");
  add_documents(*replay, typed.replay, "write the numbers as one JSON document",
                "draw the loops of the steps as a picture");
  return replay;
}

CLI::App* add_attend(CLI::App& app, Typed& typed) {
  auto* attend = app.add_subcommand(
      "attend", has_attention() ? "Compute a batch's attention loop by loop, and check and time it"
                                : "Compute a batch's attention (not in this build)");
  attend->add_option("BATCH.json", typed.attend.batch, "the batch; - for standard input")
      ->type_name("");
  const auto number = [&](const char* name, std::string& value, const char* help) {
    add_number(*attend, name, value, help);
  };
  number("--new-tokens", typed.new_tokens, "new tokens of each sequence (default 1)");
  number("--heads", typed.heads, "heads (default 4)");
  number("--nope-dim", typed.nope_dim, "a head's query and key without position (default 128)");
  number("--rope-dim", typed.rope_dim, "their part with position (default 64)");
  number("--value-dim", typed.value_dim, "a head's value (default 128)");
  number("--latent-dim", typed.latent_dim, "a cached row, beside --rope-dim (default 512)");
  attend->add_option("--cache-type", typed.cache_type, "type of the cached elements (default fp32)")
      ->type_name("fp32|bf16|fp16|fp8");
  number("--seed", typed.seed, "of the data (default 1)");
  add_grain(*attend, typed);
  add_execution_space(*attend, typed);
  add_documents(*attend, typed.attend, "write the numbers as one JSON document",
                "draw the time of each stage as a picture");
  return attend;
}

/// \param marked whether a `--` ends the options, and is no argument itself.
/// \param unexpected what is said of what is no option.
void refuse_extras(const CLI::App& app, bool marked, const char* unexpected) {
  auto extras = app.remaining();
  const bool mark = marked && !extras.empty() && extras[0] == "--";
  if (mark) extras.erase(extras.begin());
  if (extras.empty()) return;
  const bool option = !mark && extras[0].size() > 1 && extras[0][0] == '-';
  throw InvalidArgument(extras[0], option ? "unknown option" : unexpected);
}

/// \param refusal what is said of anything else.
Policy judge_policy(const std::string& typed, const char* refusal) {
  if (typed == "equal") return Policy::equal;
  if (typed == "packed") return Policy::packed;
  throw InvalidArgument("--policy", fmt::format("\"{}\" is {}", typed, refusal));
}

std::vector<Policy> judge_policies(const std::string& typed) {
  if (typed == "both") return {Policy::equal, Policy::packed};
  return {judge_policy(typed, "none of equal, packed, both")};
}

std::int64_t judge_number(const char* option, const std::string& typed, std::int64_t most) {
  std::int64_t number = 0;
  const auto* end = typed.data() + typed.size();
  const auto [rest, error] = std::from_chars(typed.data(), end, number);
  if (error != std::errc() || rest != end || number < 1) {
    throw InvalidArgument(option, fmt::format("\"{}\" is not a positive integer", typed));
  }
  if (number > most) throw InvalidArgument(option, fmt::format("{} is above {}", number, most));
  return number;
}

/// \param packed whether that policy was asked for.
std::int64_t judge_grain(const std::string& typed, bool packed) {
  const std::int64_t grain = judge_number("--grain", typed, INT64_MAX);
  if (!packed && grain != 1) {
    throw InvalidArgument("--grain", fmt::format("{} belongs to --policy packed", grain));
  }
  return grain;
}

IndexType judge_index_type(const std::string& type) {
  if (type == "int32") return IndexType::int32;
  if (type == "int64") return IndexType::int64;
  throw InvalidArgument("--index-type", fmt::format("\"{}\" is neither int32 nor int64", type));
}

CacheType judge_cache_type(const std::string& typed) {
  for (const CacheType type : {CacheType::fp32, CacheType::bf16, CacheType::fp16, CacheType::fp8}) {
    if (typed == name(type)) return type;
  }
  throw InvalidArgument("--cache-type",
                        fmt::format("\"{}\" is none of fp32, bf16, fp16, fp8", typed));
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string judge_execution_space(const std::string& typed) {
  if (typed.empty()) return startup::default_execution_space();
  const auto spaces = startup::execution_spaces();
  const auto found = std::find_if(spaces.begin(), spaces.end(), [&](const std::string& space) {
    return lower_case(space) == lower_case(typed);
  });
  if (found != spaces.end()) return *found;
  throw InvalidArgument("--execution-space", fmt::format("\"{}\" is not built in; available: {}",
                                                         typed, fmt::join(spaces, ", ")));
}

/// \param input the file that is read, called `what`.
void judge_output(const char* option, const std::string& input, const char* what,
                  std::optional<std::string>& output) {
  if (!output) return;
  if (output->empty()) throw InvalidArgument(option, "the file name is empty");
  if (is_standard_output(*output)) {
    output = "-";
  } else if (is_same_file(input, *output)) {
    throw InvalidArgument(option, fmt::format("{} is {}", *output, what));
  }
}

void judge_outputs(const std::string& input, const char* what, std::optional<std::string>& json,
                   std::optional<std::string>& svg) {
  judge_output("--json", input, what, json);
  judge_output("--svg", input, what, svg);
  if (json && svg && (*json == *svg || is_same_file(*json, *svg))) {
    throw InvalidArgument("--svg", fmt::format("{} is where --json goes", *svg));
  }
}

template <class Arguments>
void judge_build_options(const Typed& typed, bool packed, Arguments& arguments) {
  arguments.grain = judge_grain(typed.grain, packed);
  arguments.index_type = judge_index_type(typed.index_type);
  arguments.execution_space = judge_execution_space(typed.execution_space);
}

void judge_batch(const CLI::App& command, const std::string& batch) {
  if (command.get_option("BATCH.json")->count() == 0) {
    throw InvalidArgument("BATCH.json", "missing, give a file or - for standard input");
  }
  if (batch.empty()) throw InvalidArgument("BATCH.json", "the file name is empty");
}

PlanArguments judge_plan(const CLI::App& command, Typed& typed) {
  refuse_extras(command, true, "unexpected argument, one batch is planned at a time");
  PlanArguments plan = typed.plan;
  plan.policies = judge_policies(typed.policy);
  judge_build_options(typed, plan.policies.back() == Policy::packed, plan);
  judge_batch(command, plan.batch);
  judge_outputs(plan.batch, "the batch itself", plan.json, plan.svg);
  if (plan.json && plan.policies.size() > 1) {
    throw InvalidArgument("--json", "a document is of one policy, --policy both asks for two");
  }
  return plan;
}

ReplayArguments judge_replay(const CLI::App& command, Typed& typed) {
  refuse_extras(command, true, "unexpected argument, one trace is replayed at a time");
  ReplayArguments replay = typed.replay;
  if (typed.policy == "both") {
    throw InvalidArgument("--policy",
                          "a replay builds one, equal or packed, and counts the loops of both");
  }
  replay.policy = judge_policy(typed.policy, "neither equal nor packed");
  judge_build_options(typed, replay.policy == Policy::packed, replay);
  replay.batch_size = judge_number("--batch-size", typed.batch_size, 1 << 20);
  if (!typed.steps.empty()) replay.steps = judge_number("--steps", typed.steps, INT64_MAX);
  replay.chunk_capacity = judge_number("--chunk-capacity", typed.chunk_capacity, INT32_MAX);
  replay.page_size = judge_number("--page-size", typed.page_size, INT32_MAX);
  replay.cache_pages = judge_number("--cache-pages", typed.cache_pages, INT32_MAX);
  const std::int64_t slots = replay.cache_pages * replay.page_size;
  if (replay.index_type == IndexType::int32 && slots > std::int64_t{INT32_MAX} + 1) {
    throw InvalidArgument(
        "--cache-pages",
        fmt::format("{} pages of {} reach slot {}, int32 slots end at 2147483647; "
                    "use --index-type int64",
                    replay.cache_pages, counted(replay.page_size, "token"), slots - 1));
  }
  if (command.get_option("TRACE")->count() == 0) throw InvalidArgument("TRACE", "missing");
  if (replay.trace.empty()) throw InvalidArgument("TRACE", "the file name is empty");
  judge_outputs(replay.trace, "the trace itself", replay.json, replay.svg);
  return replay;
}

AttendArguments judge_attend(const CLI::App& command, Typed& typed) {
  if (!has_attention()) {
    throw InvalidArgument("attend",
                          "this build has no attention component, which needs Kokkos Kernels");
  }
  refuse_extras(command, true, "unexpected argument, one batch is attended to at a time");
  AttendArguments attend = typed.attend;
  constexpr std::int64_t most_heads = 1024, most_dim = 8192;
  attend.new_tokens = judge_number("--new-tokens", typed.new_tokens, 1 << 20);
  attend.heads = judge_number("--heads", typed.heads, most_heads);
  attend.nope_dim = judge_number("--nope-dim", typed.nope_dim, most_dim);
  attend.rope_dim = judge_number("--rope-dim", typed.rope_dim, most_dim);
  attend.value_dim = judge_number("--value-dim", typed.value_dim, most_dim);
  attend.latent_dim = judge_number("--latent-dim", typed.latent_dim, most_dim);
  attend.cache_type = judge_cache_type(typed.cache_type);
  attend.seed = judge_number("--seed", typed.seed, INT64_MAX);
  attend.grain = judge_grain(typed.grain, true);
  attend.execution_space = judge_execution_space(typed.execution_space);
  judge_batch(command, attend.batch);
  judge_outputs(attend.batch, "the batch itself", attend.json, attend.svg);
  return attend;
}

}  // namespace

std::variant<PlanArguments, ReplayArguments, AttendArguments, Answer> parse_arguments(
    int argc, const char* const* argv) {
  CLI::App app("Chunked-prefill prefix metadata for MLA attention, on Kokkos.", "chunked_prefill");
  Typed typed;
  auto* plan = add_plan(app, typed);
  auto* replay = add_replay(app, typed);
  auto* attend = add_attend(app, typed);
  app.require_subcommand(0, 1);
  for (auto* level : {&app, plan, replay, attend}) {
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
    if (asked.get_name() == "CallForHelp") {
      if (plan->parsed() > 0) answer += plan_footer;
      if (replay->parsed() > 0) answer += replay_footer;
      if (attend->parsed() > 0) answer += attend_footer;
    }
    return Answer{answer};
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();  // "--option: ..."
    throw InvalidArgument(what.substr(0, what.find(':')), "needs one value, given once");
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument("arguments", error.what());
  }

  refuse_extras(app, false, "unknown subcommand, there are plan, replay and attend");
  if (plan->parsed() > 0) return judge_plan(*plan, typed);
  if (replay->parsed() > 0) return judge_replay(*replay, typed);
  if (attend->parsed() > 0) return judge_attend(*attend, typed);
  throw InvalidArgument("subcommand", "missing, there are plan, replay and attend; see --help");
}

}  // namespace chunked_prefill::cli
