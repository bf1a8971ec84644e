// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tool.hpp"

namespace {

namespace fs = std::filesystem;
using test::expect_picture;
using test::Json;
using test::line_widths;
using test::numbers;
using test::Outcome;
using test::read_file;
using test::Tool;

const Json four_sequences = {
    {"prefix_lens", {256, 512, 768, 1024}}, {"page_size", 64}, {"chunk_capacity", 1024}};

// What comes out

TEST_F(Tool, GoldenCasesAreEqualOnEveryExecutionSpace) {
  std::ifstream file(CHUNKED_PREFILL_TEST_DATA "/golden.json");
  const Json cases = Json::parse(file);
  ASSERT_EQ(cases.size(), 47u);
  const auto spaces = execution_spaces();
  ASSERT_FALSE(spaces.empty());
  for (const std::string& space : spaces) {
    for (std::size_t k = 0; k < cases.size(); ++k) {
      SCOPED_TRACE(space + ", case " + std::to_string(k));
      Json batch;
      for (const char* key :
           {"prefix_lens", "page_size", "chunk_capacity", "req_to_page", "req_pool_indices"}) {
        batch[key] = cases[k].at(key);
      }
      const std::string type = k % 2 == 0 ? "int32" : "int64";
      const Json got =
          plan_json(batch, "--check --index-type " + type + " --execution-space " + space);
      ASSERT_TRUE(got.is_object());
      for (const char* key : {"starts", "ends", "len_in_chunk", "cum_seq_lens",
                              "max_chunk_len_per_loop", "chunked_loop_num", "chunk_kv_indices"}) {
        EXPECT_EQ(got.value(key, Json()), cases[k].at(key)) << key;
      }
      EXPECT_EQ(got.value("execution_space", ""), space);
      EXPECT_EQ(got.value("index_type", ""), type);
    }
  }
}

TEST_F(Tool, ExecutionSpaceInAnyCase) {
  for (const std::string& space : execution_spaces()) {
    std::string name = space;
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const Json got = plan_json(four_sequences, "--execution-space " + name);
    EXPECT_EQ(got.value("execution_space", ""), space);
  }
}

TEST_F(Tool, JsonHasEveryNumberOfTheLoops) {
  const Json got =
      plan_json({{"prefix_lens", {0, 300, 0, 64}}, {"page_size", 64}, {"chunk_capacity", 1024}});
  EXPECT_EQ(got.value("policy", ""), "equal");
  EXPECT_EQ(got.value("batch_size", 0), 4);
  EXPECT_EQ(got.value("page_size", 0), 64);
  EXPECT_EQ(got.value("chunk_capacity", 0), 1024);
  EXPECT_EQ(got.value("chunk_len", 0), 256);
  EXPECT_EQ(got.value("chunked_loop_num", 0), 2);
  EXPECT_EQ(got.value("prefix_lens", Json()), Json({0, 300, 0, 64}));
  EXPECT_EQ(got.value("starts", Json()), Json({{0, 0, 0, 0}, {256, 256, 256, 256}}));
  EXPECT_EQ(got.value("ends", Json()), Json({{0, 256, 0, 64}, {0, 300, 0, 64}}));
  EXPECT_EQ(got.value("len_in_chunk", Json()), Json({{0, 256, 0, 64}, {0, 44, 0, 0}}));
  EXPECT_EQ(got.value("cum_seq_lens", Json()), Json({{0, 0, 256, 256, 320}, {0, 0, 44, 44, 44}}));
  EXPECT_EQ(got.value("tokens_per_loop", Json()), Json({320, 44}));
  EXPECT_EQ(got.value("chunk_kv_offsets", Json()), Json({0, 320, 364}));
  EXPECT_EQ(got.value("max_chunk_len_per_loop", Json()), Json({256, 44}));
  EXPECT_EQ(got.value("seq_begin_per_loop", Json()), Json({1, 1}));
  EXPECT_EQ(got.value("seq_end_per_loop", Json()), Json({4, 2}));
  EXPECT_EQ(got.value("non_empty_seqs_per_loop", Json()), Json({2, 1}));
  EXPECT_EQ(got.value("has_empty_seq_per_loop", Json()), Json({true, true}));
}

TEST_F(Tool, PacksWithAGrain) {
  const Json batch = {{"prefix_lens", {0, 300, 0, 64}}, {"page_size", 64}, {"chunk_capacity", 128}};
  for (const std::string& space : execution_spaces()) {
    const Json got =
        plan_json(batch, "--check --policy packed --grain 50 --execution-space " + space);
    EXPECT_EQ(got.value("policy", ""), "packed");
    EXPECT_EQ(got.value("grain", 0), 50);
    EXPECT_EQ(got.value("chunk_len", 0), 100);
    EXPECT_EQ(got.value("starts", Json()),
              Json({{0, 0, 0, 0}, {0, 100, 0, 0}, {0, 200, 0, 0}, {0, 300, 0, 0}}));
    EXPECT_EQ(got.value("ends", Json()),
              Json({{0, 100, 0, 0}, {0, 200, 0, 0}, {0, 300, 0, 0}, {0, 300, 0, 64}}));
    EXPECT_EQ(got.value("tokens_per_loop", Json()), Json({100, 100, 100, 64}));
    EXPECT_EQ(plan_json(batch, "--check --policy packed").value("chunked_loop_num", 0), 3);
  }
  EXPECT_NE(plan("batch.json --policy packed --grain 50").out.find("policy packed, grain 50"),
            std::string::npos);
}

TEST_F(Tool, IdentityTableNumbersPagesConsecutively) {
  const Json got =
      plan_json({{"prefix_lens", {3, 0, 5}}, {"page_size", 2}, {"chunk_capacity", 100}});
  // Pages 0 and 1, none, then 2, 3 and 4.
  EXPECT_EQ(got.value("chunk_kv_indices", Json()), Json({{0, 1, 2, 4, 5, 6, 7, 8}}));
  EXPECT_NE(plan("batch.json").out.find("identity table"), std::string::npos);

  write(
      "batch.json",
      R"({"prefix_lens": [3], "page_size": 2, "req_to_page": [[7, 1]], "req_pool_indices": [0]})");
  EXPECT_EQ(plan("batch.json").out.find("identity table"), std::string::npos);
}

TEST_F(Tool, CapacityComesFromSettings) {
  const auto capacity = [&](const Json& settings) {
    Json batch = {{"prefix_lens", {1}}, {"page_size", 64}};
    batch.update(settings);
    return plan_json(batch).value("chunk_capacity", 0);
  };
  EXPECT_EQ(capacity(Json::object()), 32768);
  EXPECT_EQ(capacity({{"chunked_prefill_size", 100}}), 400);
  EXPECT_EQ(capacity({{"mla_chunk_multiplier", 3}}), 24576);
  EXPECT_EQ(capacity({{"chunked_prefill_size", 100}, {"mla_chunk_multiplier", 3}}), 300);
}

TEST_F(Tool, PageIdsPastAPrefixAreNeverLookedAt) {
  const Json got = plan_json({{"prefix_lens", {65}},
                              {"page_size", 64},
                              {"req_to_page", {{-5, -6, -7}, {4, 2, -2147483648}}},
                              {"req_pool_indices", {1}}});
  EXPECT_EQ(got["chunk_kv_indices"][0][64], 128);
}

TEST_F(Tool, SlotsReachTheEndOfInt32AndBeyond) {
  const auto last_slot = [&](std::int64_t page, const std::string& type) -> Json {
    const Json got = plan_json({{"prefix_lens", {64}},
                                {"page_size", 64},
                                {"req_to_page", {{page}}},
                                {"req_pool_indices", {0}}},
                               "--check --index-type " + type);
    return got["chunk_kv_indices"][0][63];
  };
  EXPECT_EQ(last_slot(33554431, "int32"), 2147483647);
  EXPECT_EQ(last_slot(33554432, "int64"), 2147483711);
  EXPECT_EQ(last_slot(2147483647, "int64"), 137438953471);
}

// 10 tokens, interleave 4: rank 0 has 0 to 3, 8 and 9, rank 1 has 4 to 7. Loops of 8 tokens.
TEST_F(Tool, OneRankOfAContextParallelGroup) {
  const Json batch = {{"prefix_lens", {10}},
                      {"page_size", 4},
                      {"chunk_capacity", 8},
                      {"req_to_page", {{7, 5}}},
                      {"req_pool_indices", {0}}};
  const auto part_of = [&](int rank, const std::string& arguments) {
    Json part = batch;
    part["shard"] = {{"world_size", 2}, {"rank", rank}, {"interleave", 4}};
    return plan_json(part, "--check " + arguments);
  };
  for (const std::string& space : execution_spaces()) {
    for (const std::string policy : {"equal", "packed", "packed --grain 8"}) {
      const std::string arguments = "--policy " + policy + " --execution-space " + space;
      SCOPED_TRACE(arguments);
      const Json first = part_of(0, arguments), second = part_of(1, arguments);
      EXPECT_EQ(first.value("shard", Json()),
                Json({{"world_size", 2}, {"rank", 0}, {"interleave", 4}}));
      EXPECT_EQ(first.value("starts", Json()), Json({{0}, {4}}));
      EXPECT_EQ(first.value("ends", Json()), Json({{4}, {6}}));
      EXPECT_EQ(first.value("chunk_kv_indices", Json()), Json({{28, 29, 30, 31}, {20, 21}}));
      EXPECT_EQ(first.value("chunk_len", 0), 8);
      EXPECT_EQ(first.value("prefix_lens", Json()), Json::array({10}));
      EXPECT_EQ(second.value("tokens_per_loop", Json()), Json({4, 0}));
      EXPECT_EQ(second.value("ends", Json()), Json({{4}, {4}}));
      EXPECT_EQ(second.value("chunk_kv_indices", Json()), Json({{28, 29, 30, 31}, Json::array()}));
    }
  }
  const std::string text = plan("batch.json --policy both").out;
  for (const char* line : {
           "batch.json: 1 sequence, 4 cached tokens, page_size 4\n"
           "rank 1 of 2, interleave 4: tokens and positions are those that it holds\n",
           "   1       0              0     [0, 0)          0        0.0 %\n",
           "       0       4  │0━",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  }
  EXPECT_EQ(plan("batch.json --policy both --svg out.svg").status, 0);
  EXPECT_NE(read("out.svg").find(", rank 1 of 2, interleave 4<"), std::string::npos);
  EXPECT_EQ(read("out.svg").find("nan"), std::string::npos);
}

// Pages are numbered as far as the rank has tokens; a rank can have none at all.
TEST_F(Tool, RanksOfManyShapesAreVerified) {
  for (const std::string& space : execution_spaces()) {
    for (const int interleave : {1, 3, 64, 5000}) {
      for (const int rank : {0, 2, 6}) {
        const Json got =
            plan_json({{"prefix_lens", {0, 1000, 1, 63, 64, 65, 4999, 448}},
                       {"page_size", 16},
                       {"chunk_capacity", 1000},
                       {"shard", {{"world_size", 7}, {"rank", rank}, {"interleave", interleave}}}},
                      "--check --execution-space " + space);
        EXPECT_EQ(got["chunked_loop_num"], 40);
        EXPECT_EQ(plan("batch.json --check --policy both --grain 7").status, 0);
      }
    }
  }
  const Json one = {{"world_size", 1}, {"rank", 0}, {"interleave", 5}};
  Json batch = four_sequences;
  batch["shard"] = one;
  Json got = plan_json(batch), expected = plan_json(four_sequences);
  EXPECT_EQ(got["shard"], one);
  got.erase("shard");
  expected.erase("shard");
  EXPECT_EQ(got, expected);
}

TEST_F(Tool, NothingCachedIsNoLoops) {
  for (const Json& lens : {Json::array(), Json({0, 0})}) {
    const Json got = plan_json({{"prefix_lens", lens}, {"page_size", 64}}, "--check");
    EXPECT_EQ(got.value("chunked_loop_num", -1), 0);
    EXPECT_EQ(got.value("starts", Json()), Json::array());
    EXPECT_EQ(got.value("chunk_kv_offsets", Json()), Json::array({0}));
    EXPECT_EQ(got.value("chunk_kv_indices", Json()), Json::array());
    EXPECT_NE(plan("batch.json").out.find("no sequence has a cached prefix"), std::string::npos);
    EXPECT_EQ(plan("batch.json --svg picture.svg").status, 0);
    EXPECT_NE(read("picture.svg").find("No loops"), std::string::npos);
  }
}

TEST_F(Tool, EightyThousandSequences) {
  const Json got = plan_json({{"prefix_lens", std::vector<int>(80000, 16)},
                              {"page_size", 64},
                              {"chunk_capacity", 1280000}},
                             "--check");
  EXPECT_EQ(got.value("chunked_loop_num", 0), 1);
  EXPECT_EQ(got["cum_seq_lens"][0][80000], 1280000);
  EXPECT_EQ(got["chunk_kv_indices"][0].size(), 1280000u);
  EXPECT_EQ(got["chunk_kv_indices"][0][1279999], 79999 * 64 + 15);
}

// Where it goes

TEST_F(Tool, StandardInputAndFilesGiveTheSame) {
  const Json expected = plan_json(four_sequences);
  const std::string document = plan("batch.json --json -").out;
  EXPECT_EQ(plan("- --json - <batch.json").out, document);

  const Outcome outcome = plan("batch.json --json out.json --svg out.svg");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out + outcome.err, "");
  EXPECT_EQ(read("out.json"), document);
  EXPECT_EQ(plan("batch.json --svg -").out, read("out.svg"));
  EXPECT_EQ(files(), (std::set<std::string>{"batch.json", "out.json", "out.svg"}));
}

TEST_F(Tool, AnExistingFileIsReplacedOnlyByAWholeOne) {
  write("batch.json", four_sequences.dump());
  write("out.json", "old");
  EXPECT_EQ(plan("batch.json --json out.json --svg /dev/full").status, 2);
  EXPECT_EQ(read("out.json"), "old");
  EXPECT_EQ(plan("missing.json --json out.json").status, 2);
  EXPECT_EQ(read("out.json"), "old");
  ASSERT_EQ(shell("ln -s out.json link.json && \"$TOOL\" plan batch.json --json link.json").status,
            0);
  EXPECT_TRUE(fs::is_symlink(work() / "link.json"));
  EXPECT_EQ(read("out.json"), plan("batch.json --json -").out);
  EXPECT_EQ(files(), (std::set<std::string>{"batch.json", "link.json", "out.json"}));
}

TEST_F(Tool, CheckSaysThatItVerified) {
  write("batch.json", four_sequences.dump());
  const std::string verified =
      "verified: 4 loops and 2,560 slots equal to the serial computation\n";
  EXPECT_TRUE(plan("batch.json --check").out.ends_with("\n" + verified));
  EXPECT_EQ(plan("batch.json --check --json out.json").out, verified);

  const Outcome outcome = plan("batch.json --check --json -");
  EXPECT_EQ(outcome.err, verified);
  EXPECT_TRUE(Json::accept(outcome.out));

  EXPECT_EQ(plan("batch.json --check --policy both --grain 1000 --svg out.svg").out,
            "equal verified: 4 loops and 2,560 slots equal to the serial computation\n"
            "packed verified: 5 loops and 2,560 slots equal to the serial computation\n");
}

TEST_F(Tool, HelpAndVersionEverywhere) {
  for (const char* arguments :
       {"--help", "-h", "plan --help", "plan batch.json -h", "attend --help"}) {
    const Outcome outcome = shell(std::string("\"$TOOL\" ") + arguments);
    EXPECT_EQ(outcome.status, 0) << arguments;
    EXPECT_EQ(outcome.err, "") << arguments;
    EXPECT_NE(outcome.out.find("--version"), std::string::npos) << arguments;
  }
  EXPECT_NE(plan("--help").out.find("req_pool_indices"), std::string::npos);

  const std::string version = shell("\"$TOOL\" --version").out;
  EXPECT_EQ(plan("--version").out, version);
  EXPECT_TRUE(
      std::regex_match(version, std::regex("chunked_prefill [0-9]+\\.[0-9]+\\.[0-9]+\n"
                                           "Kokkos [0-9]+\\.[0-9]+\\.[0-9]+\n"
                                           "execution spaces: .+ \\(default [A-Za-z]+\\)\n")))
      << version;
  const auto spaces = execution_spaces();
  EXPECT_TRUE(std::ranges::any_of(spaces, [&](const std::string& space) {
    return version.ends_with("(default " + space + ")\n");
  })) << version;
}

// What it draws

TEST_F(Tool, DrawsEachLoopWhereItsChunksAre) {
  write("batch.json", four_sequences.dump());
  const std::string text = plan("batch.json").out;
  for (const char* line : {
           "batch.json: 4 sequences, 2,560 cached tokens, page_size 64\n",
           "loop  tokens  longest chunk  sequences  non-empty  of capacity\n",
           "   0   1,024            256     [0, 4)          4      100.0 %  ███████████████\n",
           "   3     256            256     [3, 4)          1       25.0 %  ███▊\n",
           "       0     256  │0━━━━━━━━━━━━━━\n",
           "       2     768  │0━━━━━━━━━━━━━━1━━━━━━━━━━━━━━2━━━━━━━━━━━━━━\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  }
}

/// Up to 256 ragged sequences.
Json ragged_batch(std::size_t count) {
  std::vector<int> lens(count);
  for (std::size_t i = 0; i < lens.size(); ++i) lens[i] = static_cast<int>(i * 7919 % 60000);
  return {{"prefix_lens", lens}, {"page_size", 64}, {"chunk_capacity", 262144}};
}

TEST_F(Tool, DrawingFitsEightyColumnsAndSaysWhatItLeavesOut) {
  for (const auto& [count, left_out] : {std::pair<std::size_t, std::string>{1, ""},
                                        {16, ""},
                                        {256, "234 sequences left out, of 43 to 59,707 tokens"}}) {
    write("batch.json", ragged_batch(count).dump());
    for (const auto& [policy, lines] : {std::pair<std::string, std::size_t>{"equal", 70},
                                        {"packed --grain 64", 70},
                                        {"both --grain 64", 140}}) {
      const Outcome outcome = plan("batch.json --policy " + policy);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_LE(std::ranges::max(line_widths(outcome.out)), 80u) << outcome.out;
      EXPECT_EQ(outcome.out.find("left out") != std::string::npos, !left_out.empty());
      EXPECT_NE(outcome.out.find(left_out), std::string::npos) << outcome.out;
      EXPECT_LE(line_widths(outcome.out).size(), lines);
    }
  }
}

TEST_F(Tool, DrawingTakesTheTerminalsWidth) {
  write("four.json", four_sequences.dump());
  write("many.json", ragged_batch(256).dump());
  write("long.json", R"({"prefix_lens": [2000000, 3], "page_size": 64,
                        "chunk_capacity": 2147483647})");
  for (const auto& [columns, batch] : {std::pair<std::uint16_t, std::string>{64, "four.json"},
                                       {64, "many.json --policy both"},
                                       {64, "long.json --policy both"},
                                       {100, "four.json"},
                                       {100, "many.json --policy both"}}) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0) GTEST_SKIP() << "no pseudo-terminal can be had here";
    ASSERT_EQ(grantpt(terminal) + unlockpt(terminal), 0);
    const std::string name = ptsname(terminal);
    const int held = open(name.c_str(), O_RDWR | O_NOCTTY);  // keeps what was written
    const winsize size{.ws_row = 50, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
    ASSERT_EQ(plan(batch + " >" + name).status, 0);
    std::string text;
    std::string part(1 << 12, '\0');
    for (pollfd waiting{.fd = terminal, .events = POLLIN, .revents = 0};
         poll(&waiting, 1, 200) > 0;) {
      text.append(part, 0, static_cast<std::size_t>(::read(terminal, part.data(), part.size())));
    }
    close(held);
    close(terminal);
    const std::size_t widest = std::ranges::max(line_widths(text));
    EXPECT_LE(widest, columns) << text;
    EXPECT_GE(widest, columns - 5u) << text;
  }
}

TEST_F(Tool, BothPoliciesOneAfterTheOtherAndCompared) {
  write("batch.json", four_sequences.dump());
  const std::string text = plan("batch.json --policy both --grain 64").out;
  EXPECT_TRUE(text.ends_with("\npolicy equal: 4 loops; policy packed, grain 64: 3 loops\n"))
      << text;
  std::size_t at = 0;
  for (const char* line : {
           "policy equal, chunk_capacity 1,024, chunk_len 256: 4 loops",
           "policy packed, grain 64, chunk_capacity 1,024, chunk_len 1,024: 3 loops",
           "\n\npolicy equal\nloop  tokens",
           "       3   1,024  │0━━━━━━━━━━━━━━1━━━━━━━━━━━━━━2━━━━━━━━━━━━━━3━━━━━━━━━━━━━━\n",
           "\n\npolicy packed, grain 64\nloop  tokens",
           "       3   1,024  │1━━━━━━━━━━━━━━━━━━━━━━━━━━━━━2━━━━━━━━━━━━━━━━━━━━━━━━━━━━━\n",
       }) {
    at = text.find(line, at);
    ASSERT_NE(at, std::string::npos) << line << "\nin\n" << text;
  }

  write("batch.json", R"({"prefix_lens": [0, 0], "page_size": 64})");
  EXPECT_NE(plan("batch.json --policy both").out.find("no sequence has a cached prefix"),
            std::string::npos);
}

TEST_F(Tool, SvgHasARowForEachLoop) {
  write("batch.json", four_sequences.dump());
  const std::string svg = plan("batch.json --svg -").out;
  expect_picture(svg);
  for (const char* row : {"loop 0: 1,024 tokens, longest chunk 256, 4 of sequences [0, 4)",
                          "loop 1: 768 tokens, longest chunk 256, 3 of sequences [1, 4)",
                          "loop 2: 512 tokens, longest chunk 256, 2 of sequences [2, 4)",
                          "loop 3: 256 tokens, longest chunk 256, 1 of sequences [3, 4)"}) {
    EXPECT_NE(svg.find(row), std::string::npos) << row;
  }
}

TEST_F(Tool, SvgOfBothPoliciesSideBySide) {
  write("batch.json", four_sequences.dump());
  const std::string svg = plan("batch.json --policy both --grain 64 --svg -").out;
  expect_picture(svg);
  const auto equal = svg.find(">policy equal: 4 loops, 2,560 tokens<");
  const auto packed = svg.find(">policy packed, grain 64: 3 loops, 2,560 tokens<");
  ASSERT_NE(equal, std::string::npos);
  ASSERT_NE(packed, std::string::npos);
  EXPECT_GT(svg.find("loop 0: 1,024 tokens, longest chunk 256, 4 of sequences [0, 4)"), equal);
  EXPECT_LT(svg.find("loop 3: 256 tokens, longest chunk 256, 1 of sequences [3, 4)"), packed);
  EXPECT_GT(svg.find("loop 2: 512 tokens, longest chunk 512, 1 of sequences [3, 4)"), packed);
  const auto x = numbers(svg, "class=\"heading\" x=\"([0-9.]+)\"");
  const auto width = numbers(svg, "width=\"([0-9.]+)\"");
  ASSERT_EQ(x.size(), 2u);
  EXPECT_LT(x[0], width[0] / 2);
  EXPECT_GE(x[1], width[0] / 2);
}

// Fewer loops are fewer rows, of one height.
TEST_F(Tool, SvgOfBothPoliciesHasOneScale) {
  std::vector<int> lens(32, 16);
  lens[0] = 60000;
  write("batch.json",
        Json{{"prefix_lens", lens}, {"page_size", 64}, {"chunk_capacity", 65536}}.dump());
  const std::string svg = plan("batch.json --policy both --svg -").out;
  expect_picture(svg);
  EXPECT_NE(svg.find(">policy equal: 30 loops, "), std::string::npos);
  EXPECT_NE(svg.find(">policy packed, grain 1: 1 loop, "), std::string::npos);
  const std::string row = "<rect class=\"empty\" x=\"[0-9.]+\" y=\"[0-9.]+\" width=\"38[0-9.]+\" ";
  const auto heights = numbers(svg, row + "height=\"([0-9.]+)\"");
  ASSERT_EQ(heights.size(), 31u);
  EXPECT_EQ(std::set<double>(heights.begin(), heights.end()).size(), 1u);
  EXPECT_LE(30 * heights[0], 640);
}

TEST_F(Tool, SvgOfManySaysWhatSharesARow) {
  write("batch.json", Json{{"prefix_lens", std::vector<int>(1000, 170)},
                           {"page_size", 64},
                           {"chunk_capacity", 1000}}
                          .dump());
  const std::string svg = plan("batch.json --svg -").out;
  EXPECT_NE(svg.find("A column is the mean of 4 neighbouring sequences. A row is the mean of 3 "
                     "loops."),
            std::string::npos);
}

// What it refuses

struct Refusal {
  const char* name;
  std::string batch;
  std::string message;
  std::string arguments = "";
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class ToolRefuses : public Tool, public ::testing::WithParamInterface<Refusal> {};

TEST_P(ToolRefuses, InOneLineAndLeavesNothing) {
  write("batch.json", GetParam().batch);
  expect_refused(plan("batch.json --json out.json --svg out.svg " + GetParam().arguments),
                 GetParam().message);
  // Nor does anything reach standard output first.
  expect_refused(plan("batch.json " + GetParam().arguments), GetParam().message);
}

std::string refusal_name(const ::testing::TestParamInfo<Refusal>& info) { return info.param.name; }

/// A batch of two sequences, with `rest` as further members.
std::string two(const std::string& rest) {
  return R"({"prefix_lens": [65, 3], "page_size": 64)" + (rest.empty() ? "" : ", " + rest) + "}";
}

const std::string known =
    "unknown key, known are prefix_lens, page_size, chunk_capacity, chunked_prefill_size, "
    "mla_chunk_multiplier, req_to_page, req_pool_indices, shard";

INSTANTIATE_TEST_SUITE_P(
    NotJson, ToolRefuses,
    ::testing::Values(
        Refusal{"Empty", "", "batch.json: empty, a JSON object is needed"},
        Refusal{"Blank", "\n\n", "batch.json: not JSON, line 3, column 1: unexpected end"},
        Refusal{"Open", "{\n\"page_size\": 1",
                "batch.json: not JSON, line 2, column 15: unexpected end"},
        Refusal{"Word", "prefix", "batch.json: not JSON, line 1, column 1: unexpected 'p'"},
        Refusal{"Inside", "{\n  \"page_size\": 64,\n  \"prefix_lens\": [1, x]\n}",
                "batch.json: not JSON, line 3, column 22: unexpected 'x'"},
        Refusal{"Trailing", two("") + "]",
                "batch.json: not JSON, line 1, column 42: unexpected ']'"},
        Refusal{"Byte", "\xff", "batch.json: not JSON, line 1, column 1: unexpected byte 0xFF"},
        Refusal{"Nul", std::string(1, '\0'),
                "batch.json: not JSON, line 1, column 1: unexpected byte 0x00"},
        Refusal{"NulInside", "{\"page_size\": 64," + std::string(1, '\0') + "\"prefix_lens\": []}",
                "batch.json: not JSON, line 1, column 18: unexpected byte 0x00"},
        Refusal{"NulBehind", two("") + '\n' + '\0' + "behind",
                "batch.json: not JSON, line 2, column 1: unexpected byte 0x00"},
        Refusal{"Control", "{\"page_size\": \x01}",
                "batch.json: not JSON, line 1, column 15: unexpected <U+0001>"},
        Refusal{"Comment", "// a batch\n" + two(""),
                "batch.json: not JSON, line 1, column 1: unexpected '/'"},
        Refusal{"SecondDocument", two("") + two(""),
                "batch.json: not JSON, line 1, column 42: unexpected '{'"},
        Refusal{"Nested", std::string(100000, '['), "batch.json: [...] is not an object"},
        Refusal{"NestedInside", "{\"req_to_page\": " + std::string(100000, '['),
                "req_to_page[0][0]: [...] is not an integer"},
        Refusal{"NestedObjects",
                [] {
                  std::string text;
                  for (int k = 0; k < 100000; ++k) text += "{\"prefix_lens\":";
                  return text;
                }(),
                "prefix_lens: {...} is not a list of integers"},
        Refusal{"List", "[1]", "batch.json: [...] is not an object"},
        Refusal{"Number", "12", "batch.json: 12 is not an object"}),
    refusal_name);

INSTANTIATE_TEST_SUITE_P(
    Keys, ToolRefuses,
    ::testing::Values(
        Refusal{"NoPrefixLens", R"({"page_size": 64})", "prefix_lens: missing"},
        Refusal{"NoPageSize", R"({"prefix_lens": [1]})", "page_size: missing"},
        Refusal{"Unknown", R"({"prefix_lens": [1], "pagesize": 64})", "\"pagesize\": " + known},
        Refusal{"UnknownInTwoLines", R"({"a\nb": 64})", "\"a\\nb\": " + known},
        Refusal{"Twice", R"({"page_size": 64, "prefix_lens": [1], "page_size": 64})",
                "page_size: given twice"},
        Refusal{"TableWithoutIndices", two(R"("req_to_page": [[1, 2]])"),
                "req_pool_indices: missing, though req_to_page is given"},
        Refusal{"IndicesWithoutTable", two(R"("req_pool_indices": [0, 0])"),
                "req_to_page: missing, though req_pool_indices is given"},
        Refusal{"CapacityAndSize", two(R"("chunk_capacity": 8, "chunked_prefill_size": 2)"),
                "chunk_capacity: given together with chunked_prefill_size, of which it is the "
                "product"},
        Refusal{"CapacityAndMultiplier", two(R"("chunk_capacity": 8, "mla_chunk_multiplier": 2)"),
                "chunk_capacity: given together with mla_chunk_multiplier, of which it is the "
                "product"}),
    refusal_name);

INSTANTIATE_TEST_SUITE_P(
    Types, ToolRefuses,
    ::testing::Values(
        Refusal{"String", R"({"prefix_lens": [1, 2, 3, "12"]})",
                "prefix_lens[3]: \"12\" is not an integer"},
        Refusal{"LongString", "{\"page_size\": \"" + std::string(1000, 'x') + "\"}",
                "page_size: \"" + std::string(39, 'x') + "... is not an integer"},
        Refusal{"Fraction", R"({"prefix_lens": [1, 2.5]})",
                "prefix_lens[1]: 2.5 is not an integer"},
        Refusal{"Exponent", R"({"prefix_lens": [1e3]})", "prefix_lens[0]: 1e3 is not an integer"},
        Refusal{"Infinite", R"({"prefix_lens": [1e999]})",
                "prefix_lens[0]: 1e999 is not an integer"},
        Refusal{"Null", R"({"prefix_lens": [null]})", "prefix_lens[0]: null is not an integer"},
        Refusal{"Bool", R"({"page_size": true})", "page_size: true is not an integer"},
        Refusal{"List", R"({"page_size": [64]})", "page_size: [...] is not an integer"},
        Refusal{"Object", R"({"chunk_capacity": {}})", "chunk_capacity: {...} is not an integer"},
        Refusal{"NotAList", R"({"prefix_lens": 5})", "prefix_lens: 5 is not a list of integers"},
        Refusal{"NoRows", R"({"req_to_page": 5})", "req_to_page: 5 is not a list of rows"},
        Refusal{"NoRow", R"({"req_to_page": [[1], 5]})",
                "req_to_page[1]: 5 is not a list of page ids"},
        Refusal{"Page", R"({"req_to_page": [[1, 2], [3, "4"]]})",
                "req_to_page[1][1]: \"4\" is not an integer"},
        Refusal{"Index", R"({"req_pool_indices": [0, 0.5]})",
                "req_pool_indices[1]: 0.5 is not an integer"}),
    refusal_name);

INSTANTIATE_TEST_SUITE_P(
    Values, ToolRefuses,
    ::testing::Values(
        Refusal{"NegativeLength", R"({"prefix_lens": [1, -1]})",
                "prefix_lens[1]: -1 is outside [0, 2147483647]"},
        Refusal{"LengthBeyondInt32", R"({"prefix_lens": [2147483648]})",
                "prefix_lens[0]: 2147483648 is outside [0, 2147483647]"},
        Refusal{"LengthBeyondInt64", R"({"prefix_lens": [99999999999999999999]})",
                "prefix_lens[0]: 99999999999999999999 is beyond 64 bits"},
        Refusal{"PageSize", R"({"page_size": 0})", "page_size: 0 is outside [1, 2147483647]"},
        Refusal{"Page", R"({"req_to_page": [[1, 2147483648]]})",
                "req_to_page[0][1]: 2147483648 is outside [-2147483648, 2147483647]"},
        Refusal{"Capacity", two(R"("chunk_capacity": 0)"),
                "chunk_capacity: 0 is outside [1, 2147483647]"},
        Refusal{"CapacityBeyondInt32", two(R"("chunk_capacity": 2147483648)"),
                "chunk_capacity: 2147483648 is outside [1, 2147483647]"},
        Refusal{"CapacityBelowBatch", two(R"("chunk_capacity": 1)"),
                "chunk_capacity: 1 tokens cannot be split equally among 2 sequences (batch_size)"},
        Refusal{"ChunkingOff", two(R"("chunked_prefill_size": -1)"),
                "chunked_prefill_size: -1 is not positive"},
        Refusal{"Multiplier", two(R"("mla_chunk_multiplier": 0)"),
                "mla_chunk_multiplier: 0 is not positive"},
        Refusal{"Product", two(R"("chunked_prefill_size": 65536, "mla_chunk_multiplier": 65536)"),
                "chunked_prefill_size * mla_chunk_multiplier: 65536 * 65536 is beyond 2147483647"}),
    refusal_name);

INSTANTIATE_TEST_SUITE_P(
    Tables, ToolRefuses,
    ::testing::Values(
        Refusal{"Ragged", two(R"("req_to_page": [[1, 2], [3, 4, 5]], "req_pool_indices": [0, 1])"),
                "req_to_page[1]: 3 pages where row 0 has 2"},
        Refusal{"RowTooShort", two(R"("req_to_page": [[1], [2]], "req_pool_indices": [0, 1])"),
                "prefix_lens[0]: 65 tokens need 2 pages of page_size 64, a row of req_to_page has "
                "1"},
        Refusal{"IndicesTooFew", two(R"("req_to_page": [[1, 2]], "req_pool_indices": [0])"),
                "req_pool_indices: length 1 where prefix_lens has length 2"},
        Refusal{"RowBeyond", two(R"("req_to_page": [[1, 2]], "req_pool_indices": [0, 1])"),
                "req_pool_indices[1]: 1 is not a row of req_to_page, which has 1 in all"},
        Refusal{"RowNegative", two(R"("req_to_page": [[1, 2]], "req_pool_indices": [-1, 0])"),
                "req_pool_indices[0]: -1 is not a row of req_to_page, which has 1 in all"},
        Refusal{"RowFarBeyond",
                two(R"("req_to_page": [[1, 2]], "req_pool_indices": [0, 4294967296])"),
                "req_pool_indices[1]: 4294967296 is not a row of req_to_page, which has 1 in all"},
        Refusal{"NoRows", two(R"("req_to_page": [], "req_pool_indices": [0, 0])"),
                "req_pool_indices[0]: 0 is not a row of req_to_page, which has 0 in all"},
        Refusal{"NegativePage",
                two(R"("req_to_page": [[5, 6], [1, -2]], "req_pool_indices": [1, 0])"),
                "req_to_page[1][1]: -2 is not a page id, and prefix_lens[0] covers it"},
        Refusal{"NegativePageOfOne",
                R"({"prefix_lens": [2], "page_size": 1, "req_to_page": [[0, -1]],
                    "req_pool_indices": [0]})",
                "req_to_page[0][1]: -1 is not a page id, and prefix_lens[0] covers it"},
        Refusal{"SlotBeyondInt32",
                R"({"prefix_lens": [64], "page_size": 64, "req_to_page": [[33554432]],
                    "req_pool_indices": [0]})",
                "req_to_page[0][0]: page 33554432 of page_size 64 reaches slot 2147483711, int32 "
                "slots end at 2147483647; use --index-type int64"}),
    refusal_name);

/// A batch of two sequences on a rank's pages.
std::string two_on(const std::string& shard) { return two("\"shard\": " + shard); }

INSTANTIATE_TEST_SUITE_P(
    Shards, ToolRefuses,
    ::testing::Values(
        Refusal{"NoObject", two_on("8"),
                "shard: 8 is not an object of world_size, rank and interleave"},
        Refusal{"List", two_on("[8, 3, 1]"),
                "shard: [...] is not an object of world_size, rank and interleave"},
        Refusal{"Unknown", two_on(R"({"world": 8})"),
                "shard.\"world\": unknown key, known are world_size, rank, interleave"},
        Refusal{"Twice", two_on(R"({"rank": 0, "rank": 0})"), "shard.rank: given twice"},
        Refusal{"TwiceItself", two_on(R"({}, "shard": {})"), "shard: given twice"},
        Refusal{"String", two_on(R"({"rank": "0"})"), "shard.rank: \"0\" is not an integer"},
        Refusal{"Nested", two_on(R"({"rank": {"rank": 0}})"),
                "shard.rank: {...} is not an integer"},
        Refusal{"WorldSize", two_on(R"({"world_size": 0})"),
                "shard.world_size: 0 is outside [1, 2147483647]"},
        Refusal{"Rank", two_on(R"({"world_size": 2, "rank": 2})"),
                "shard.rank: 2 is outside [0, 1]"},
        Refusal{"NegativeRank", two_on(R"({"rank": -1})"),
                "shard.rank: -1 is outside [0, 2147483647]"},
        Refusal{"RankOfNoWorld", two_on(R"({"rank": 1})"), "shard.rank: 1 is outside [0, 0]"},
        Refusal{"Interleave", two_on(R"({"world_size": 65536, "interleave": 32768})"),
                "shard.interleave: 32768 is outside [1, 32767]"},
        Refusal{"RowTooShort",
                R"({"prefix_lens": [65, 3], "page_size": 4, "req_to_page": [[1, 2, 3]],
                    "req_pool_indices": [0, 0],
                    "shard": {"world_size": 2, "rank": 1, "interleave": 4}})",
                "prefix_lens[0]: 32 tokens of rank 1 need 8 pages of page_size 4, a row of "
                "req_to_page has 3"}),
    refusal_name);

INSTANTIATE_TEST_SUITE_P(
    Options, ToolRefuses,
    ::testing::Values(
        Refusal{"GrainBeyondCapacity", two(""), "grain: 40000 is beyond chunk_capacity 32768",
                "--policy packed --grain 40000"},
        Refusal{"Policy", two(""), "--policy: \"fair\" is none of equal, packed, both",
                "--policy fair"},
        Refusal{"Grain", two(""), "--grain: 64 belongs to --policy packed", "--grain 64"},
        Refusal{"NoGrain", two(""), "--grain: \"0\" is not a positive integer", "--grain 0"},
        Refusal{"NegativeGrain", two(""), "--grain: \"-64\" is not a positive integer",
                "--grain=-64"},
        Refusal{"IndexType", two(""), "--index-type: \"int16\" is neither int32 nor int64",
                "--index-type int16"},
        Refusal{"Unknown", two(""), "--verbose: unknown option", "--verbose"},
        Refusal{"SecondBatch", two(""),
                "other.json: unexpected argument, one batch is planned at a time", "other.json"},
        Refusal{"NoValue", two(""), "--policy: needs one value, given once", "--policy"},
        Refusal{"TwoValues", two(""), "--policy: needs one value, given once",
                "--policy equal --policy equal"}),
    refusal_name);

TEST_F(Tool, RefusesAnUnknownExecutionSpaceAndListsThose) {
  write("batch.json", two(""));
  std::string spaces;
  for (const std::string& space : execution_spaces()) {
    spaces += (spaces.empty() ? "" : ", ") + space;
  }
  expect_refused(plan("batch.json --execution-space Abacus"),
                 "--execution-space: \"Abacus\" is not built in; available: " + spaces);
}

TEST_F(Tool, RefusesWhatBothPoliciesCannotGive) {
  write("batch.json", two(R"("chunk_capacity": 1)"));
  expect_refused(plan("batch.json --policy both --json out.json"),
                 "--json: a document is of one policy, --policy both asks for two");
  for (const std::string svg : {"", " --svg out.svg"}) {
    expect_refused(
        plan("batch.json --policy both" + svg),
        "chunk_capacity: 1 tokens cannot be split equally among 2 sequences (batch_size)");
  }
  write("batch.json", two(""));
  for (const std::string svg : {"", " --svg out.svg"}) {
    expect_refused(plan("batch.json --policy both --grain 40000" + svg),
                   "grain: 40000 is beyond chunk_capacity 32768");
  }
  expect_refused(plan("batch.json --policy both --svg nowhere/out"),
                 "nowhere/out: cannot be written: No such file or directory");
}

TEST_F(Tool, BehindTwoDashesAllIsNoOption) {
  write("batch.json", two(""));
  const std::string text = plan("batch.json").out;
  for (const char* arguments : {"-- batch.json", "batch.json --", "--policy equal -- batch.json"}) {
    const Outcome outcome = plan(arguments);
    EXPECT_EQ(outcome.status, 0) << arguments;
    EXPECT_EQ(outcome.out, text) << arguments;
  }
  expect_refused(plan("--"), "BATCH.json: missing, give a file or - for standard input");
  expect_refused(plan("-- --json"), "--json: cannot be read: No such file or directory");
  expect_refused(plan("-- batch.json --json"),
                 "--json: unexpected argument, one batch is planned at a time");
  write("--check", two(""));
  EXPECT_EQ(plan("-- --check").status, 0);
}

TEST_F(Tool, RefusesEnvironmentsThatKokkosWouldEndIn) {
  write("batch.json", two(""));
  const auto refused = [&](const std::string& variable, const std::string& value,
                           const std::string& right) {
    expect_refused(shell(variable + "='" + value + "' \"$TOOL\" plan batch.json --json out.json"),
                   variable + ": \"" + value + "\" in the environment is not " + right);
  };
  const auto spaces = execution_spaces();
  const std::string threads = std::ranges::count(spaces, "OpenMP") > 0
                                  ? "an integer in [1, 512]"
                                  : "an integer in [1, 2147483647]";
  for (const char* value : {"", "many", "0", "-1", "4x", "2.5", "99999999999999999999"}) {
    refused("KOKKOS_NUM_THREADS", value, threads);
  }
  if (std::ranges::count(spaces, "OpenMP") > 0) {
    refused("KOKKOS_NUM_THREADS", "513", threads);
    refused("OMP_NUM_THREADS", "513", "at most 512 threads");
    refused("OMP_NUM_THREADS", "100000,2", "at most 512 threads");
  }
  for (const char* value : {"", "gpu", "-1", "2147483648"}) {
    const Outcome outcome = shell("KOKKOS_DEVICE_ID='" + std::string(value) +
                                  "' \"$TOOL\" plan batch.json --json out.json");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_TRUE(outcome.err.starts_with("chunked_prefill: KOKKOS_DEVICE_ID: \"" +
                                        std::string(value) +
                                        "\" in the environment is not an integer in [0, "))
        << outcome.err;
  }
  refused("KOKKOS_MAP_DEVICE_ID_BY", "name", "random or mpi_rank");
  for (const char* variable :
       {"KOKKOS_DISABLE_WARNINGS", "KOKKOS_PRINT_CONFIGURATION", "KOKKOS_TUNE_INTERNALS"}) {
    refused(variable, "perhaps", "a yes or no");
  }
}

TEST_F(Tool, EnvironmentsLeaveStandardOutputToTheReport) {
  write("batch.json", two(""));
  const std::string document = plan("batch.json --json -").out;
  for (const char* setting : {"KOKKOS_PRINT_CONFIGURATION=yes", "KOKKOS_NUM_THREADS=2",
                              "KOKKOS_DISABLE_WARNINGS=FALSE", "OMP_NUM_THREADS=2,1"}) {
    const Outcome outcome = shell(std::string(setting) + " \"$TOOL\" plan batch.json --json -");
    EXPECT_EQ(outcome.status, 0) << setting;
    EXPECT_EQ(outcome.out, document) << setting;
    EXPECT_EQ(outcome.err, "") << setting;
  }
}

TEST_F(Tool, RefusesIncompleteCommands) {
  write("batch.json", two(""));
  expect_refused(shell("\"$TOOL\""),
                 "subcommand: missing, there are plan, replay and attend; see --help");
  expect_refused(shell("\"$TOOL\" draw batch.json"),
                 "draw: unknown subcommand, there are plan, replay and attend");
  expect_refused(plan(""), "BATCH.json: missing, give a file or - for standard input");
  expect_refused(plan("batch.json --json - --svg -"), "--svg: - is where --json goes");
}

TEST_F(Tool, RefusesFilesThatCannotBeRead) {
  write("batch.json", two(""));
  expect_refused(plan("missing.json"), "missing.json: cannot be read: No such file or directory");
  expect_refused(plan("."), ".: cannot be read: Is a directory");
  expect_refused(plan("batch.json/x"), "batch.json/x: cannot be read: Not a directory");
  expect_refused(plan("- </dev/null"), "standard input: empty, a JSON object is needed");
  expect_refused(plan("- <."), "standard input: cannot be read: Is a directory");
  expect_refused(plan("- <&-"), "standard input: cannot be read: Bad file descriptor");
  expect_refused(plan("/dev/zero"), "/dev/zero: not JSON, line 1, column 1: unexpected byte 0x00");
  const std::string name(300, 'a');
  expect_refused(plan(name), name + ": cannot be read: File name too long");
}

TEST_F(Tool, RefusesFilesThatCannotBeWritten) {
  write("batch.json", two(""));
  for (const std::string option : {"--json ", "--svg "}) {
    expect_refused(plan("batch.json " + option + "nowhere/out"),
                   "nowhere/out: cannot be written: No such file or directory");
    expect_refused(plan("batch.json " + option + "."), ".: cannot be written: Is a directory");
    expect_refused(plan("batch.json " + option + "/dev/full"),
                   "/dev/full: cannot be written: No space left on device");
    expect_refused(plan("batch.json " + option + "- >/dev/full"),
                   "standard output: cannot be written: No space left on device");
  }
  expect_refused(plan("batch.json --json '' --svg out.svg"), "--json: the file name is empty");
  expect_refused(plan("batch.json --json batch.json/x"),
                 "batch.json/x: cannot be written: Not a directory");
  expect_refused(plan("batch.json >&-"), "standard output: cannot be written: Bad file descriptor");
  expect_refused(plan("batch.json --json out.json --svg nowhere/out"),
                 "nowhere/out: cannot be written: No such file or directory");
  expect_refused(plan("batch.json --json nowhere/out --svg out.svg"),
                 "nowhere/out: cannot be written: No such file or directory");
  expect_refused(plan("batch.json >/dev/full"),
                 "standard output: cannot be written: No space left on device");
  expect_refused(shell("\"$TOOL\" --help >/dev/full"),
                 "standard output: cannot be written: No space left on device");
}

TEST_F(Tool, AFileBeyondTheLimitIsAnErrorAndNotASilentDeath) {
  write("batch.json", two(""));
  const Outcome outcome = shell(
      "{ (ulimit -f 0; exec \"$TOOL\" plan batch.json --json out.json --svg out.svg) 2>&1; "
      "echo $?; } | cat");
  EXPECT_EQ(outcome.out, "chunked_prefill: out.json: cannot be written: File too large\n2\n");
  EXPECT_EQ(files(), std::set<std::string>{"batch.json"});
}

TEST_F(Tool, AClosedPipeIsAnErrorAndNotASilentDeath) {
  write("batch.json", two(""));
  const Outcome outcome =
      shell("{ sleep 0.5; \"$TOOL\" plan batch.json; echo $? >../status; } | true; cat ../status");
  EXPECT_EQ(outcome.out, "2\n");
  EXPECT_EQ(outcome.err, "chunked_prefill: standard output: cannot be written: Broken pipe\n");
  EXPECT_EQ(files(), std::set<std::string>{"batch.json"});
}

/// Standard error of a command that must say, in one line, that there is not enough memory.
void expect_too_large(const Outcome& outcome, const std::string& words) {
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(outcome.err.starts_with("chunked_prefill: " + words)) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with(" GB are available\n")) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1);
}

// Every sequence is on one row, of which the last page is none: 10^13 pages are not walked for it.
TEST_F(Tool, MemoryIsJudgedBeforePages) {
  std::vector<int> pages(1000000, 0);
  pages.back() = -1;
  write("batch.json", Json{{"prefix_lens", std::vector<int>(1000000, 1000000)},
                           {"page_size", 1},
                           {"chunk_capacity", 2147483647},
                           {"req_to_page", {pages}},
                           {"req_pool_indices", std::vector<int>(1000000, 0)}}
                          .dump());
  expect_too_large(plan("batch.json --json out.json"),
                   "prefix_lens: 1000000000000 tokens of 1000000 sequences in 466 loops need ");
  EXPECT_EQ(files(), std::set<std::string>{"batch.json"});
}

// 2 * 10^12 tokens of one sequence after another, 1,000 loops under each policy. On the device one
// build after the other: 4 bytes a slot, and 8 of each copy.
TEST_F(Tool, MemoryOfBothPoliciesCountsTheDeviceOnce) {
  write("batch.json", Json{{"prefix_lens", std::vector<int>(1000, 2000000000)},
                           {"page_size", 2000000000},
                           {"chunk_capacity", 2000000000}}
                          .dump());
  expect_too_large(plan("batch.json --policy equal"),
                   "prefix_lens: 2000000000000 tokens of 1000 sequences in 1000 loops need 24000.0 "
                   "GB of memory");
  expect_too_large(plan("batch.json --policy both"),
                   "prefix_lens: 2000000000000 tokens of 1000 sequences in 2000 loops need 40000.0 "
                   "GB of memory");
}

// A result that is not what the definitions give is told from bad input.
TEST_F(Tool, FailedVerificationIsExitStatusOne) {
  if (spoilable_space().empty()) GTEST_SKIP() << "no host space, or Kokkos loads no tools";
  const auto expect_failed = [&](const Outcome& outcome, const std::string& message) {
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, "chunked_prefill: " + message + "\n");
    EXPECT_EQ(files(), (std::set<std::string>{"batch.json", "trace.csv"}));
  };
  write("batch.json", Json{{"prefix_lens", {3000, 2000}},
                           {"page_size", 64},
                           {"chunk_capacity", 256},
                           {"req_to_page", {std::vector<int>(47, 1000)}},
                           {"req_pool_indices", {0, 0}}}
                          .dump());
  write("trace.csv", "input_length,cached_prefix\n400,300\n400,200\n");
  for (const std::string out : {"", " --json -", " --json out.json --svg out.svg"}) {
    expect_failed(spoilt("chunk_kv_indices", 64003, "plan batch.json --check" + out),
                  "policy equal: chunk_kv_indices: loop 0, sequence 0, position 3: got 64004, "
                  "expected 64003");
  }
  expect_failed(spoilt("cum_seq_lens", 256, "plan batch.json --check"),
                "policy equal: cum_seq_lens: loop 0, total: got 257, expected 256");
  expect_failed(spoilt("chunk_kv_indices", 64003, "plan batch.json --check --policy packed"),
                "policy packed: chunk_kv_indices: loop 0, sequence 0, position 3: got 64004, "
                "expected 64003");
  expect_failed(
      spoilt("chunk_kv_indices", 5, "replay trace.csv --verify --json out.json --svg out.svg"),
      "step 0: chunk_kv_indices: loop 0, sequence 0, position 5: got 6, expected 5");
  // Nobody looks without being asked to.
  EXPECT_EQ(spoilt("chunk_kv_indices", 64003, "plan batch.json").status, 0);
}

TEST_F(Tool, RefusesWhatMemoryCannotHold) {
  write("batch.json", Json{{"prefix_lens", std::vector<int>(1000, 2147483647)},
                           {"page_size", 2147483647},
                           {"chunk_capacity", 1000}}
                          .dump());
  const Outcome loops = plan("batch.json --json out.json --index-type int64");
  EXPECT_EQ(loops.status, 2);
  EXPECT_EQ(loops.out, "");
  EXPECT_TRUE(
      loops.err.starts_with("chunked_prefill: prefix_lens: 2147483647000 tokens of 1000 sequences "
                            "in 2147483647 loops need "))
      << loops.err;
  EXPECT_EQ(std::ranges::count(loops.err, '\n'), 1);
  EXPECT_EQ(files(), std::set<std::string>{"batch.json"});

  std::vector<int> lens(100000, 0);
  lens[0] = 2147483647;
  write("batch.json", Json{{"prefix_lens", lens}, {"page_size", 1}}.dump());
  const Outcome table = plan("batch.json");
  EXPECT_EQ(table.status, 2);
  EXPECT_TRUE(
      table.err.starts_with("chunked_prefill: req_to_page: 100000 rows of 2147483647 pages need "))
      << table.err;
}

// Replay

class ToolReplay : public Tool {
 protected:
  [[nodiscard]] Outcome replay(const std::string& arguments) const {
    return shell("\"$TOOL\" replay " + arguments);
  }
  [[nodiscard]] Json replay_json(const std::string& arguments) const {
    const Outcome outcome = replay(arguments + " --verify --json -");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");  // no bar where standard error is no terminal
    return Json::parse(outcome.out, nullptr, false);
  }
  void expect_refused(const std::string& arguments, const std::string& message) const {
    const auto before = files();
    const Outcome outcome = replay(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, "chunked_prefill: " + message + "\n");
    EXPECT_EQ(files(), before);
  }
};

// Three requests of 1,100 tokens. The second has the first's two first blocks; the third all of its
// blocks, but for the token that is computed.
constexpr const char* three_requests =
    "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [0, 1, 2]}\n"
    "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [0, 1, 3]}\n"
    "{\"timestamp\": 9, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [0, 1, 2]}\n";

// Steps {0, 1024} and {1099}; capacity 600: 4 + 2 loops of 300 and 600 tokens, 2 + 2 packed.
TEST_F(ToolReplay, ThreeRequestsWorkedByHand) {
  write("trace.jsonl", three_requests);
  write("trace.csv",
        "timestamp_ms,input_length,output_length,cached_prefix\n"
        "0,1100,7,0\n0,1100,7,1024\r\n\n9,1100,7,1099\n");
  for (const std::string& space : execution_spaces()) {
    for (const std::string trace : {"trace.jsonl", "trace.csv"}) {
      for (const std::string policy : {"equal", "packed"}) {
        const Json got = replay_json(trace + " --batch-size 2 --chunk-capacity 600 --policy " +
                                     policy + " --execution-space " + space);
        EXPECT_EQ(got.value("steps", 0), 2);
        EXPECT_EQ(got.value("verified_steps", 0), 2);
        EXPECT_EQ(got.value("requests", 0), 3);
        EXPECT_EQ(got.value("loops_equal", 0), 6);
        EXPECT_EQ(got.value("loops_packed", 0), 4);
        EXPECT_EQ(got.value("most_loops_equal", 0), 4);
        EXPECT_EQ(got.value("tokens", 0), 2123);
        EXPECT_EQ(got.value("longest_prefix", 0), 1099);
        // Of 64 tokens: 24 of the first request and the 8 that the second does not share.
        EXPECT_EQ(got.value("pages_used", 0), trace == "trace.jsonl" ? 32 : 18);
        EXPECT_EQ(got.value("interrupted", true), false);
        EXPECT_GT(got.value("seconds_median", 0.), 0.);
        EXPECT_GE(got.value("seconds_p99", 0.), got.value("seconds_median", 1.));
      }
    }
  }
  const Json one = replay_json("trace.jsonl --batch-size 2 --steps 1");
  EXPECT_EQ(one.value("steps", 0), 1);
  const Outcome table = replay("trace.jsonl --batch-size 2 --chunk-capacity 600");
  EXPECT_EQ(table.status, 0);
  EXPECT_NE(table.out.find("loops                            6           4\n"), std::string::npos)
      << table.out;
}

// Pages of a block. With three of them the second request evicts block 2, and the third block 3.
TEST_F(ToolReplay, FullCacheEvictsTheLongestUnused) {
  write("trace.jsonl", three_requests);
  const auto got = [&](int pages) {
    return replay_json("trace.jsonl --batch-size 1 --page-size 512 --cache-pages " +
                       std::to_string(pages));
  };
  EXPECT_EQ(got(4).value("pages_evicted", -1), 0);
  EXPECT_EQ(got(4).value("tokens", 0), 1024 + 1099);
  EXPECT_EQ(got(3).value("pages_evicted", 0), 2);
  EXPECT_EQ(got(3).value("tokens", 0), 1024 + 1024);
  const std::string too_few =
      "--cache-pages: 2 pages of 512 tokens do not hold the requests of a step";
  expect_refused("trace.jsonl --page-size 512 --cache-pages 2", "trace.jsonl:1: " + too_few);
  expect_refused(
      "trace.jsonl --page-size 512 --cache-pages 3",
      "trace.jsonl:2: --cache-pages: 3 pages of 512 tokens do not hold the requests of a "
      "step");
  write("trace.csv", "input_length,cached_prefix\n\n2000,1024\n2000,1\n");
  expect_refused("trace.csv --page-size 512 --cache-pages 2", "trace.csv:4: " + too_few);
}

// A page that reaches over the end of what is shared is each request's own: 1,024 tokens are 21
// whole pages of 48.
TEST_F(ToolReplay, PagesThatAreNoPartOfABlock) {
  write("trace.jsonl", three_requests);
  const Json got = replay_json("trace.jsonl --page-size 48");
  EXPECT_EQ(got.value("tokens", 0), 21 * 48 + 1099);
}

TEST_F(ToolReplay, RefusesMalformedTracesByLine) {
  const auto refused = [&](const std::string& text, const std::string& message) {
    write("trace", text);
    expect_refused("trace --json out.json", message);
  };
  const std::string good = three_requests;
  refused(good + "{\"input_length\": 5\n", "trace:4: not a JSON object");
  refused(good + "{\"input_length\": 5}\n", "trace:4: no key hash_ids");
  refused(good + "{\"hash_ids\": [1]}\n", "trace:4: no key input_length");
  refused("{\"input_length\": 0, \"hash_ids\": []}\n",
          "trace:1: input_length: 0 is no number of tokens in [1, 2147483647]");
  refused("{\"input_length\": 513, \"hash_ids\": [1]}\n",
          "trace:1: hash_ids: not the 2 ids that 513 tokens have, one for each started block of "
          "512");
  refused("{\"input_length\": 5, \"hash_ids\": [\"a\"]}\n", "trace:1: hash_ids[0]: \"a\" is no id");
  refused("input_length,cached\n",
          "trace:1: neither a JSON object nor a CSV header: no column cached_prefix");
  refused("input_length,cached_prefix\n5,4\n5\n", "trace:3: 1 column where the header has 2");
  refused("input_length,cached_prefix\n5,5\n",
          "trace:2: cached_prefix: \"5\" is no number of tokens in [0, 4]");
  refused("input_length,cached_prefix\n5,-1\n",
          "trace:2: cached_prefix: \"-1\" is no number of tokens in [0, 4]");
}

TEST_F(ToolReplay, RefusesHostileTracesByLine) {
  const auto refused = [&](const std::string& text, const std::string& message) {
    write("trace", text);
    expect_refused("trace --svg out.svg", "trace:" + message);
  };
  const std::string first = "\xEF\xBB\xBF{\"input_length\": 5, \"hash_ids\": [1]}\r\n\r\n";
  const auto row = [&](const std::string& text, const std::string& message) {
    refused(first + text, "3: " + message);
  };
  const std::string nul(1, '\0');
  for (const std::string& text :
       {std::string("12"), std::string("[1]"), std::string("   "), std::string("\xff"),
        std::string("input_length,cached_prefix"),
        std::string(R"({"input_length": 5, "hash_ids": [1]} 5)"),
        R"({"input_length": 5, "hash_ids": [1]})" + nul,
        R"({"input_length": 5, "hash_ids": [1]})" + nul + "behind",
        R"({"input_length": 5, "hash_ids": [1], "name": ")" + nul + "\"}",
        std::string(R"({"input_length": 5, "hash_ids": [1)"), std::string(100000, '['),
        R"({"input_length": 5, "hash_ids": [1], "name": )" + std::string(100000, '[')}) {
    row(text, "not a JSON object");
  }
  const std::string tokens = " is no number of tokens in [1, 2147483647]";
  for (const char* value : {"-1", "0", "2147483648", "-9223372036854775809", "18446744073709551616",
                            "5.0", "1e999", "\"5\"", "null", "true", "[...]", "{...}"}) {
    const std::string written =
        value[1] == '.' && value[0] != '5' ? std::string{value[0], value[4]} : std::string(value);
    row("{\"input_length\": " + written + ", \"hash_ids\": [1]}",
        "input_length: " + std::string(value) + tokens);
  }
  row("{\"input_length\": \"" + std::string(1000, 'x') + "\"}",
      "input_length: \"" + std::string(39, 'x') + "..." + tokens);
  row(R"({"input_length": 5, "input_length": 6, "hash_ids": [1]})", "input_length: given twice");
  row(R"({"input_length": 5, "hash_ids": [1], "hash_ids": [1]})", "hash_ids: given twice");
  row(R"({"input_length": 5, "hash_ids": 1})", "hash_ids: 1 is no list of ids");
  row(R"({"input_length": 5, "hash_ids": {"0": 1}})", "hash_ids: {...} is no list of ids");
  row(R"({"input_length": 5, "hash_ids": [[1]]})", "hash_ids[0]: [...] is no id");
  row(R"({"input_length": 513, "hash_ids": [1, 0.5]})", "hash_ids[1]: 0.5 is no id");
  row(R"({"input_length": 5, "hash_ids": [18446744073709551616]})",
      "hash_ids[0]: 18446744073709551616 is no id");
  row(R"({"input_length": 5, "hash_ids": []})",
      "hash_ids: not the 1 id that 5 tokens have, one for each started block of 512");
  row(R"({"input_length": 5, "hash_ids": [1], "name": 1e999)", "1e999 is beyond a 64-bit number");

  refused(nul, "1: neither a JSON object nor a CSV header: no column input_length");
  refused("input_length,cached_prefix,input_length\n5,4,5\n",
          "1: neither a JSON object nor a CSV header: more than one column input_length");
  refused("input_length,cached_prefix\n5,4,3\n", "2: 3 columns where the header has 2");
  for (const std::string& value :
       {std::string(), std::string(" 5"), std::string("+5"), std::string("\"5\""),
        std::string("5.0"), std::string("-5"), std::string("2147483648"),
        std::string("99999999999999999999")}) {
    refused("cached_prefix,input_length\n4," + value + "\n",
            "2: input_length: \"" + value + "\"" + tokens);
  }
  refused("input_length,cached_prefix\n5,4" + nul + "\n",
          "2: cached_prefix: \"4 \" is no number of tokens in [0, 4]");
}

TEST_F(ToolReplay, LongLinesAreReadOrRefused) {
  const std::string row = R"({"input_length": 5, "hash_ids": [1], "name": ")";
  write("trace", row + std::string(100000000, 'x') + "\"}");
  EXPECT_EQ(replay_json("trace").value("steps", 0), 1);
  write("trace", row + std::string((std::size_t{1} << 27) + 1, 'x') + "\"}");
  expect_refused("trace --json out.json", "trace:1: longer than 134217728 bytes");
  write("trace", "input_length,cached_prefix\n" + std::string(100000000, ','));
  expect_refused("trace --json out.json", "trace:2: 100,000,001 columns where the header has 2");
  expect_refused("/dev/zero", "/dev/zero:1: longer than 134217728 bytes");
}

// Times are not looked at; ids may come again in a request; line ends and the last are as they are.
TEST_F(ToolReplay, TakesWhatIsOddButClear) {
  write("trace.jsonl",
        "\n\r\n{\"timestamp\": 9, \"input_length\": 1025, \"hash_ids\": [7, 7, 7]}\r\n"
        "{\"timestamp\": 1, \"more\": [{\"hash_ids\": null}], \"input_length\": 1025, "
        "\"hash_ids\": [7, 7, 7]}\n\n"
        "{\"hash_ids\": [-9223372036854775808], \"input_length\": 1}");
  const Json ids = replay_json("trace.jsonl");
  EXPECT_EQ(ids.value("requests", 0), 3);
  EXPECT_EQ(ids.value("tokens", 0), 1024);
  write("trace.csv",
        "\xEF\xBB\xBF"
        "cached_prefix,x,input_length\r\n4,,5\r\n2147483646,,2147483647");
  const Json lengths = replay_json(
      "trace.csv --steps 1 --batch-size 1 --page-size 2147483647 --cache-pages 2147483647 "
      "--index-type int64");
  EXPECT_EQ(lengths.value("tokens", 0), 4);
  for (const char* nothing : {"", "\n", "\r\n\n", "input_length,cached_prefix"}) {
    write("trace", nothing);
    const Json none = replay_json("trace --steps 9223372036854775807 --batch-size 1048576");
    EXPECT_EQ(none.value("steps", -1), 0);
    EXPECT_EQ(none.value("interrupted", true), false);
  }
}

TEST_F(ToolReplay, RefusesWhatMemoryCannotHold) {
  write("trace.csv", "input_length,cached_prefix\n9,1\n2147483647,2147483646\n");
  const auto refused = [&](const std::string& arguments, const std::string& words) {
    expect_too_large(replay("trace.csv --json out.json " + arguments), words);
    EXPECT_EQ(files(), std::set<std::string>{"trace.csv"});
  };
  refused("--page-size 1 --cache-pages 2147483647 --index-type int64",
          "trace.csv:3: --cache-pages: 2,147,483,647 pages of 1 token need 274.9 GB of memory");
  refused("--page-size 2000000 --index-type int64 --batch-size 2 --chunk-capacity 2",
          "prefix_lens: 2147483647 tokens of 2 sequences in 2147483646 loops need ");
}

TEST_F(ToolReplay, RefusesBadOptions) {
  write("trace.jsonl", three_requests);
  expect_refused("", "TRACE: missing");
  expect_refused("none.jsonl", "none.jsonl: cannot be read: No such file or directory");
  expect_refused(".", ".: is a folder");
  expect_refused("trace.jsonl --batch-size 0", "--batch-size: \"0\" is not a positive integer");
  expect_refused("trace.jsonl --steps many", "--steps: \"many\" is not a positive integer");
  expect_refused("trace.jsonl --page-size 3000000000",
                 "--page-size: 3000000000 is above 2147483647");
  expect_refused("trace.jsonl --page-size 4096",
                 "--cache-pages: 1048576 pages of 4,096 tokens reach slot 4294967295, int32 slots "
                 "end at 2147483647; use --index-type int64");
  expect_refused("trace.jsonl --json trace.jsonl", "--json: trace.jsonl is the trace itself");
  expect_refused("trace.jsonl --svg trace.jsonl", "--svg: trace.jsonl is the trace itself");
  expect_refused("trace.jsonl --json out --svg out", "--svg: out is where --json goes");
  expect_refused("trace.jsonl --json - --svg -", "--svg: - is where --json goes");
  expect_refused("trace.jsonl --policy fair", "--policy: \"fair\" is neither equal nor packed");
  expect_refused("trace.jsonl --policy both",
                 "--policy: a replay builds one, equal or packed, and counts the loops of both");
  expect_refused("trace.jsonl other",
                 "other: unexpected argument, one trace is replayed at a time");
  expect_refused("trace.jsonl --batch-size 3 --chunk-capacity 2",
                 "chunk_capacity: 2 tokens cannot be split equally among 3 sequences (batch_size)");
  expect_refused("trace.jsonl --grain 2", "--grain: 2 belongs to --policy packed");
  expect_refused("trace.jsonl --policy packed --grain 32769",
                 "grain: 32769 is beyond chunk_capacity 32768");
  for (const char* value : {"-1", "+1", "1e3", "' 1'", "0x10", "99999999999999999999"}) {
    const std::string typed =
        value[0] == '\'' ? std::string(value + 1, std::strlen(value) - 2) : value;
    for (const std::string option : {"--steps", "--batch-size", "--chunk-capacity", "--page-size",
                                     "--cache-pages", "--grain"}) {
      expect_refused("trace.jsonl " + option + "=" + value,
                     option + ": \"" + typed + "\" is not a positive integer");
    }
  }
  expect_refused("trace.jsonl --batch-size 1048577", "--batch-size: 1048577 is above 1048576");
  expect_refused("trace.jsonl --chunk-capacity 2147483648",
                 "--chunk-capacity: 2147483648 is above 2147483647");
  expect_refused("trace.jsonl --cache-pages 2147483648",
                 "--cache-pages: 2147483648 is above 2147483647");
  expect_refused("-- trace.jsonl --verify",
                 "--verify: unexpected argument, one trace is replayed at a time");
  EXPECT_EQ(replay("-- trace.jsonl").status, 0);
  expect_refused("''", "TRACE: the file name is empty");
  expect_refused("trace.jsonl/x", "trace.jsonl/x: cannot be read: Not a directory");
  const std::string name(300, 'a');
  expect_refused(name, name + ": cannot be read: File name too long");
  ASSERT_EQ(shell("ln -s trace.jsonl link; ln trace.jsonl hard").status, 0);
  expect_refused("trace.jsonl --json link", "--json: link is the trace itself");
  expect_refused("link --svg hard", "--svg: hard is the trace itself");
}

// Three sequences in loops of two tokens: an equal split has none to give each.
TEST_F(ToolReplay, PackedGoesOnWhereAnEqualSplitCannot) {
  write("trace.csv", "input_length,cached_prefix\n9,4\n9,0\n9,1\n9,8\n");
  const std::string arguments = "trace.csv --batch-size 3 --chunk-capacity 2 --policy packed ";
  const Json got = replay_json(arguments);
  EXPECT_EQ(got.value("steps", 0), 2);
  EXPECT_EQ(got.value("loops_packed", 0), 3 + 4);
  EXPECT_EQ(got.value("most_loops_packed", 0), 4);
  EXPECT_EQ(got["loops_equal"], Json());
  EXPECT_EQ(got["most_loops_equal"], Json());
  const std::string text = replay(arguments).out;
  for (const char* line : {"loops                            -           7\n",
                           "  a step, mean                   -        3.50\n",
                           "  a step, most                   -           4\n",
                           "equal: 2 tokens cannot be split equally among 3 sequences\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  }
  const std::string svg = replay(arguments + "--svg -").out;
  expect_picture(svg);
  EXPECT_NE(svg.find(">equal: none, 2 tokens cannot be split equally among 3 sequences<"),
            std::string::npos);
  EXPECT_EQ(svg.find("class=\"line equal\""), std::string::npos);
  // One sequence in a step can be.
  EXPECT_EQ(replay_json("trace.csv --batch-size 2 --chunk-capacity 2 --policy packed")
                .value("loops_equal", 0),
            4 + 8);
}

/// Where the lines of a policy in a replay's picture go: first those of the steps, then those of
/// the distribution.
std::vector<std::vector<double>> lines(const std::string& svg, const std::string& policy) {
  std::vector<std::vector<double>> lines;
  const std::string begin = "<path class=\"line " + policy + "\" d=\"";
  for (std::size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at + 1)) {
    const std::size_t path = at + begin.size();
    lines.push_back(numbers(svg.substr(path, svg.find('"', path) - path), "([0-9.]+)"));
  }
  lines.erase(lines.begin());  // the legend's
  return lines;
}

// As above: loops 4 and 2, packed 2 and 2.
TEST_F(ToolReplay, SvgShowsTheLoopsOfEachStepAndTheirDistribution) {
  write("trace.jsonl", three_requests);
  const std::string arguments = "trace.jsonl --batch-size 2 --chunk-capacity 600 ";
  const std::string svg = replay(arguments + "--svg -").out;
  expect_picture(svg);
  for (const char* words :
       {">trace.jsonl: 2 steps of up to 2 requests, 3 requests<",
        ">equal: 6 loops, 3.00 a step on average, 4 at most<",
        ">packed: 4 loops, 2.00 a step on average, 2 at most<", ">Loops of each step<", ">step<",
        ">Share of the steps with at most so many loops<", ">loops of a step<"}) {
    EXPECT_NE(svg.find(words), std::string::npos) << words;
  }
  const auto equal = lines(svg, "equal"), packed = lines(svg, "packed");
  ASSERT_EQ(equal.size(), 2u);
  ASSERT_EQ(packed.size(), 2u);
  // x, y, x of the first step, then of the second: 4 loops and 2 are as far apart as 2 and none.
  ASSERT_EQ(equal[0].size(), 6u);
  EXPECT_DOUBLE_EQ(equal[0][2] - equal[0][0], equal[0][5] - equal[0][3]);
  EXPECT_GT(equal[0][4], equal[0][1]);
  EXPECT_EQ(packed[0][1], equal[0][4]);
  EXPECT_EQ(packed[0][4], equal[0][4]);
  // From (0, none) to 2 loops and half of the steps, to 4 loops and all of them.
  ASSERT_EQ(equal[1].size(), 7u);
  EXPECT_DOUBLE_EQ(equal[1][4] - equal[1][2], equal[1][2] - equal[1][0]);
  EXPECT_DOUBLE_EQ(equal[1][3] - equal[1][5], equal[1][1] - equal[1][3]);
  EXPECT_GT(equal[1][1], equal[1][3]);
  ASSERT_EQ(packed[1].size(), 5u);
  EXPECT_EQ(packed[1][2], equal[1][2]);
  EXPECT_EQ(packed[1][3], equal[1][5]);

  const Outcome outcome = replay(arguments + "--json out.json --svg out.svg");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out + outcome.err, "");
  EXPECT_EQ(read("out.svg"), svg);
  EXPECT_EQ(Json::parse(read("out.json"), nullptr, false).value("loops_equal", 0), 6);
  EXPECT_NE(
      replay(arguments + "--policy packed --grain 64 --svg -").out.find(">packed, grain 64: "),
      std::string::npos);
}

// Steps of 1 and 3 loops in turn.
TEST_F(ToolReplay, SvgOfManyStepsIsNoLonger) {
  std::string trace = "input_length,cached_prefix\n";
  for (int k = 0; k < 1000; ++k) trace += "99,8\n99,24\n";
  write("trace.csv", trace);
  const std::string svg = replay("trace.csv --batch-size 1 --chunk-capacity 8 --svg -").out;
  expect_picture(svg);
  EXPECT_NE(
      svg.find(">line: mean of 8 neighbouring steps; shade: from the fewest to the most loops "
               "of one<"),
      std::string::npos);
  for (const std::string policy : {"equal", "packed"}) {
    EXPECT_NE(svg.find(">" + policy + ": 4,000 loops, 2.00 a step on average, 3 at most<"),
              std::string::npos);
    const auto line = lines(svg, policy).at(0);
    ASSERT_EQ(line.size(), 3u * 2000 / 8);
    const std::string column = "<path class=\"band " + policy + "\" d=\"M[0-9.]+ ";
    const double least = numbers(svg, column + "([0-9.]+)").at(0);
    const double most = numbers(svg, column + "[0-9.]+H[0-9.]+V([0-9.]+)").at(0);
    EXPECT_LT(most, least);
    for (std::size_t k = 1; k < line.size(); k += 3) {
      ASSERT_NEAR(line[k], (least + most) / 2, 0.1) << k;
    }
  }
}

TEST_F(ToolReplay, SvgTellsAWideDistributionOnALogarithmicScale) {
  write("trace.csv", "input_length,cached_prefix\n9,0\n9,1\n99999,9999\n");
  const std::string svg = replay("trace.csv --batch-size 1 --chunk-capacity 1 --svg -").out;
  expect_picture(svg);
  EXPECT_NE(svg.find(">loops of a step, logarithmic<"), std::string::npos);
  const auto line = lines(svg, "equal").at(1);
  ASSERT_EQ(line.size(), 9u);  // x0 y0, then at 0, 1 and 9,999 loops, then the end
  EXPECT_EQ(line[2], line[0]);
  EXPECT_NEAR((line[6] - line[0]) / (line[4] - line[0]), std::log(10000) / std::log(2), 0.1);
}

TEST_F(ToolReplay, SvgOfAnyTraceName) {
  ASSERT_EQ(shell("touch 'a<&b>é\xff.csv'").status, 0);
  const Outcome outcome = replay("a* --svg -");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  expect_picture(outcome.out);
  EXPECT_NE(outcome.out.find(">No steps<"), std::string::npos);
  EXPECT_NE(
      outcome.out.find(">a&lt;&amp;b&gt;é\uFFFD.csv: 0 steps of up to 16 requests, 0 requests<"),
      std::string::npos)
      << outcome.out;
}

TEST_F(ToolReplay, FailuresLeaveNoPicture) {
  write("trace.jsonl", three_requests);
  expect_refused("trace.jsonl --svg nowhere/out",
                 "nowhere/out: cannot be written: No such file or directory");
  expect_refused("trace.jsonl --json out.json --svg /dev/full",
                 "/dev/full: cannot be written: No space left on device");
  write("bad.jsonl", std::string(three_requests) + "{}\n");
  expect_refused("bad.jsonl --svg out.svg", "bad.jsonl:4: no key input_length");
  write("out.svg", "old");
  expect_refused("bad.jsonl --svg out.svg", "bad.jsonl:4: no key input_length");
  EXPECT_EQ(read("out.svg"), "old");
}

TEST_F(ToolReplay, ClosedAndFullOutputsAreErrors) {
  write("trace.jsonl", three_requests);
  const Outcome outcome = shell(
      "{ sleep 0.5; \"$TOOL\" replay trace.jsonl --json - --svg out.svg; echo $? >../status; } | "
      "true; cat ../status");
  EXPECT_EQ(outcome.out, "2\n");
  EXPECT_EQ(outcome.err, "chunked_prefill: standard output: cannot be written: Broken pipe\n");
  EXPECT_EQ(files(), std::set<std::string>{"trace.jsonl"});
  expect_refused("trace.jsonl >/dev/full",
                 "standard output: cannot be written: No space left on device");
  expect_refused("trace.jsonl >&-", "standard output: cannot be written: Bad file descriptor");
  expect_refused("trace.jsonl --json .", ".: cannot be written: Is a directory");
  expect_refused("trace.jsonl --json trace.jsonl/x",
                 "trace.jsonl/x: cannot be written: Not a directory");
}

// A pipe whose other end is slow to write.
TEST_F(ToolReplay, InterruptEndsTheWaitForAPipe) {
  const Outcome outcome = shell(
      "mkfifo pipe; { printf 'input_length,cached_prefix\\n9,8\\n'; exec sleep 10; } >pipe & "
      "writer=$!; \"$TOOL\" replay pipe --batch-size 1 --json out.json & tool=$!; sleep 2; "
      "kill -INT $tool; wait $tool; status=$?; kill $writer; exit $status");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const Json got = Json::parse(read("out.json"), nullptr, false);
  EXPECT_EQ(got.value("interrupted", false), true);
  EXPECT_EQ(got.value("steps", 0), 1);
  EXPECT_EQ(files(), (std::set<std::string>{"out.json", "pipe"}));
}

TEST_F(ToolReplay, TerminationLeavesNothing) {
  std::string trace = "input_length,cached_prefix\n";
  for (int k = 0; k < 2000000; ++k) trace += "9,8\n";
  write("trace.csv", trace);
  const Outcome outcome = shell(
      "\"$TOOL\" replay trace.csv --batch-size 1 --json out.json --svg out.svg & sleep 0.5; "
      "kill -TERM $!; wait $!");
  EXPECT_EQ(outcome.status, 128 + 15);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(files(), std::set<std::string>{"trace.csv"});
}

TEST_F(ToolReplay, InterruptLeavesAPartialReport) {
  std::string trace = "input_length,cached_prefix\n";
  for (int k = 0; k < 2000000; ++k) trace += "9,8\n";
  write("trace.csv", trace);
  const Outcome outcome = shell(
      "\"$TOOL\" replay trace.csv --batch-size 1 --json out.json --svg out.svg & sleep 1; "
      "kill -INT $!; wait $!");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const Json got = Json::parse(read("out.json"), nullptr, false);
  ASSERT_TRUE(got.is_object());
  EXPECT_EQ(got.value("interrupted", false), true);
  EXPECT_GT(got.value("steps", 0), 0);
  EXPECT_LT(got.value("steps", 0), 2000000);
  EXPECT_EQ(got.value("steps", 0), got.value("loops_equal", 0));
  expect_picture(read("out.svg"));
  EXPECT_NE(read("out.svg").find(">trace.csv, interrupted: "), std::string::npos);
}

// The published CSV says which prefixes a cache that never evicts has.
TEST_F(ToolReplay, PublicTraces) {
  const char* const folder = std::getenv("CHUNKED_PREFILL_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "CHUNKED_PREFILL_TRACES names no folder of public traces";
  const std::string trace = std::string(folder) + "/mooncake_conversation_4000";
  for (const std::string end : {".jsonl", ".prefix.csv"}) {
    const Json got = replay_json("'" + trace + end + "' --batch-size 64 --policy packed");
    EXPECT_EQ(got.value("tokens", 0), 17647197);
    EXPECT_EQ(got.value("steps", 0), 63);
    EXPECT_EQ(got.value("verified_steps", 0), 63);
    EXPECT_EQ(got.value("loops_equal", 0), 6881);
    EXPECT_EQ(got.value("loops_packed", 0), 567);
  }
}

}  // namespace
