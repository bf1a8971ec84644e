// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../draw.hpp"
#include "../execution_spaces.hpp"
#include "address_sanitizer.hpp"
#include "arguments.hpp"
#include "checker.hpp"
#include "shrink.hpp"
#include "soak.hpp"

namespace test {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A line on standard error, where that is a terminal. Gone when this object is.
class Progress {
 public:
  Progress() : m_visible(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (m_visible) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(double share) {
    using namespace std::chrono_literals;
    if (!m_visible || Clock::now() - m_shown < 100ms) return;
    m_shown = Clock::now();
    std::fprintf(stderr, "\r\033[K%3.0f %%, %.0f s", 100 * share, seconds_since(m_begin));
    std::fflush(stderr);
  }

 private:
  bool m_visible;
  Clock::time_point m_begin = Clock::now(), m_shown{};
};

/// Says at which batch the process is, when a signal or a sanitizer ends it.
class LastWords {
 public:
  LastWords() {
    call_at_death(say);
    if (under_address_sanitizer) return;  // which takes signals itself
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(number, end);
  }
  ~LastWords() { s_size = 0; }
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

  void set(std::uint64_t seed, std::uint64_t batch) {
    s_size = std::snprintf(s_words, sizeof(s_words),
                           "chunked_prefill_property: seed %llu, batch %llu: ended the process\n",
                           static_cast<unsigned long long>(seed),
                           static_cast<unsigned long long>(batch));
  }

 private:
  static void say() {
    if (write(STDERR_FILENO, s_words, static_cast<std::size_t>(s_size)) < 0) return;
  }
  static void end(int number) {
    say();
    std::signal(number, SIG_DFL);
    std::raise(number);
  }

  static inline char s_words[128];
  static inline int s_size = 0;
};

/// The batch as the tool takes it; of the page table what is not the tool's own.
std::string batch_json(const Case& of) {
  nlohmann::ordered_json json;
  json["prefix_lens"] = of.batch.prefix_lens;
  json["page_size"] = of.batch.page_size;
  json["chunk_capacity"] = of.batch.chunk_capacity;
  if (of.pages != 0) {
    json["req_to_page"] = of.batch.req_to_page;
    json["req_pool_indices"] = of.batch.req_pool_indices;
  }
  return json.dump() + "\n";
}

/// What the file has no key for.
std::string beside_the_batch(const Case& of, const std::string& file) {
  std::string words = "# chunked_prefill plan " + file + " --check";
  if (of.batch.policy == cp::Policy::packed) {
    words += " --policy packed --grain " + std::to_string(of.batch.grain);
  }
  if (of.wide_slots) words += " --index-type int64";
  const auto add = [&](const char* name, std::int64_t value, std::int64_t usual) {
    if (value != usual) words += std::string("\n# ") + name + " " + std::to_string(value);
  };
  add("shard.world_size", of.batch.shard.world_size, 1);
  add("shard.rank", of.batch.shard.rank, 0);
  add("shard.interleave", of.batch.shard.interleave, 1);
  add("elements between rows of req_to_page", of.spare, 0);
  add("bounds.max_prefix_len beyond the batch's", of.more_longest, 0);
  add("bounds.total_tokens beyond the batch's", of.more_tokens, 0);
  if (of.wide_lengths) words += "\n# int64 prefix_lens";
  if (of.wide_requests) words += "\n# int64 req_pool_indices";
  return words;
}

int report(const Arguments& arguments, std::uint64_t number, const Case& of,
           const std::string& difference) {
  std::ofstream(arguments.output) << batch_json(of);
  std::fprintf(stderr, "chunked_prefill_property: seed %llu, batch %llu: %s\n%s\n",
               static_cast<unsigned long long>(arguments.seed),
               static_cast<unsigned long long>(number), difference.c_str(),
               beside_the_batch(of, arguments.output).c_str());
  return 1;
}

template <class Space>
int run_property(const Arguments& arguments) {
  Progress progress;
  LastWords last_words;
  const auto begin = Clock::now();
  Checker<Space> checker;
  std::int64_t tokens = 0;
  for (std::int64_t k = 0; k < arguments.count; ++k) {
    const std::uint64_t number = arguments.first + static_cast<std::uint64_t>(k);
    last_words.set(arguments.seed, number);
    const Case drawn = draw_case(arguments.seed, number);
    tokens += drawn.tokens();
    std::string difference;
    try {
      difference = checker.check(drawn);
    } catch (const std::exception& error) {  // the execution space is of no more use
      return report(arguments, number, drawn, error.what());
    }
    if (!difference.empty()) {
      const Case shrunk =
          Shrinker(drawn, [&](const Case& of) { return !checker.check(of).empty(); }).shrink();
      const std::string of_shrunk = checker.check(shrunk);
      return report(arguments, number, shrunk,
                    of_shrunk.empty() ? difference + " (not by itself)" : of_shrunk);
    }
    progress.show(static_cast<double>(k) / static_cast<double>(arguments.count));
  }
  std::printf("%s: %lld batches of seed %llu, %lld tokens, as the oracle has them; %.1f s\n",
              Space::name(), static_cast<long long>(arguments.count),
              static_cast<unsigned long long>(arguments.seed), static_cast<long long>(tokens),
              seconds_since(begin));
  return 0;
}

template <class Space>
int run_soak(const Arguments& arguments) {
  SoakReport found;
  const auto begin = Clock::now();
  {
    Progress progress;
    found = soak<Space>(soak_cases(arguments.seed, 64), arguments.count, arguments.threads,
                        [&](double share) { progress.show(share); });
  }
  std::printf(
      "%s: %lld builds by %d host threads; after the warm-up %lld allocations, %lld KiB "
      "more resident; %.1f s\n",
      Space::name(), static_cast<long long>(found.builds), found.threads,
      static_cast<long long>(found.allocations),
      static_cast<long long>(found.resident_bytes / 1024), seconds_since(begin));
  if (found.failure.empty()) return 0;
  std::fprintf(stderr, "chunked_prefill_property: seed %llu, %s\n",
               static_cast<unsigned long long>(arguments.seed), found.failure.c_str());
  return 1;
}

template <class Space>
bool run_if_named(const Arguments& arguments, int& status) {
  if (arguments.execution_space != Space::name()) return false;
  status = arguments.soak ? run_soak<Space>(arguments) : run_property<Space>(arguments);
  return true;
}

template <class... Spaces>
int run(int argc, const char* const* argv, ::testing::Types<Spaces...>) {
  int status = 0;
  Arguments defaults;
  defaults.execution_space = Kokkos::DefaultExecutionSpace::name();
  const auto arguments = parse_arguments(argc, argv, {Spaces::name()...}, defaults, status);
  if (!arguments) return status;
  // A soak counts allocations; fences around each would change what it sees.
  Kokkos::Tools::Experimental::set_request_tool_settings_callback(
      [](std::uint32_t, Kokkos_Tools_ToolSettings* settings) {
        settings->requires_global_fencing = false;
      });
  const Kokkos::ScopeGuard guard;
  static_cast<void>((run_if_named<Spaces>(*arguments, status) || ...));
  return status;
}

}  // namespace
}  // namespace test

int main(int argc, char** argv) { return test::run(argc, argv, test::ExecutionSpaces()); }
