// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

namespace chunked_prefill::cli {

/// A bar on standard error, where that is a terminal; nothing elsewhere. Gone when this object is.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// \param share done, from 0 to 1.
  /// \param words shown behind the bar.
  void show(double share, const std::string& words);

 private:
  bool m_visible;
  std::chrono::steady_clock::time_point m_shown{};
};

}  // namespace chunked_prefill::cli
