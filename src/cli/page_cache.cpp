// SPDX-License-Identifier: MIT
#include "page_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chunked_prefill/error.hpp>
#include <utility>

#include "memory.hpp"
#include "text.hpp"

namespace chunked_prefill::cli {

PageCache::Key PageCache::key(const Request& request, std::int64_t index) const {
  const auto last_block =
      static_cast<std::size_t>(((index + 1) * m_page_size - 1) / Trace::block_size);
  return {.block = request.blocks[std::min(last_block, request.blocks.size() - 1)], .index = index};
}

std::int32_t PageCache::take_page() {
  if (!m_free.empty()) {
    const std::int32_t id = m_free.back();
    m_free.pop_back();
    return id;
  }
  if (m_made < m_pages) return static_cast<std::int32_t>(m_made++);
  if (m_unused.empty()) {
    throw InvalidArgument("--cache-pages",
                          fmt::format("{} of {} do not hold the requests of a step",
                                      counted(m_pages, "page"), counted(m_page_size, "token")));
  }
  const auto oldest = m_cached.find(m_unused.front());
  const std::int32_t id = oldest->second.id;
  m_unused.pop_front();
  m_cached.erase(oldest);
  ++m_evictions;
  return id;
}

void PageCache::hold(Pages::iterator page) {
  if (page->second.running++ == 0) m_unused.erase(page->second.unused_position);
  m_running.push_back(page->first);
}

/// Before a request takes its pages, and once for many small ones. A page is an entry of the cache,
/// with what its map and its list take, and one in the lists of its requests.
void PageCache::ask_memory(std::int64_t pages) {
  constexpr std::int64_t many = 1 << 19;
  constexpr double bytes_of_page = 128;
  m_asked += std::min(pages, m_pages);
  if (m_asked < many) return;
  const std::int64_t asked = std::exchange(m_asked, 0);
  require_memory("--cache-pages",
                 fmt::format("{} of {}", counted(asked, "page"), counted(m_page_size, "token")),
                 bytes_of_page * static_cast<double>(asked));
}

PageCache::Prefix PageCache::start(const Request& request) {
  Prefix prefix;
  const auto pages_of = [&](std::int64_t tokens) {
    return (tokens + m_page_size - 1) / m_page_size;
  };
  if (request.blocks.empty()) {
    prefix.length = request.cached_prefix;
    ask_memory(pages_of(prefix.length));
    for (std::int64_t k = 0; k < pages_of(prefix.length); ++k) {
      prefix.pages.push_back(take_page());
      m_own_pages.push_back(prefix.pages.back());
    }
    return prefix;
  }

  const std::int64_t tokens = static_cast<std::int64_t>(request.blocks.size()) * Trace::block_size;
  const std::int64_t pages = pages_of(tokens);
  ask_memory(pages);
  std::int64_t found = 0;
  for (; found < pages; ++found) {
    const auto page = m_cached.find(key(request, found));
    if (page == m_cached.end()) break;
    prefix.pages.push_back(page->second.id);
    hold(page);
  }
  prefix.length = std::min({found * m_page_size, tokens, request.input_length - 1});
  prefix.pages.resize(static_cast<std::size_t>(pages_of(prefix.length)));
  for (std::int64_t k = found; k < pages; ++k) {
    // Behind the first page that is missing others may have stayed.
    const auto page = m_cached.find(key(request, k));
    if (page != m_cached.end()) {
      hold(page);
    } else {
      const std::int32_t id = take_page();
      m_cached.emplace(key(request, k), Page{.id = id, .running = 1, .unused_position = {}});
      m_running.push_back(key(request, k));
    }
  }
  return prefix;
}

void PageCache::finish() {
  // The last pages of a request are given up before those in front of them.
  for (auto running = m_running.rbegin(); running != m_running.rend(); ++running) {
    auto& page = m_cached.find(*running)->second;
    if (--page.running == 0) page.unused_position = m_unused.insert(m_unused.end(), *running);
  }
  m_running.clear();
  m_free.insert(m_free.end(), m_own_pages.begin(), m_own_pages.end());
  m_own_pages.clear();
}

}  // namespace chunked_prefill::cli
