// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "removed_on_signal.hpp"

namespace chunked_prefill::cli {

/// Whether a path leads to what standard output is.
[[nodiscard]] bool is_standard_output(const std::string& path);

/// Whether two paths lead to one ordinary file, be it there already or still to be made. `-` is
/// standard input or output and no path.
[[nodiscard]] bool is_same_file(const std::string& path, const std::string& other);

/// A document on its way to a file or, for `-`, to standard output.
///
/// A file appears under its name, whole, when it is committed: it is written beside it and then
/// renamed. A new file that is not kept is removed again, and what is not committed leaves nothing
/// behind and whatever was there unchanged, also when a signal ends the process. A link stays one.
/// What is no ordinary file (a device, a pipe) is written directly.
class Output {
 public:
  /// \throws InvalidArgument naming the path, as every member that writes.
  explicit Output(const std::string& path);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(std::string_view text);
  /// All that was written has reached the system.
  void finish();
  /// Gives a finished file its name.
  void commit();
  /// A committed file stays.
  void keep() { m_removed.clear(); }

 private:
  [[noreturn]] void refuse() const;

  std::string m_name;               ///< for messages
  std::filesystem::path m_target;   ///< the file in the end
  std::filesystem::path m_part;     ///< the file until then; empty where written directly
  std::filesystem::path m_removed;  ///< what this output leaves unless it is kept
  bool m_replaces = false;          ///< there was a file before
  std::optional<RemovedOnSignal> m_removed_on_signal;
  std::FILE* m_file = nullptr;
};

}  // namespace chunked_prefill::cli
