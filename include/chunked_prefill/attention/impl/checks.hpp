// SPDX-License-Identifier: MIT
#pragma once

#include <Kokkos_Core.hpp>
#include <chunked_prefill/attention/elements.hpp>
#include <chunked_prefill/attention/mla.hpp>
#include <chunked_prefill/impl/check_range.hpp>
#include <chunked_prefill/impl/checks.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace chunked_prefill::impl {

/// A matrix whose rows are walked through a pointer.
template <class View>
void check_rows(const std::string& name, const View& view, std::size_t rows, std::size_t columns) {
  static_assert(View::rank() == 2 && Element<typename View::non_const_value_type>,
                "a rank-2 View of an Element type is needed");
  check_extents(name, view, rows, columns);
  check_range(name + ".extent(1)", static_cast<std::int64_t>(columns), 0, INT32_MAX);
  check_side_by_side(name, view, "the elements of a row");
  check_aligned(name, view.data());
}

/// Pieces of an output are written at once, by whoever comes.
/// \param pieces and what they are of, such as `rows`.
inline void check_apart(const std::string& name, const char* pieces, std::size_t count,
                        std::size_t stride, std::size_t size) {
  if (count <= 1 || stride >= size) return;
  throw InvalidArgument(name, std::string(pieces) + " of " + std::to_string(size) +
                                  " elements overlap at stride " + std::to_string(stride));
}
template <class View>
void check_rows_apart(const std::string& name, const View& view) {
  check_apart(name, "rows", view.extent(0), view.stride(0), view.extent(1));
}

template <class Values, class Lse, class Extents>
void check_state(const std::string& name, const Values& values, const Lse& lse,
                 const Extents& expected) {
  static_assert(Values::rank() == 3 && Element<typename Values::non_const_value_type>,
                "values: a rank-3 View of an Element type is needed");
  static_assert(Lse::rank() == 2 && std::is_same_v<typename Lse::non_const_value_type, float>,
                "lse: a rank-2 View of float is needed");
  for (int r = 0; r < 3; ++r) check_extent(name + ".values", values.extent(r), expected.extent(r));
  for (int r = 0; r < 2; ++r) check_extent(name + ".lse", lse.extent(r), expected.extent(r));
  check_side_by_side(name + ".values", values, "the elements of a head");
  check_aligned(name + ".values", values.data());
  check_aligned(name + ".lse", lse.data());
  if (lse.size() == 0) return;
  check_range(name + ".values.extent(2)", static_cast<std::int64_t>(values.extent(2)), 1,
              INT32_MAX);
  check_range("tokens * heads", static_cast<std::int64_t>(lse.extent(0) * lse.extent(1)), 0,
              INT32_MAX);
}

/// Tokens and heads of an output in either order.
template <class Values, class Lse>
void check_state_apart(const std::string& name, const Values& values, const Lse& lse) {
  const auto check = [](const std::string& array, const auto& view, std::size_t size) {
    const bool tokens_inside = view.extent(1) > 1 && view.stride(0) < view.stride(1);
    const int inner = tokens_inside ? 0 : 1, outer = 1 - inner;
    const char* const words[] = {"tokens", "heads"};
    check_apart(array, words[inner], view.extent(inner), view.stride(inner), size);
    const std::size_t span = (view.extent(inner) - 1) * view.stride(inner) + size;
    check_apart(array, words[outer], view.extent(outer), view.stride(outer), span);
  };
  if (lse.size() == 0) return;
  check(name + ".values", values, values.extent(2));
  check(name + ".lse", lse, 1);
}

inline void check_mla_shape(const MlaShape& shape) {
  check_range("shape.num_heads", shape.num_heads, 1, INT32_MAX);
  check_range("shape.nope_dim", shape.nope_dim, 0, INT32_MAX);
  check_range("shape.rope_dim", shape.rope_dim, 0, INT32_MAX);
  check_range("shape.nope_dim + shape.rope_dim", std::int64_t{shape.nope_dim} + shape.rope_dim, 1,
              INT32_MAX);
  check_range("shape.value_dim", shape.value_dim, 1, INT32_MAX);
  check_range("shape.latent_dim", shape.latent_dim, 1, INT32_MAX);
  check_range("num_heads * (nope_dim + value_dim)",
              shape.num_heads * (std::int64_t{shape.nope_dim} + shape.value_dim), 1, INT32_MAX);
}

/// \param workspace the shape that the workspace was made for.
template <class MemorySpace>
void check_attention(const MlaLayer<MemorySpace>& layer, const QueryBatch<MemorySpace>& queries,
                     const MlaShape& workspace) {
  check_mla_shape(layer.shape);
  const auto size = [](std::int32_t extent) { return static_cast<std::size_t>(extent); };
  check_table("layer.kv_b", layer.kv_b, size(layer.shape.latent_dim),
              size(layer.shape.key_value_columns()));
  const auto query_tokens = static_cast<std::int64_t>(queries.query.extent(0));
  check_range("queries.cum_query_lens.extent(0)",
              static_cast<std::int64_t>(queries.cum_query_lens.extent(0)), query_tokens > 0 ? 2 : 1,
              INT32_MAX);
  check_extent("queries.query.extent(1)", queries.query.extent(1), size(layer.shape.num_heads));
  check_extent("queries.query.extent(2)", queries.query.extent(2), size(layer.shape.query_dim()));
  check_range("query_tokens * num_heads", query_tokens * layer.shape.num_heads, 0, INT32_MAX);
  if (workspace != layer.shape) {
    throw InvalidArgument("workspace", "it was made for another shape than layer.shape");
  }
}

}  // namespace chunked_prefill::impl
