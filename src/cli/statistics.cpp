// SPDX-License-Identifier: MIT
#include "statistics.hpp"

#include <algorithm>
#include <bit>

namespace chunked_prefill::cli {

std::size_t Distribution::step_of(std::int64_t number) {
  const auto n = static_cast<std::uint64_t>(std::max<std::int64_t>(number, 0));
  const int cut = std::max(0, static_cast<int>(std::bit_width(n)) - exact_digits);
  return static_cast<std::size_t>(cut) * steps_per_digit + (n >> cut);
}

std::int64_t Distribution::last_of(std::size_t step) {
  const std::size_t cut = step < 2 * steps_per_digit ? 0 : step / steps_per_digit - 1;
  const auto leading = static_cast<std::int64_t>(step - cut * steps_per_digit);
  return (leading << cut) + ((std::int64_t{1} << cut) - 1);
}

void Distribution::add(std::int64_t number) {
  ++m_counts[step_of(number)];
  ++m_count;
}

std::int64_t Distribution::quantile(double q) const {
  for (const auto& [number, share] : cumulative()) {
    if (share >= q) return number;
  }
  return 0;
}

std::vector<std::pair<std::int64_t, double>> Distribution::cumulative() const {
  std::vector<std::pair<std::int64_t, double>> shares;
  std::int64_t seen = 0;
  for (std::size_t step = 0; step < m_counts.size(); ++step) {
    if (m_counts[step] == 0) continue;
    seen += m_counts[step];
    shares.emplace_back(last_of(step), static_cast<double>(seen) / static_cast<double>(m_count));
  }
  return shares;
}

void Columns::Column::add(const Column& other) {
  count += other.count;
  total += other.total;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

void Columns::add(std::int64_t number) {
  if (m_columns.empty() || m_columns.back().count == m_column_size) {
    if (m_columns.size() == most_columns) {
      for (std::size_t k = 0; k < most_columns / 2; ++k) {
        Column pair = m_columns[2 * k];
        pair.add(m_columns[2 * k + 1]);
        m_columns[k] = pair;
      }
      m_columns.resize(most_columns / 2);
      m_column_size *= 2;
    }
    m_columns.emplace_back();
  }
  m_columns.back().add({.count = 1, .total = number, .least = number, .most = number});
}

}  // namespace chunked_prefill::cli
