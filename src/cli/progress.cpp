// SPDX-License-Identifier: MIT
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace chunked_prefill::cli {

Progress::Progress() : m_visible(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (m_visible) std::fputs("\r\033[K", stderr);
}

void Progress::show(double share, const std::string& words) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (!m_visible || now - m_shown < 100ms) return;
  m_shown = now;
  constexpr int columns = 30;
  const int filled = static_cast<int>(share * columns);
  fmt::print(stderr, "\r\033[K[{:#<{}}{: <{}}] {:3.0f} %  {}", "", filled, "", columns - filled,
             100 * share, words);
  std::fflush(stderr);
}

}  // namespace chunked_prefill::cli
