// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHUNKED_PREFILL_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define CHUNKED_PREFILL_ADDRESS_SANITIZER
#endif
#ifdef CHUNKED_PREFILL_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace test {

#ifdef CHUNKED_PREFILL_ADDRESS_SANITIZER
inline constexpr bool under_address_sanitizer = true;
/// Neither reads nor writes of the host are let through, until they are permitted.
inline void forbid_access(const void* begin, std::size_t bytes) {
  ASAN_POISON_MEMORY_REGION(begin, bytes);
}
inline void permit_access(const void* begin, std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
}
/// \param function is called when the sanitizer ends the process.
inline void call_at_death(void (*function)()) { __sanitizer_set_death_callback(function); }
#else
inline constexpr bool under_address_sanitizer = false;
inline void call_at_death(void (*)()) {}
inline void forbid_access(const void*, std::size_t) {}
inline void permit_access(const void*, std::size_t) {}
#endif

}  // namespace test
