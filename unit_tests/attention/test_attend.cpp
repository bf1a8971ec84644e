// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "../tool.hpp"

namespace {

using test::expect_picture;
using test::Json;
using test::line_widths;
using test::numbers;
using test::Outcome;

const Json four_sequences = {
    {"prefix_lens", {256, 512, 768, 1024}}, {"page_size", 64}, {"chunk_capacity", 1024}};
const std::string small = " --latent-dim 32 --nope-dim 16 --rope-dim 8 --value-dim 12 ";
const std::vector<std::string> stages{"plan_and_fill", "gather", "up_project", "attend", "merge"};

class ToolAttend : public test::Tool {
 protected:
  void SetUp() override {
    Tool::SetUp();
    write("batch.json", four_sequences.dump());
  }
  [[nodiscard]] Outcome attend(const std::string& arguments) const {
    return shell("\"$TOOL\" attend " + arguments);
  }
  [[nodiscard]] Json attend_json(const Json& batch, const std::string& arguments = "",
                                 const std::string& sizes = small) const {
    write("batch.json", batch.dump());
    const Outcome outcome = attend("batch.json --json -" + sizes + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return Json::parse(outcome.out, nullptr, false);
  }
};

void expect_attention(const Json& policy, int loops) {
  EXPECT_EQ(policy.value("loops", -1), loops);
  EXPECT_GT(policy.value("difference", 0.), 0.);  // float arithmetic is not double
  EXPECT_LT(policy.value("difference", 1.), 1e-5);
  EXPECT_LT(policy.value("lse_difference", 1.), 1e-5);
  EXPECT_EQ(policy["seconds"].size(), stages.size());
  for (const std::string& stage : stages) EXPECT_GT(policy["seconds"].value(stage, 0.), 0.);
}

TEST_F(ToolAttend, IsUnchunkedAttentionOnEveryExecutionSpaceAndCache) {
  const std::vector<std::pair<std::string, int>> types{
      {"fp32", 4}, {"bf16", 2}, {"fp16", 2}, {"fp8", 1}};
  for (const std::string& space : execution_spaces()) {
    for (const auto& [type, bytes] : types) {
      SCOPED_TRACE(space + " " + type);
      const Json got = attend_json(
          four_sequences, "--new-tokens 3 --cache-type " + type + " --execution-space " + space);
      EXPECT_EQ(got.value("execution_space", ""), space);
      EXPECT_EQ(got.value("cache_type", ""), type);
      EXPECT_EQ(got.value("tokens", 0), 2560);
      EXPECT_EQ(got.value("query_tokens", 0), 12);
      EXPECT_EQ(got.value("query_heads", 0), 48);
      EXPECT_EQ(got.value("query_heads_compared", 0), 48);
      EXPECT_EQ(got.value("tolerance", 0.), 1e-5);
      EXPECT_EQ(got.value("cache_bytes", 0), 2560 * 40 * bytes);
      EXPECT_EQ(got.value("workspace_bytes", 0), 4 * (1024 * (40 + 4 * 28) + 48 * 13));
      expect_attention(got["equal"], 4);
      expect_attention(got["packed"], 3);
    }
  }
}

// The default sizes: 4 heads of DeepSeek V3.
TEST_F(ToolAttend, Table) {
  write("batch.json", R"({"prefix_lens": [20, 0, 33], "page_size": 16, "chunk_capacity": 12})");
  const Outcome outcome = attend("batch.json --grain 4");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* line : {
           "batch.json: 3 sequences, 53 cached tokens, page_size 16\n"
           "3 new tokens, 4 heads of 128 + 64, values of 128\n"
           "chunk_capacity 12, cached rows of 512 + 64 in fp32, ",
           "\n                              equal     packed/4\n"
           "loops                             9            5\n"
           "  plan and fill        ",
           "\nworkspace                                83.0 kB\n"
           "cache                                   149.8 kB\n"
           "new tokens x heads                            12\n"
           "  compared                                    12\n"
           "tolerance                                  1e-05\n",
       }) {
    EXPECT_NE(outcome.out.find(line), std::string::npos) << line << "in\n" << outcome.out;
  }
  for (const char* name : {"gather", "up-project", "attend", "merge"}) {
    EXPECT_NE(outcome.out.find(std::string("\n  ") + name + "  "), std::string::npos) << name;
  }
  EXPECT_LE(std::ranges::max(line_widths(outcome.out)), 80u);
  const std::string help = attend("--help").out;
  EXPECT_LE(std::ranges::max(line_widths(help.substr(help.find("\nBATCH.json is")))), 80u);
}

TEST_F(ToolAttend, SameNumbersFromOneSeed) {
  const auto difference = [&](const std::string& seed) {
    const Json got = attend_json(four_sequences, "--execution-space Serial --seed " + seed);
    return std::pair(got["equal"].value("difference", 0.), got["packed"].value("difference", 0.));
  };
  const auto spaces = execution_spaces();
  if (std::ranges::count(spaces, "Serial") == 0) GTEST_SKIP() << "no Serial";
  EXPECT_EQ(difference("7"), difference("7"));
  EXPECT_NE(difference("7"), difference("8"));
}

TEST_F(ToolAttend, EqualSplitThatIsNotPossibleIsLeftOut) {
  const Json batch = {{"prefix_lens", {5, 9, 4}}, {"page_size", 4}, {"chunk_capacity", 2}};
  const Json got = attend_json(batch, "--svg out.svg");
  EXPECT_TRUE(got["equal"].is_null());
  expect_attention(got["packed"], 9);
  const std::string why = "equal: 2 tokens cannot be split equally among 3 sequences\n";
  const std::string text = attend("batch.json" + small).out;
  EXPECT_NE(text.find(why), std::string::npos) << text;
  EXPECT_NE(text.find("\nloops                             -            9\n"), std::string::npos);
  expect_picture(read("out.svg"));
  EXPECT_NE(
      read("out.svg").find(">equal: none, 2 tokens cannot be split equally among 3 sequences<"),
      std::string::npos);
  EXPECT_EQ(read("out.svg").find("class=\"bar equal\""), std::string::npos);
}

TEST_F(ToolAttend, NothingCachedAndNoSequences) {
  const Json none = attend_json({{"prefix_lens", {0, 0}}, {"page_size", 64}}, "--new-tokens 2");
  EXPECT_EQ(none["equal"].value("loops", -1), 0);
  EXPECT_EQ(none["packed"].value("loops", -1), 0);
  EXPECT_GT(none["packed"].value("difference", 0.), 0.);
  const Json empty =
      attend_json({{"prefix_lens", Json::array()}, {"page_size", 64}}, "--svg out.svg");
  EXPECT_EQ(empty.value("query_heads_compared", -1), 0);
  EXPECT_EQ(empty["equal"].value("difference", 1.), 0.);
  expect_picture(read("out.svg"));
}

// Sequences on common pages, a page far from the others, more new tokens than a loop has room for.
TEST_F(ToolAttend, PageTablesAsTheyCome) {
  const Json batch = {{"prefix_lens", {10, 7, 12}},
                      {"page_size", 4},
                      {"chunk_capacity", 6},
                      {"req_to_page", {{3, 1, 100, -9}, {-1, -1, -1, -1}, {3, 1, 5, 2}}},
                      {"req_pool_indices", {0, 2, 2}},
                      {"shard", {{"world_size", 1}, {"rank", 0}, {"interleave", 1}}}};
  const Json got = attend_json(batch, "--new-tokens 7 --cache-type bf16");
  EXPECT_EQ(got.value("cache_bytes", 0), (100 * 4 + 2) * 40 * 2);
  EXPECT_EQ(got.value("query_heads_compared", 0), 84);
  expect_attention(got["equal"], 6);
  expect_attention(got["packed"], 5);
}

// Each sequence at least once, and as much as the serial program does in about a second.
TEST_F(ToolAttend, LongBatchesAreComparedInPart) {
  std::vector<int> lens(64, 2000);
  lens[5] = 3;
  const Json got =
      attend_json({{"prefix_lens", lens}, {"page_size", 64}}, "--heads 8 --new-tokens 4",
                  " --latent-dim 4 --nope-dim 2 --rope-dim 2 --value-dim 2 ");
  EXPECT_EQ(got.value("query_heads", 0), 64 * 4 * 8);
  // 524,288 keys, one query and head to all sequences having 63 * 2,000 + 3 + 64 * 4.
  EXPECT_EQ(got.value("query_heads_compared", 0), 64 * 4);
  expect_attention(got["equal"], 4);
}

TEST_F(ToolAttend, Picture) {
  const Json got = attend_json(four_sequences, "--grain 64 --svg out.svg");
  const std::string svg = read("out.svg");
  expect_picture(svg);
  for (const char* words :
       {">Time of each stage of attention<", ">plan and fill<", ">up-project<", ">all stages<",
        ">stage<", ">equal: 4 loops, largest difference from unchunked attention ",
        ">packed/64: 3 loops, largest difference from unchunked attention ",
        ">batch.json: 4 sequences, 2,560 cached tokens, page_size 64<"}) {
    EXPECT_NE(svg.find(words), std::string::npos) << words;
  }
  EXPECT_TRUE(std::regex_search(svg, std::regex(">time, (micro|milli)?seconds<")));
  // One bar in the legend, one a stage, one of all: as long as the times are.
  for (const std::string policy : {"equal", "packed"}) {
    const auto widths = numbers(
        svg, "class=\"bar " + policy + "\" x=\"[0-9.]+\" y=\"[0-9.]+\" width=\"([0-9.]+)\"");
    ASSERT_EQ(widths.size(), 7u);
    double all = 0;
    for (const std::string& stage : stages) all += got[policy]["seconds"].value(stage, 0.);
    for (std::size_t k = 0; k < stages.size(); ++k) {
      const double share = got[policy]["seconds"].value(stages[k], 0.) / all;
      EXPECT_NEAR(widths[1 + k], std::max(1., share * widths[6]), 0.2) << stages[k];
    }
  }
}

TEST_F(ToolAttend, RefusesByName) {
  const std::string positive = " is not a positive integer";
  for (const std::string option : {"--new-tokens", "--heads", "--nope-dim", "--rope-dim",
                                   "--value-dim", "--latent-dim", "--seed", "--grain"}) {
    for (const std::string value : {"0", "-1", "4x", "1e3"}) {
      expect_refused(attend("batch.json --svg out.svg " + option + "=" + value),
                     option + ": \"" + value + "\"" + positive);
    }
    expect_refused(attend("batch.json " + option), option + ": needs one value, given once");
  }
  expect_refused(attend("batch.json --heads 1025"), "--heads: 1025 is above 1024");
  expect_refused(attend("batch.json --latent-dim 8193"), "--latent-dim: 8193 is above 8192");
  expect_refused(attend("batch.json --new-tokens 1048576 --heads 1024"),
                 "--new-tokens: 1048576 of 4 sequences with 1,024 heads are above 2147483647");
  expect_refused(attend("batch.json --cache-type fp64"),
                 "--cache-type: \"fp64\" is none of fp32, bf16, fp16, fp8");
  expect_refused(attend("batch.json --grain 1025 --json out.json"),
                 "grain: 1025 is beyond chunk_capacity 1024");
  const Outcome space = attend("batch.json --execution-space Abacus");
  EXPECT_EQ(space.status, 2);
  EXPECT_TRUE(space.err.starts_with(
      "chunked_prefill: --execution-space: \"Abacus\" is not built in; available: "));
  expect_refused(attend("batch.json --policy packed"), "--policy: unknown option");
  expect_refused(attend("batch.json more.json"),
                 "more.json: unexpected argument, one batch is attended to at a time");
  expect_refused(attend(""), "BATCH.json: missing, give a file or - for standard input");
  expect_refused(attend("''"), "BATCH.json: the file name is empty");
  expect_refused(attend("none.json"), "none.json: cannot be read: No such file or directory");
  expect_refused(attend("batch.json --svg batch.json"), "--svg: batch.json is the batch itself");
  expect_refused(attend("batch.json --json - --svg -"), "--svg: - is where --json goes");
  expect_refused(attend("batch.json --json out.json --svg nowhere/out"),
                 "nowhere/out: cannot be written: No such file or directory");
}

TEST_F(ToolAttend, RefusesBatches) {
  const auto with = [&](const std::string& key, const Json& value) {
    Json batch = four_sequences;
    batch[key] = value;
    write("batch.json", batch.dump());
  };
  with("shard", {{"world_size", 4}, {"rank", 1}, {"interleave", 2}});
  expect_refused(attend("batch.json"),
                 "shard: attention is to whole sequences, the batch has rank 1 of 4, interleave 2 "
                 "alone");
  with("pages", 1);
  EXPECT_NE(attend("batch.json").err.find("\"pages\": unknown key"), std::string::npos);
  write("batch.json", R"({"prefix_lens": [5], "page_size": 4,
                          "req_to_page": [[1, -2]], "req_pool_indices": [0]})");
  expect_refused(attend("batch.json"),
                 "req_to_page[0][1]: -2 is not a page id, and prefix_lens[0] covers it");
}

TEST_F(ToolAttend, RefusesWhatNeedsMoreMemoryThanThereIs) {
  const auto expect_too_large = [&](const Json& batch, const std::string& words) {
    write("batch.json", batch.dump());
    const Outcome outcome = attend("batch.json --svg out.svg");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_TRUE(outcome.err.starts_with("chunked_prefill: " + words)) << outcome.err;
    EXPECT_EQ(files(), std::set<std::string>{"batch.json"});
  };
  expect_too_large({{"prefix_lens", {5}},
                    {"page_size", 2000000000},
                    {"req_to_page", {{2000000000}}},
                    {"req_pool_indices", {0}}},
                   "prefix_lens: 4,000,000,000,000,000,005 slots of 2,304 bytes need ");
  expect_too_large({{"prefix_lens", {5}}, {"page_size", 64}, {"chunk_capacity", 2147483647}},
                   "chunk_capacity: 2,147,483,647 tokens a loop and 1 new token of 4 heads need "
                   "13743.9 GB of memory, ");
  expect_too_large({{"prefix_lens", std::vector<int>(1000, 1000000000)},
                    {"page_size", 1000000},
                    {"chunk_capacity", 2147483647}},
                   "prefix_lens: 1000000000000 tokens of 1000 sequences in 932 loops need ");
}

// A slot that is wrong is a row of another token.
TEST_F(ToolAttend, DifferenceAboveTheToleranceIsExitStatusOne) {
  if (spoilable_space().empty()) GTEST_SKIP() << "no host space, or Kokkos loads no tools";
  for (const std::string out : {"", " --json -", " --json out.json --svg out.svg"}) {
    const Outcome outcome = spoilt("chunk_kv_indices", 70, "attend batch.json" + small + out);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with(
        "chunked_prefill: policy equal: the values differ from unchunked attention by "))
        << outcome.err;
    EXPECT_TRUE(outcome.err.ends_with(" of the largest, above 1e-05\n")) << outcome.err;
    EXPECT_EQ(files(), std::set<std::string>{"batch.json"});
  }
}

}  // namespace
