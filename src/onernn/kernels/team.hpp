// Who computes: this thread, and where there are two a helper, its own or somebody else's.
#ifndef ONERNN_TEAM_HPP
#define ONERNN_TEAM_HPP

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

/// This thread takes panels from the front, the helper from the back, until they meet: each keeps
/// its part of the weights in its own cache, and a helper that the system lets wait takes nothing.
/// Between two products the helper watches a number: waking a thread would take longer than a step.
/// When nothing has come for a while it sleeps.
class Team {
 public:
  explicit Team(int threads) {
    if (threads > 1) helper_ = std::thread([this] { serve(); });
  }
  ~Team() {
    if (!helper_.joinable()) return;
    stopped_ = true;
    wake();
    helper_.join();
  }

  /// A thread of somebody else's may `help` from now on, until `recall`.
  void lend() { lent_ = true; }
  void recall() { lent_ = false; }

  /// Takes panels of the thread that called `lend`, until it calls `recall`.
  void help() {
    helped_ = true;
    while (lent_) {
      for (int turns = 1; waiting() && lent_; ++turns)
        if (turns % 1024 == 0) std::this_thread::yield();
      take_panels();
    }
    helped_ = false;
  }

  /// function(begin, end) over 0 to count, in pieces; whole while nobody else is there.
  template <class Function>
  void split(std::int64_t count, Function function) {
    const bool alone = !helper_.joinable() && !helped_;
    if (alone || count < 2 || count >= kMost) return function(std::int64_t(0), count);
    share(count, function);
  }

 private:
  /// Takes a copy: a function whose address nobody has stays in registers where there is no helper.
  template <class Function>
#if defined(__GNUC__)
  [[gnu::noinline]]
#endif
  void share(std::int64_t count, Function function) {
    function_ = &function;
    call_ = [](void* f, std::int64_t panel) { (*static_cast<Function*>(f))(panel, panel + 1); };
    finished_ = 0;
    ++turn_;
    left_ = (turn_ * kMost + static_cast<std::uint64_t>(count)) * kMost;
    if (asleep_) wake();
    std::int64_t own = 0, panel;
    for (; take(turn_, true, &panel); ++own) function(panel, panel + 1);
    for (int turns = 1; finished_.load(std::memory_order_acquire) < count - own; ++turns)
      if (turns % 1024 == 0) std::this_thread::yield();
  }

  static constexpr std::int64_t kMost = 1 << 12;  // panels: with more of them nobody helps
  static constexpr int kPatience = 1 << 14;       // turns, some ten microseconds

  /// The next panel from one end, false where none of this turn is left. left_: turn, end, begin.
  bool take(std::uint64_t turn, bool front, std::int64_t* panel) {
    for (std::uint64_t left = left_;;) {
      const std::uint64_t begin = left % kMost, end = left / kMost % kMost;
      if (left / kMost / kMost != turn || begin == end) return false;
      if (left_.compare_exchange_weak(left, front ? left + 1 : left - kMost)) {
        *panel = static_cast<std::int64_t>(front ? begin : end - 1);
        return true;
      }
    }
  }

  bool waiting() const { return left_ % kMost == left_ / kMost % kMost && !stopped_; }

  void wake() {
    const std::lock_guard<std::mutex> lock(mutex_);
    woken_.notify_one();
  }

  void serve() {
    while (!stopped_) {
      for (int turns = 1; waiting(); ++turns) {
        if (turns % 1024 == 0) std::this_thread::yield();
        if (turns < kPatience) continue;
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_ = true;
        woken_.wait(lock, [this] { return !waiting(); });
        asleep_ = false;
      }
      take_panels();
    }
  }

  /// Those of one turn, from the back.
  void take_panels() {
    // Read after left_ and before a panel is taken: while one is left both belong to its turn.
    const std::uint64_t turn = left_ / kMost / kMost;
    void* const function = function_;
    const Call call = call_;
    for (std::int64_t panel; take(turn, false, &panel); ++finished_) call(function, panel);
  }

  using Call = void (*)(void*, std::int64_t);
  alignas(64) std::atomic<std::uint64_t> left_{0};
  std::atomic<void*> function_{nullptr};
  std::atomic<Call> call_{nullptr};
  alignas(64) std::atomic<std::int64_t> finished_{0};
  std::atomic<bool> asleep_{false}, stopped_{false}, lent_{false}, helped_{false};
  std::uint64_t turn_ = 0;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::thread helper_;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
