// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <Kokkos_Macros.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

// The tool as its users meet it: run by a shell in an empty directory, judged by its exit status,
// what it prints and the files it leaves.

namespace test {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Tool : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "chunked_prefill_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    m_directory = name;
    fs::create_directory(work());
  }
  void TearDown() override { fs::remove_all(m_directory); }

  [[nodiscard]] fs::path work() const { return m_directory / "work"; }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(work() / name, std::ios::binary) << text;
  }
  [[nodiscard]] std::string read(const std::string& name) const { return read_file(work() / name); }

  /// Runs a shell command, in which `$TOOL` is the tool.
  [[nodiscard]] Outcome shell(const std::string& command) const {
    const fs::path out = m_directory / "out", err = m_directory / "err";
    std::ofstream(m_directory / "command") << command;
    const std::string line = "cd '" + work().string() + "' && TOOL='" CHUNKED_PREFILL_TOOL "' sh " +
                             "../command >'" + out.string() + "' 2>'" + err.string() + "'";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
  }
  [[nodiscard]] Outcome plan(const std::string& arguments) const {
    return shell("\"$TOOL\" plan " + arguments);
  }
  /// The document of a plan that must succeed.
  [[nodiscard]] Json plan_json(const Json& batch, const std::string& arguments = "") const {
    write("batch.json", batch.dump());
    const Outcome outcome = plan("batch.json --json - " + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }

  /// Those that the tool says it was built with.
  [[nodiscard]] std::vector<std::string> execution_spaces() const {
    const std::string version = shell("\"$TOOL\" --version").out;
    const auto begin = version.find("execution spaces: ") + 18;
    std::istringstream words(version.substr(begin, version.find(" (default", begin) - begin));
    std::vector<std::string> names;
    for (std::string name; words >> name;) {
      if (name.back() == ',') name.pop_back();
      names.push_back(name);
    }
    return names;
  }

  /// A host space on which results can be spoiled; empty where none can.
  [[nodiscard]] std::string spoilable_space() const {
#ifdef KOKKOS_ENABLE_LIBDL
    for (const std::string& space : execution_spaces()) {
      if (space == "Serial" || space == "OpenMP") return space;
    }
#endif
    return "";
  }
  /// Runs the tool with `arguments` while a Kokkos tool adds one to an int32 that is `value`, in
  /// the memory labelled `label`.
  [[nodiscard]] Outcome spoilt(const std::string& label, int value,
                               const std::string& arguments) const {
    return shell("export KOKKOS_TOOLS_LIBS='" CHUNKED_PREFILL_WRONG_VALUE
                 "' WRONG_LABEL=chunked_prefill::" +
                 label + " WRONG_VALUE=" + std::to_string(value) + "\n\"$TOOL\" " + arguments +
                 " --execution-space " + spoilable_space());
  }

  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(work())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  /// One line on standard error, nothing on standard output, no file.
  void expect_refused(const Outcome& outcome, const std::string& message) const {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, "chunked_prefill: " + message + "\n");
    EXPECT_EQ(files(), std::set<std::string>{"batch.json"});
  }

 private:
  fs::path m_directory;
};

/// Columns that each line takes on a terminal.
inline std::vector<std::size_t> line_widths(const std::string& text) {
  std::vector<std::size_t> widths;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    widths.push_back(static_cast<std::size_t>(
        std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80 && c != '\r'; })));
  }
  return widths;
}

/// Whether every element ends where it must, no text holds what XML takes for its own, and all is
/// UTF-8.
inline bool is_well_formed(const std::string& xml) {
  try {
    (void)Json(xml).dump();
  } catch (const Json::type_error&) {
    return false;
  }
  std::vector<std::string> open;
  for (std::size_t at = 0;;) {
    const std::size_t begin = std::min(xml.find('<', at), xml.size());
    const std::string text = xml.substr(at, begin - at);
    if (open.empty() && text.find_first_not_of('\n') != std::string::npos) return false;
    const std::string entities = std::regex_replace(text, std::regex("&(amp|lt|gt);"), "");
    if (entities.find('&') != std::string::npos) return false;
    if (begin == xml.size()) return open.empty();
    const std::size_t end = xml.find('>', begin);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(begin + 1, end - begin - 1);
    if (std::ranges::count(tag, '"') % 2 != 0 || tag.find('<') != std::string::npos) return false;
    if (tag.starts_with('/')) {
      if (open.empty() || tag.substr(1) != open.back()) return false;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
}

/// For light and dark pages, and nothing behind it.
inline void expect_picture(const std::string& svg) {
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_TRUE(is_well_formed(svg)) << svg;
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
}

/// The numbers that `pattern` captures, one after another.
inline std::vector<double> numbers(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<double> found;
  for (std::sregex_iterator match(text.begin(), text.end(), expression), end; match != end;
       ++match) {
    found.push_back(std::stod(match->str(1)));
  }
  return found;
}

}  // namespace test
