// SPDX-License-Identifier: MIT
#include "removed_on_signal.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace chunked_prefill::cli {
namespace {

/// One for each of the tool's outputs.
std::array<std::atomic<const char*>, 2> places;
static_assert(std::atomic<const char*>::is_always_lock_free);

extern "C" void remove_and_end(int signal) {
  for (const auto& place : places) {
    if (const char* path = place.load()) unlink(path);
  }
  raise(signal);  // held back until this returns, and no longer handled
}

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_DFL) continue;  // ignored under nohup
    action.sa_handler = &remove_and_end;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

RemovedOnSignal::RemovedOnSignal(std::string path) : m_path(std::move(path)) {
  handle_signals();
  for (auto& place : places) {
    const char* free = nullptr;
    if (!place.compare_exchange_strong(free, m_path.c_str())) continue;
    m_place = &place;
    return;
  }
}

RemovedOnSignal::~RemovedOnSignal() {
  if (m_place != nullptr) m_place->store(nullptr);
}

}  // namespace chunked_prefill::cli
