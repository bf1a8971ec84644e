// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chunked_prefill/chunked_prefill.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ranges>
#include <span>
#include <string>
#include <vector>

namespace test {

/// The host's side of one allocation that all arrays of a check are cut out of, guard words on both
/// sides of each: what goes to the device before the builds, and what must come back. One copy
/// each way, and nothing outside the outputs can change unseen.
class Image {
 public:
  template <class T>
  struct Array {
    std::size_t at = 0, count = 0;  ///< bytes from the beginning; elements
  };

  void clear() {
    m_pieces.clear();
    m_end = 0;
  }
  /// Adds an array behind those there are, `words` guard words after them.
  /// \param build, name of the array in messages; kept as pointers.
  template <class T>
  Array<T> add(const char* build, const char* name, std::size_t count, std::size_t words) {
    const std::size_t after = m_end + words * sizeof(guard);
    const Array<T> array{(after + sizeof(T) - 1) / sizeof(T) * sizeof(T), count};
    m_end = array.at + count * sizeof(T);
    m_pieces.push_back({build, name, array.at, m_end, sizeof(T)});
    return array;
  }
  /// After the last array: guard words everywhere.
  void reset() {
    m_end = (m_end + last_words * sizeof(guard)) / sizeof(std::int64_t) * sizeof(std::int64_t);
    m_given.resize(m_end);
    std::memset(m_given.data(), guard_byte, m_end);
    m_expected = m_given;
  }
  /// Writes an input, which must come back as it was.
  template <class T, std::ranges::input_range Values>
  void put(const Array<T>& array, const Values& values) {
    std::ranges::transform(values, elements<T>(m_given, array),
                           [](auto value) { return static_cast<T>(value); });
    std::copy_n(elements<T>(m_given, array), array.count, elements<T>(m_expected, array));
  }
  /// What must be in an output: guard words at first.
  template <class T>
  [[nodiscard]] std::span<T> expected(const Array<T>& array) {
    return {elements<T>(m_expected, array), array.count};
  }

  [[nodiscard]] std::span<const std::byte> given() const { return m_given; }
  /// Calls `visit` with the beginning and the end, in bytes, of what lies between arrays.
  template <class Visit>
  void for_each_gap(const Visit& visit) const {
    std::size_t end = 0;
    for (const Piece& piece : m_pieces) {
      visit(end, piece.begin);
      end = piece.end;
    }
    visit(end, m_end);
  }
  /// The first difference of what came back, in words; empty when there is none.
  [[nodiscard]] std::string difference(std::span<const std::byte> actual) const {
    if (std::memcmp(actual.data(), m_expected.data(), m_expected.size()) == 0) return "";
    const auto at =
        static_cast<std::size_t>(std::ranges::mismatch(actual, m_expected).in1 - actual.begin());
    const auto next =
        std::ranges::find_if(m_pieces, [&](const Piece& piece) { return at < piece.end; });
    if (next != m_pieces.end() && at >= next->begin) {
      const std::size_t element = (at - next->begin) / next->size;
      const std::size_t begin = next->begin + element * next->size;
      return name(*next) + "[" + std::to_string(element) + "]: got " +
             value(actual, begin, next->size) + ", expected " +
             value(m_expected, begin, next->size);
    }
    const bool after = next == m_pieces.end() ||
                       (next != m_pieces.begin() && at - (next - 1)->end < next->begin - at);
    return after ? "a byte was written " + std::to_string(at - (next - 1)->end) + " bytes after " +
                       name(*(next - 1))
                 : "a byte was written " + std::to_string(next->begin - at) + " bytes before " +
                       name(*next);
  }

 private:
  struct Piece {
    const char* build;
    const char* name;
    std::size_t begin, end, size;
  };
  static constexpr int guard_byte = 0xA5;  // of no output: guard words are negative and far from 0
  static constexpr std::int32_t guard = static_cast<std::int32_t>(0xA5A5A5A5);
  static constexpr std::size_t last_words = 10;

  template <class T>
  static T* elements(std::vector<std::byte>& bytes, const Array<T>& array) {
    return reinterpret_cast<T*>(bytes.data() + array.at);
  }
  static std::string name(const Piece& piece) {
    return std::string(piece.build) + ": " + piece.name;
  }
  static std::string value(std::span<const std::byte> bytes, std::size_t at, std::size_t size) {
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    if (size == sizeof(wide)) {
      std::memcpy(&wide, bytes.data() + at, sizeof(wide));
    } else {
      std::memcpy(&narrow, bytes.data() + at, sizeof(narrow));
      wide = narrow;
    }
    const bool untouched =
        wide == guard || wide == (std::int64_t{guard} << 32 | std::uint32_t(guard));
    return untouched ? "a guard word" : std::to_string(wide);
  }

  std::vector<Piece> m_pieces;  // in order
  std::size_t m_end = 0;
  std::vector<std::byte> m_given, m_expected;
};

}  // namespace test
