// SPDX-License-Identifier: MIT
#include "arguments.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>

namespace test {

std::optional<Arguments> parse_arguments(int argc, const char* const* argv,
                                         const std::vector<std::string>& execution_spaces,
                                         const Arguments& defaults, int& status) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  Arguments arguments = defaults;
  CLI::App app(
      "Draws batches, hands each to every entry point of the library and compares the results with "
      "a serial oracle. A batch that fails is shrunk and written as a BATCH.json.",
      "chunked_prefill_property");
  app.add_option("--seed", arguments.seed, "of the drawn batches (default 1)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{0xFFFFFF}))
      ->type_name("N");
  app.add_option("--count", arguments.count,
                 "batches, or builds of a soak (default 20000, 1000000)")
      ->check(CLI::Range(std::int64_t{1}, most))
      ->type_name("N");
  app.add_option("--first", arguments.first, "number of the first batch (default 0)")
      ->check(CLI::Range(std::int64_t{0}, most))
      ->type_name("N");
  app.add_option("--execution-space", arguments.execution_space,
                 "where the kernels run (default " + defaults.execution_space + ")")
      ->check(CLI::IsMember(execution_spaces));
  app.add_option("--output", arguments.output,
                 "where a batch that fails is written (default " + arguments.output + ")")
      ->type_name("FILE");
  app.add_flag(
      "--soak", arguments.soak,
      "build the same batches over and over in the same buffers: nothing may grow or drift");
  app.add_option("--threads", arguments.threads, "host threads of a soak (default 2)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.footer("Exit status: 0 done, 1 something differs, 2 bad usage.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    status = app.exit(asked);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "chunked_prefill_property: %s\n", error.what());
    status = 2;
    return std::nullopt;
  }
  if (arguments.count == 0) arguments.count = arguments.soak ? 1000000 : 20000;
  return arguments;
}

}  // namespace test
