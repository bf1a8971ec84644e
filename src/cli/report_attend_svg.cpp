// SPDX-License-Identifier: MIT
#include "report_attend_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "report_attend.hpp"
#include "svg.hpp"
#include "text.hpp"

namespace chunked_prefill::cli {
namespace {

/// Seconds from 0 on along a line of whole units: those that leave the most at 10 or more.
class SecondsAxis {
 public:
  SecondsAxis(double begin, double length, double most)
      : m_begin(begin), m_length(length), m_most(most) {
    for (const auto& [unit, name] : {Unit{1e-3, "milliseconds"}, Unit{1, "seconds"}}) {
      if (most >= 10 * unit) m_unit = {unit, name};
    }
  }

  [[nodiscard]] double at(double seconds) const { return m_begin + length(seconds); }
  [[nodiscard]] double length(double seconds) const { return m_length * seconds / m_most; }
  [[nodiscard]] std::string_view unit() const { return m_unit.name; }
  /// Whole units at which there is a label, one of `room` pixels.
  [[nodiscard]] std::vector<std::int64_t> ticks(double room) const {
    const std::size_t step = label_step(length(m_unit.seconds), room);
    std::vector<std::int64_t> ticks;
    for (std::size_t tick = 0; seconds(static_cast<std::int64_t>(tick)) <= m_most; tick += step) {
      ticks.push_back(static_cast<std::int64_t>(tick));
    }
    return ticks;
  }
  [[nodiscard]] double seconds(std::int64_t tick) const {
    return static_cast<double>(tick) * m_unit.seconds;
  }

 private:
  struct Unit {
    double seconds;
    std::string_view name;
  };
  double m_begin, m_length, m_most;
  Unit m_unit{1e-6, "microseconds"};
};

class Picture {
 public:
  Picture(const Batch& batch, const AttendArguments& arguments, const Attended& attended,
          Output& output)
      : m_batch(batch),
        m_arguments(arguments),
        m_attended(attended),
        m_policies(drawn(attended)),
        m_axis(left, plot_width, most_seconds(m_policies)),
        m_bottom(top + static_cast<double>(stage_count + 1) * row_height()),
        m_svg(output, left + plot_width + 110, m_bottom + 58, "Time of each stage of attention") {}

  void draw() {
    double y = 53;
    for (const std::string& line : attend_heading(m_batch, m_arguments, m_attended, 64)) {
      m_svg.text("muted", 20, y, line);
      y += 18;
    }
    legend();
    grid();
    for (std::size_t stage = 0; stage < stage_count; ++stage) {
      row(stage, "", stage_names[stage],
          [&](const AttendedPolicy& policy) { return policy.seconds[stage]; });
    }
    row(stage_count, "heading", "all stages",
        [](const AttendedPolicy& policy) { return total(policy.seconds); });
    m_svg.finish();
  }

 private:
  static constexpr double left = 130, top = 172, plot_width = 640, bar = 15, gap = 16;

  static std::vector<const AttendedPolicy*> drawn(const Attended& attended) {
    std::vector<const AttendedPolicy*> drawn;
    for (const AttendedPolicy* policy : attended.policies()) {
      if (policy->refused.empty()) drawn.push_back(policy);
    }
    return drawn;
  }
  static double most_seconds(const std::vector<const AttendedPolicy*>& policies) {
    double most = 1e-6;
    for (const AttendedPolicy* policy : policies) most = std::max(most, total(policy->seconds));
    return most;
  }
  [[nodiscard]] double row_height() const {
    return bar * static_cast<double>(m_policies.size()) + gap;
  }

  void legend() {
    double y = 121;
    for (const AttendedPolicy* policy : m_attended.policies()) {
      if (!policy->refused.empty()) {
        m_svg.text("muted", 20, y, fmt::format("equal: none, {}", policy->refused));
      } else {
        m_svg.put("<rect class=\"bar {}\" x=\"20\" y=\"{:.0f}\" width=\"36\" height=\"11\"/>\n",
                  name(policy->policy), y - 10);
        m_svg.text("", 66, y,
                   fmt::format("{}: {}, largest difference from unchunked attention {:.1e} of the "
                               "largest value",
                               policy_label(m_arguments, *policy), counted(policy->loops, "loop"),
                               policy->difference));
      }
      y += 19;
    }
  }

  void grid() {
    for (const std::int64_t tick : m_axis.ticks(60)) {
      const double x = m_axis.at(m_axis.seconds(tick));
      m_svg.put("<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", x, top, m_bottom + 5);
      m_svg.text("middle", x, m_bottom + 19, grouped(tick));
    }
    m_svg.text("muted middle", left + plot_width / 2, m_bottom + 40,
               fmt::format("time, {}", m_axis.unit()));
    m_svg.text("muted end", left - 12, top - 8, "stage");
  }

  /// A stage's bars, each with its time behind it.
  template <class Seconds>
  void row(std::size_t place, std::string_view style_class, std::string_view words,
           const Seconds& seconds) {
    double y = top + gap / 2 + static_cast<double>(place) * row_height();
    m_svg.text(fmt::format("end {}", style_class), left - 12,
               y + bar * static_cast<double>(m_policies.size()) / 2 + 4, words);
    for (const AttendedPolicy* policy : m_policies) {
      const double of_policy = seconds(*policy);
      m_svg.put(
          "<rect class=\"bar {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>\n",
          name(policy->policy), left, y, std::max(m_axis.length(of_policy), 1.), bar - 1);
      m_svg.text("", m_axis.at(of_policy) + 7, y + bar - 4, seconds_words(of_policy));
      y += bar;
    }
  }

  const Batch& m_batch;
  const AttendArguments& m_arguments;
  const Attended& m_attended;
  std::vector<const AttendedPolicy*> m_policies;
  SecondsAxis m_axis;
  double m_bottom;
  Svg m_svg;
};

}  // namespace

void report_attend_svg(const Batch& batch, const AttendArguments& arguments,
                       const Attended& attended, Output& output) {
  Picture(batch, arguments, attended, output).draw();
}

}  // namespace chunked_prefill::cli
