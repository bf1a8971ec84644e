// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "batch.hpp"
#include "execution_spaces.hpp"

// Vectors recorded from the PyTorch and Triton module that this library's terms come from.

namespace {

struct GoldenCase {
  test::Batch batch;
  test::Result expected;
};

std::vector<GoldenCase> golden_cases() {
  std::ifstream file(CHUNKED_PREFILL_TEST_DATA "/golden.json");
  const auto json = nlohmann::json::parse(file);
  std::vector<GoldenCase> cases;
  for (const auto& entry : json) {
    GoldenCase golden;
    entry.at("prefix_lens").get_to(golden.batch.prefix_lens);
    entry.at("chunk_capacity").get_to(golden.batch.chunk_capacity);
    entry.at("page_size").get_to(golden.batch.page_size);
    entry.at("req_to_page").get_to(golden.batch.req_to_page);
    entry.at("req_pool_indices").get_to(golden.batch.req_pool_indices);
    entry.at("starts").get_to(golden.expected.starts);
    entry.at("ends").get_to(golden.expected.ends);
    entry.at("len_in_chunk").get_to(golden.expected.len_in_chunk);
    entry.at("cum_seq_lens").get_to(golden.expected.cum_seq_lens);
    entry.at("max_chunk_len_per_loop").get_to(golden.expected.max_chunk_len_per_loop);
    entry.at("chunk_kv_indices").get_to(golden.expected.chunk_kv_indices);
    cases.push_back(std::move(golden));
  }
  return cases;
}

template <class Space>
class Golden : public ::testing::Test {};
TYPED_TEST_SUITE(Golden, test::ExecutionSpaces, test::SpaceName);

TYPED_TEST(Golden, EqualBitForBit) {
  const auto cases = golden_cases();
  ASSERT_EQ(cases.size(), 47u);
  for (std::size_t k = 0; k < cases.size(); ++k) {
    SCOPED_TRACE("case " + std::to_string(k));
    const auto& [batch, expected] = cases[k];
    EXPECT_EQ((test::build<TypeParam>(batch)), expected);
    EXPECT_EQ((test::build<TypeParam, std::int64_t, std::int64_t, std::int64_t>(batch, 5)),
              expected);
  }
}

TYPED_TEST(Golden, OracleAgrees) {
  for (const auto& [batch, expected] : golden_cases()) EXPECT_EQ(test::oracle(batch), expected);
}

}  // namespace
