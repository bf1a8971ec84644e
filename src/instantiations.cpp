// SPDX-License-Identifier: MIT
#include <chunked_prefill/impl/instantiations.hpp>

namespace chunked_prefill::impl {
CHUNKED_PREFILL_INSTANTIATE(template)
}  // namespace chunked_prefill::impl
