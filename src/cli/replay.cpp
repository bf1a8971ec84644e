// SPDX-License-Identifier: MIT
#include "replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <chunked_prefill/error.hpp>
#include <chunked_prefill/plan.hpp>
#include <csignal>

#include "build.hpp"
#include "check.hpp"
#include "memory.hpp"
#include "page_cache.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "trace.hpp"

namespace chunked_prefill::cli {
namespace {

volatile std::sig_atomic_t interrupts = 0;

/// For as long as it lives, an interrupt is only noted.
class InterruptNoted {
 public:
  InterruptNoted() {
    interrupts = 0;
    struct sigaction note = {};
    note.sa_handler = [](int) { interrupts = 1; };
    sigaction(SIGINT, &note, &m_before);
  }
  ~InterruptNoted() { sigaction(SIGINT, &m_before, nullptr); }
  InterruptNoted(const InterruptNoted&) = delete;
  InterruptNoted& operator=(const InterruptNoted&) = delete;

 private:
  struct sigaction m_before = {};
};

/// A step's input: the prefixes that its requests find, on rows in another order than theirs.
void fill_batch(const std::vector<PageCache::Prefix>& prefixes, Batch& batch) {
  const std::size_t size = prefixes.size();
  batch.prefix_lens.clear();
  batch.req_pool_indices.clear();
  batch.max_requests = size;
  batch.max_pages = 1;
  for (std::size_t i = 0; i < size; ++i) {
    batch.prefix_lens.push_back(static_cast<std::int32_t>(prefixes[i].length));
    batch.req_pool_indices.push_back(static_cast<std::int64_t>(size - 1 - i));
    batch.max_pages = std::max(batch.max_pages, prefixes[i].pages.size());
  }
  require_memory("--batch-size",
                 fmt::format("{} page tables of {}", size,
                             counted(static_cast<std::int64_t>(batch.max_pages), "page")),
                 8. * static_cast<double>(size) * static_cast<double>(batch.max_pages));
  batch.req_to_page.assign(size * batch.max_pages, -1);
  for (std::size_t i = 0; i < size; ++i) {
    std::ranges::copy(prefixes[i].pages,
                      batch.req_to_page.begin() +
                          batch.req_pool_indices[i] * static_cast<std::int64_t>(batch.max_pages));
  }
}

class Walk {
 public:
  explicit Walk(const ReplayArguments& arguments)
      : m_arguments(arguments),
        m_options{.chunk_capacity = arguments.chunk_capacity,
                  .policy = arguments.policy,
                  .grain = arguments.grain},
        m_trace(arguments.trace),
        m_cache(arguments.page_size, arguments.cache_pages),
        m_builder(arguments.index_type, arguments.execution_space) {
    m_batch.page_size = arguments.page_size;
    m_batch.chunk_capacity = arguments.chunk_capacity;
  }

  Replay run() {
    const InterruptNoted noted;
    Progress progress;
    while (m_arguments.steps == 0 || m_result.steps < m_arguments.steps) {
      if (interrupts != 0) {
        m_result.interrupted = true;
        break;
      }
      if (!start_requests()) {
        m_result.interrupted = !m_trace.at_end();
        break;
      }
      step();
      m_cache.finish();
      progress.show(share_done(), fmt::format("{}, {}", counted(m_result.steps, "step"),
                                              counted(m_result.tokens, "token")));
    }
    m_result.pages_used = m_cache.pages_used();
    m_result.evictions = m_cache.evictions();
    return m_result;
  }

 private:
  /// The next requests, as many as a batch has; false when there are none.
  bool start_requests() {
    m_prefixes.clear();
    Request request;
    while (static_cast<std::int64_t>(m_prefixes.size()) < m_arguments.batch_size &&
           m_trace.next(request)) {
      start(request);
      m_result.input_tokens += request.input_length;
    }
    m_result.requests += static_cast<std::int64_t>(m_prefixes.size());
    return !m_prefixes.empty();
  }

  void start(const Request& request) {
    try {
      m_prefixes.push_back(m_cache.start(request));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(m_trace.place(), error.what());
    }
  }

  void step() {
    fill_batch(m_prefixes, m_batch);
    check_memory(m_batch, {&m_options, 1}, m_arguments.index_type);
    const std::chrono::duration<double> took = m_builder.build(m_batch, m_options);
    m_result.build.add(std::chrono::round<std::chrono::nanoseconds>(took).count());
    m_result.build_seconds += took.count();
    ++m_result.steps;
    m_result.tokens += m_builder.plan().total_tokens();
    m_result.longest_prefix =
        std::max<std::int64_t>(m_result.longest_prefix, m_builder.plan().max_prefix_len());
    count_loops();
    if (m_arguments.verify) verify();
  }

  /// The build has a plan of one policy; of the other the loops are counted.
  void count_loops() {
    const std::int64_t built = m_builder.plan().chunked_loop_num();
    if (m_options.policy == Policy::equal) {
      m_result.equal.add(built);
      m_result.packed.add(loops_needed(
          m_batch, {.chunk_capacity = m_options.chunk_capacity, .policy = Policy::packed}));
      return;
    }
    m_result.packed.add(built);
    if (std::ssize(m_batch.prefix_lens) > m_options.chunk_capacity) {
      m_result.equal.refused = fmt::format("{} cannot be split equally among {}",
                                           counted(m_options.chunk_capacity, "token"),
                                           counted(std::ssize(m_batch.prefix_lens), "sequence"));
    }
    m_result.equal.add(loops_needed(m_batch, {.chunk_capacity = m_options.chunk_capacity}));
  }

  void verify() {
    try {
      check(m_batch, m_builder.read_back());
    } catch (const CheckFailed& error) {
      throw CheckFailed(fmt::format("step {}: {}", m_result.steps - 1, error.what()));
    }
    ++m_result.verified_steps;
  }

  [[nodiscard]] double share_done() const {
    const double read = m_trace.share_read();
    if (m_arguments.steps == 0) return read;
    return std::max(read,
                    static_cast<double>(m_result.steps) / static_cast<double>(m_arguments.steps));
  }

  const ReplayArguments& m_arguments;
  PlanOptions m_options;
  Trace m_trace;
  PageCache m_cache;
  Builder m_builder;
  Batch m_batch;
  std::vector<PageCache::Prefix> m_prefixes;
  Replay m_result;
};

}  // namespace

Replay replay_trace(const ReplayArguments& arguments) { return Walk(arguments).run(); }

}  // namespace chunked_prefill::cli
