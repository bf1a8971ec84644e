// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "trace.hpp"

namespace chunked_prefill::cli {

/// A serving engine's paged cache, as far as page tables are concerned: requests with a prefix in
/// common are on the same pages, pages that no running request is on stay until their room is
/// needed, the longest unused first.
class PageCache {
 public:
  /// \param pages how many there are.
  PageCache(std::int64_t page_size, std::int64_t pages) : m_page_size(page_size), m_pages(pages) {}

  /// What a request finds when it starts.
  struct Prefix {
    std::int64_t length = 0;          ///< cached tokens, fewer than the request has
    std::vector<std::int32_t> pages;  ///< whose pages these are, ceil(length / page_size)
  };
  /// Starts a request: its prefix is what earlier ones left, and its other pages are taken from the
  /// free ones. A trace without ids tells no sharing: the prefix has pages of its own.
  /// \throws InvalidArgument naming `--cache-pages` when running requests need all pages, or more
  ///   memory than there is.
  [[nodiscard]] Prefix start(const Request& request);
  /// All running requests end.
  void finish();

  [[nodiscard]] std::int64_t pages_used() const { return m_made; }
  [[nodiscard]] std::int64_t evictions() const { return m_evictions; }

 private:
  /// A page holds the tokens [index * page_size, (index + 1) * page_size) of every request whose
  /// block with the last of them has the id `block`.
  struct Key {
    std::int64_t block;
    std::int64_t index;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return static_cast<std::size_t>(key.block) * 0x9E3779B97F4A7C15U +
             static_cast<std::size_t>(key.index);
    }
  };
  struct Page {
    std::int32_t id = 0;
    std::int32_t running = 0;                  ///< requests on it
    std::list<Key>::iterator unused_position;  ///< in `m_unused`, where no request is on it
  };
  using Pages = std::unordered_map<Key, Page, KeyHash>;

  [[nodiscard]] Key key(const Request& request, std::int64_t index) const;
  void ask_memory(std::int64_t pages);
  std::int32_t take_page();
  void hold(Pages::iterator page);

  std::int64_t m_page_size;
  std::int64_t m_pages;
  std::int64_t m_made = 0;  ///< pages that were ever used, [0, m_made)
  std::int64_t m_evictions = 0;
  std::int64_t m_asked = 0;  ///< pages since there was last asked for memory for some
  Pages m_cached;
  std::list<Key> m_unused;                ///< cached pages of no running request, oldest first
  std::vector<std::int32_t> m_free;       ///< pages without content
  std::vector<Key> m_running;             ///< a key for each page of each running request
  std::vector<std::int32_t> m_own_pages;  ///< of running requests without ids
};

}  // namespace chunked_prefill::cli
