// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace chunked_prefill::cli {

// Numbers that come one after another, in as much memory however many they are.

/// How often numbers from 0 on occurred: exactly below 256, above in steps of less than 1 %.
class Distribution {
 public:
  void add(std::int64_t number);
  /// The least number that a share `q` of all does not exceed, in whole steps; 0 where there are
  /// none.
  [[nodiscard]] std::int64_t quantile(double q) const;
  /// Each step that occurred, as the greatest number in it and the share of all that does not
  /// exceed it.
  [[nodiscard]] std::vector<std::pair<std::int64_t, double>> cumulative() const;

 private:
  // Numbers of as many digits share their leading eight: 128 steps for every further digit.
  static constexpr int exact_digits = 8;
  static constexpr std::size_t steps_per_digit = 1 << (exact_digits - 1);
  [[nodiscard]] static std::size_t step_of(std::int64_t number);
  [[nodiscard]] static std::int64_t last_of(std::size_t step);

  std::array<std::int64_t, (63 - exact_digits + 2) * steps_per_digit> m_counts{};
  std::int64_t m_count = 0;
};

/// Numbers in their order. Neighbours share a column, as many in each but the last; twice as many
/// whenever the columns are full.
class Columns {
 public:
  static constexpr std::size_t most_columns = 400;

  struct Column {
    std::int64_t count = 0;
    std::int64_t total = 0;
    std::int64_t least = INT64_MAX;
    std::int64_t most = 0;

    void add(const Column& other);
    [[nodiscard]] double mean() const {
      return static_cast<double>(total) / static_cast<double>(count);
    }
  };

  void add(std::int64_t number);
  [[nodiscard]] const std::vector<Column>& columns() const { return m_columns; }
  /// Numbers of a column, but for the last.
  [[nodiscard]] std::int64_t column_size() const { return m_column_size; }

 private:
  std::vector<Column> m_columns;
  std::int64_t m_column_size = 1;
};

}  // namespace chunked_prefill::cli
