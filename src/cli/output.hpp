// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace chunked_prefill::cli {

/// A document on its way to a file or, for `-`, to standard output.
///
/// A file appears under its name, whole, when it is committed: it is written beside it and then
/// renamed. An output that is not committed leaves nothing behind and whatever was there unchanged.
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

 private:
  [[noreturn]] void refuse() const;

  std::string m_name;              ///< for messages
  std::filesystem::path m_target;  ///< the file in the end
  std::filesystem::path m_part;    ///< the file until then; empty where written directly
  std::FILE* m_file = nullptr;
};

}  // namespace chunked_prefill::cli
