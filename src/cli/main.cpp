// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chunked_prefill/error.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "arguments.hpp"
#include "attend.hpp"
#include "batch.hpp"
#include "build.hpp"
#include "check.hpp"
#include "output.hpp"
#include "replay.hpp"
#include "report_attend.hpp"
#include "report_attend_svg.hpp"
#include "report_json.hpp"
#include "report_replay.hpp"
#include "report_replay_svg.hpp"
#include "report_svg.hpp"
#include "report_text.hpp"
#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

void print(std::string_view text) {
  Output output("-");
  output.write(text);
  output.finish();
}

/// The documents asked for.
struct Documents {
  std::optional<Output> json, svg;

  template <class Arguments>
  explicit Documents(const Arguments& arguments) {
    if (arguments.json) json.emplace(*arguments.json);
    if (arguments.svg) svg.emplace(*arguments.svg);
  }
  void finish() {
    if (json) json->finish();
    if (svg) svg->finish();
  }
  /// Last, so that a failure anywhere leaves no file.
  void commit() {
    if (json) json->commit();
    if (svg) svg->commit();
    if (json) json->keep();
    if (svg) svg->keep();
  }
};

/// Checks every build. \returns a line for each.
std::string checked(const Batch& batch, const std::vector<Build>& builds) {
  std::string lines;
  for (const Build& build : builds) {
    const std::string policy = name(build.plan.policy());
    try {
      check(batch, build);
    } catch (const CheckFailed& error) {
      throw CheckFailed(fmt::format("policy {}: {}", policy, error.what()));
    }
    lines += fmt::format("{}verified: {} and {} equal to the serial computation\n",
                         builds.size() > 1 ? policy + ' ' : "",
                         counted(build.plan.chunked_loop_num(), "loop"),
                         counted(build.plan.total_tokens(), "slot"));
  }
  return lines;
}

void plan(const PlanArguments& arguments) {
  const Batch batch = read_batch(arguments.batch);
  const std::vector<Build> builds = build(batch, arguments);
  const std::string verified = arguments.check ? checked(batch, builds) : "";

  Documents documents(arguments);
  if (documents.json) report_json(batch, builds.front(), *documents.json);
  if (documents.svg) report_svg(batch, builds, *documents.svg);
  if (!documents.json && !documents.svg) print(report_text(batch, builds, terminal_width()));
  documents.finish();
  if (arguments.json == "-" || arguments.svg == "-") {
    std::fputs(verified.c_str(), stderr);
  } else {
    print(verified);
  }
  documents.commit();
}

void replay(const ReplayArguments& arguments) {
  Documents documents(arguments);
  const Replay result = replay_trace(arguments);
  if (documents.json) documents.json->write(report_replay_json(arguments, result));
  if (documents.svg) report_replay_svg(arguments, result, *documents.svg);
  if (!documents.json && !documents.svg) print(report_replay_text(arguments, result));
  documents.finish();
  documents.commit();
}

void attend(const AttendArguments& arguments) {
  const Batch batch = read_batch(arguments.batch);
  Documents documents(arguments);
  const Attended result = attend(batch, arguments);
  if (documents.json) documents.json->write(report_attend_json(batch, arguments, result));
  if (documents.svg) report_attend_svg(batch, arguments, result, *documents.svg);
  if (!documents.json && !documents.svg) print(report_attend_text(batch, arguments, result));
  documents.finish();
  documents.commit();
}

/// A stream that the caller closed would be the next file opened here. It is held by one that, like
/// it, can be neither read nor written.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) {
      open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

int fail(int status, std::string_view message) {
  std::fprintf(stderr, "chunked_prefill: %s\n", one_line(message).c_str());
  return status;
}

int run(int argc, const char* const* argv) {
  hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error like any other,
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a file beyond the limit on its size
  try {
    const auto asked = parse_arguments(argc, argv);
    if (const auto* answer = std::get_if<Answer>(&asked)) {
      print(answer->text);
    } else if (const auto* trace = std::get_if<ReplayArguments>(&asked)) {
      replay(*trace);
    } else if (const auto* step = std::get_if<AttendArguments>(&asked)) {
      attend(*step);
    } else {
      plan(std::get<PlanArguments>(asked));
    }
    return 0;
  } catch (const CheckFailed& error) {
    return fail(1, error.what());
  } catch (const Error& error) {
    return fail(2, error.what());
  } catch (const std::bad_alloc&) {
    return fail(2, "memory: there is not enough for this batch");
  } catch (const std::exception& error) {
    return fail(2, std::string("execution space: ") + error.what());
  }
}

}  // namespace
}  // namespace chunked_prefill::cli

int main(int argc, char** argv) { return chunked_prefill::cli::run(argc, argv); }
