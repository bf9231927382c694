// Members of a team that are late at random, so that many of them interleave on few cores: for
// tests that define ONERNN_LATE_MEMBERS.
#pragma once

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "team.hpp"

/// At most so many microseconds, one time out of four; 0: never.
inline std::atomic<int> most_delay{0};

void onernn::may_be_late() {
  static std::atomic<unsigned> threads{0};
  static thread_local std::mt19937 random(++threads);
  const int most = most_delay.load(std::memory_order_relaxed);
  if (most > 0 && random() % 4 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most)));
}

/// Members are late while it lives.
struct Late {
  explicit Late(int microseconds) { most_delay = microseconds; }
  ~Late() { most_delay = 0; }
};
