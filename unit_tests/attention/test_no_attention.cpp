// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <string>

#include "../tool.hpp"

// The tool of a build without the attention component.

namespace {

using test::Tool;

TEST_F(Tool, AttendSaysThatThisBuildHasNoAttention) {
  write("batch.json", R"({"prefix_lens": [5], "page_size": 4})");
  for (const std::string arguments : {"", "batch.json", "batch.json --svg out.svg --heads x"}) {
    expect_refused(shell("\"$TOOL\" attend " + arguments),
                   "attend: this build has no attention component, which needs Kokkos Kernels");
  }
  EXPECT_EQ(shell("\"$TOOL\" attend --help").status, 0);
}

}  // namespace
