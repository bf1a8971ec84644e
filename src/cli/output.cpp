// SPDX-License-Identifier: MIT
#include "output.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chunked_prefill/error.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

namespace chunked_prefill::cli {

namespace fs = std::filesystem;

namespace {

using Status = struct stat;

bool is_one(const Status& a, const Status& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// The path behind links, whose last may lead to a file that is still to be made.
fs::path followed(fs::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// A name in the directory of `target` that nothing has.
fs::path name_beside(const fs::path& target) {
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  return directory_of(target) / fmt::format(".chunked_prefill-{:016x}", number);
}

}  // namespace

bool is_standard_output(const std::string& path) {
  Status at_path{}, at_output{};
  return path == "-" || (stat(path.c_str(), &at_path) == 0 &&
                         fstat(STDOUT_FILENO, &at_output) == 0 && is_one(at_path, at_output));
}

bool is_same_file(const std::string& path, const std::string& other) {
  if (path == "-" || other == "-") return false;
  Status a{}, b{};
  const bool a_exists = stat(path.c_str(), &a) == 0, b_exists = stat(other.c_str(), &b) == 0;
  if (a_exists || b_exists) return a_exists && b_exists && S_ISREG(a.st_mode) && is_one(a, b);
  const fs::path new_a = followed(path), new_b = followed(other);
  std::error_code error;
  return new_a.filename() == new_b.filename() &&
         fs::equivalent(directory_of(new_a), directory_of(new_b), error);
}

Output::Output(const std::string& path)
    : m_name(path == "-" ? "standard output" : path), m_target(path) {
  if (path == "-") {
    m_file = stdout;
    return;
  }
  Status before{};
  m_replaces = stat(path.c_str(), &before) == 0;
  if (!m_replaces && errno != ENOENT) refuse();
  if (m_replaces && !S_ISREG(before.st_mode)) {
    m_file = std::fopen(path.c_str(), "wb");
    if (m_file == nullptr) refuse();
    return;
  }
  if (m_replaces && access(path.c_str(), W_OK) != 0) refuse();
  m_target = followed(m_target);
  m_part = name_beside(m_target);
  m_removed_on_signal.emplace(m_part.string());
  m_file = std::fopen(m_part.c_str(), "wbx");
  if (m_file == nullptr) refuse();
  m_removed = m_part;
  if (m_replaces && fchmod(fileno(m_file), before.st_mode & 07777) != 0) refuse();
}

Output::~Output() {
  if (m_file != nullptr && m_file != stdout) std::fclose(m_file);
  if (!m_removed.empty()) std::remove(m_removed.c_str());
}

void Output::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), m_file) != text.size()) refuse();
}

void Output::finish() {
  if (std::fflush(m_file) != 0) refuse();
  if (m_file != stdout && std::fclose(std::exchange(m_file, nullptr)) != 0) refuse();
}

void Output::commit() {
  if (m_part.empty()) return;
  if (std::rename(m_part.c_str(), m_target.c_str()) != 0) refuse();
  m_removed_on_signal.reset();
  m_removed = m_replaces ? fs::path() : m_target;
}

void Output::refuse() const {
  throw InvalidArgument(m_name, fmt::format("cannot be written: {}", std::strerror(errno)));
}

}  // namespace chunked_prefill::cli
