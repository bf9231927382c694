// Teams of threads: the calling thread and its helpers. Helpers are threads that the process keeps
// for all teams, or threads that another library lends.
#ifndef ONERNN_TEAM_HPP
#define ONERNN_TEAM_HPP

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {

#ifdef ONERNN_LATE_MEMBERS
void may_be_late();  // tests make a member wait where another member could overtake it
#else
inline void may_be_late() {}
#endif

/// Tells the CPU that this thread waits in a loop. Now and then lets the system run a different
/// thread.
inline void wait_a_little(int turns) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // waits some cycles; `yield` does nothing on most CPUs
#endif
  if (turns % 256 == 0) std::this_thread::yield();
}

/// A leader, which is member 0, and its helpers. A turn is one job, divided into pieces. Each
/// member has a run of consecutive pieces, which depends on sizes alone, so that it keeps its part
/// of the weights in its own cache. A member that has finished its run takes pieces from the ends
/// of the runs of others. If the system suspends a thread, the others wait only for the piece that
/// this thread has begun.
///
/// Between two turns, helpers poll the number of the turn: waking a thread would take longer than a
/// step. A helper that was not needed for a while sleeps.
class Crew {
 public:
  static constexpr std::int64_t kMost = 1 << 12;  // a turn has fewer pieces

  explicit Crew(int members) : places_(static_cast<std::size_t>(members)) {}

  /// Returns the first of `count` pieces in member m's run, which ends at the first piece of member
  /// m + 1.
  static std::int64_t first_of(std::int64_t count, int m, int members) {
    return count * m / members;
  }

  /// Calls function(begin, end) for ranges that cover 0 to `count`, on the threads that take part,
  /// at most `members`. Throws std::bad_alloc after all other pieces if a piece found no memory.
  /// Takes a copy of the function: so a caller without helpers takes no address
  /// of its own function, and keeps it in registers.
  template <class Function>
#if defined(__GNUC__)
  [[gnu::noinline]]
#endif
  void share(int members, std::int64_t count, Function function) {
    constexpr auto kRelaxed = std::memory_order_relaxed;  // `turn_` publishes all of these
    function_.store(&function, kRelaxed);
    call_.store([](void* f, std::int64_t begin,
                   std::int64_t end) { (*static_cast<Function*>(f))(begin, end); },
                kRelaxed);
    members_.store(members, kRelaxed);
    finished_.store(0, kRelaxed);
    const std::uint64_t turn = turn_.load(kRelaxed) + 1;
    for (int m = 0; m < members; ++m)
      places_[m].left.store(
          (turn * kMost + static_cast<std::uint64_t>(first_of(count, m + 1, members)) % kMost) *
                  kMost +
              static_cast<std::uint64_t>(first_of(count, m, members)),
          kRelaxed);
    turn_.store(turn, std::memory_order_seq_cst);
    for (int m = 1; m < members; ++m)
      if (places_[m].asleep.load(std::memory_order_seq_cst)) wake(m);
    work(0, turn);
    for (int turns = 1; finished_.load(std::memory_order_acquire) < count; ++turns)
      wait_a_little(turns);
    if (failed_.exchange(false, kRelaxed)) throw std::bad_alloc();
  }

  /// Makes member m take part in turns while `stays()` is true.
  template <class Stays>
  void serve(int m, Stays stays) {
    std::uint64_t seen = turn_.load(std::memory_order_acquire);
    work(m, seen);  // a turn may have begun before this member came
    for (int idle = 1; stays();) {
      const std::uint64_t now = turn_.load(std::memory_order_acquire);
      if (now != seen) {
        seen = now;
        if (m < members_.load(std::memory_order_relaxed)) {
          work(m, now);
          idle = 0;
        }
      }
      wait_a_little(++idle);
      if (idle > kPatience && may_sleep_.load(std::memory_order_relaxed)) {
        sleep(m, seen, stays);
        idle = 0;
      }
    }
  }

  /// Lets helpers sleep, for a crew that exists longer than a call; `wake` wakes one of them.
  void let_sleep() { may_sleep_.store(true, std::memory_order_relaxed); }
  void wake(int m) {
    Place& place = places_[m];
    const std::lock_guard<std::mutex> lock(place.mutex);
    place.woken.notify_one();
  }

 private:
  static constexpr int kPatience = 1 << 10;  // loops of waiting, some ten microseconds

  struct alignas(64) Place {
    // The pieces of its run that are left, as one number: turn, end, begin. Relaxed, because taking
    // a piece changes only this number, and `turn_` has published what the piece needs.
    std::atomic<std::uint64_t> left{0};
    // Sequentially consistent, like `turn_`. A helper sets this and then reads the turn; the leader
    // sets the turn and then reads this. So one of them sees what the second one has set.
    std::atomic<bool> asleep{false};
    std::mutex mutex;
    std::condition_variable woken;
  };

  /// Takes half of the pieces that are left in a run, from its front or its end. Returns false if
  /// no piece of this turn is left.
  static bool take(Place& place, std::uint64_t turn, bool front, std::int64_t* from,
                   std::int64_t* to) {
    for (std::uint64_t left = place.left.load(std::memory_order_relaxed);;) {
      const std::uint64_t begin = left % kMost, end = left / kMost % kMost;
      if (left / kMost / kMost != turn || begin == end) return false;
      const std::uint64_t some = (end - begin + 1) / 2;
      if (place.left.compare_exchange_weak(left, front ? left + some : left - some * kMost,
                                           std::memory_order_relaxed)) {
        *from = static_cast<std::int64_t>(front ? begin : end - some);
        *to = *from + static_cast<std::int64_t>(some);
        return true;
      }
    }
  }

  /// Does all pieces of a turn that member m can take.
  void work(int m, std::uint64_t turn) {
    // Read before a piece is taken. While a piece of the turn is left, these three belong to this
    // turn: they are not older, because the turn was acquired; they are not newer, because the
    // leader writes the next ones only after this member has added its pieces to `finished_`.
    const int members = members_.load(std::memory_order_relaxed);
    void* const function = function_.load(std::memory_order_relaxed);
    const Call call = call_.load(std::memory_order_relaxed);
    may_be_late();
    std::int64_t done = 0, begin, end;
    for (int k = 0; k < members; ++k) {
      Place& place = places_[(m + k) % members];
      for (; take(place, turn, k == 0, &begin, &end); done += end - begin) {
        may_be_late();
        try {
          call(function, begin, end);
        } catch (const std::bad_alloc&) {  // leaving a helper would end the process
          failed_.store(true, std::memory_order_relaxed);
        }
      }
    }
    may_be_late();
    if (done) finished_.fetch_add(done, std::memory_order_release);
  }

  template <class Stays>
  void sleep(int m, std::uint64_t seen, Stays stays) {
    Place& place = places_[m];
    std::unique_lock<std::mutex> lock(place.mutex);
    place.asleep.store(true, std::memory_order_seq_cst);
    may_be_late();
    place.woken.wait(lock, [&] {
      return !stays() || (turn_.load(std::memory_order_seq_cst) != seen &&
                          m < members_.load(std::memory_order_relaxed));
    });
    place.asleep.store(false, std::memory_order_relaxed);
  }

  using Call = void (*)(void*, std::int64_t, std::int64_t);
  // Released after everything that a turn needs, also after what the leader wrote before. Helpers
  // acquire it.
  alignas(64) std::atomic<std::uint64_t> turn_{0};
  // Relaxed: `turn_` publishes them.
  std::atomic<void*> function_{nullptr};
  std::atomic<Call> call_{nullptr};
  std::atomic<int> members_{0};
  std::atomic<bool> may_sleep_{false};  // Relaxed: it is set before there are helpers.
  // Released by each member after its pieces, acquired by the leader: it then sees their results.
  alignas(64) std::atomic<std::int64_t> finished_{0};
  std::atomic<bool> failed_{false};  // Relaxed: `finished_` publishes it.
  std::vector<Place> places_;
};

/// The threads that a process keeps for its teams. The threads start when a team first needs them,
/// and end with the last team. One calling thread leads them at a time; meanwhile, other calling
/// threads compute alone. A forked child has none of these threads, and starts its own.
class Workers {
 public:
  static constexpr int kMost = 64;  // members, with the leader

  ~Workers() {
    stopped_.store(true, std::memory_order_release);
    for (std::size_t at = 0; at < threads_.size(); ++at) crew_.wake(static_cast<int>(at) + 1);
    for (std::thread& each : threads_) each.join();
  }

  /// Returns null if another thread leads.
  [[gnu::noinline]] static Workers* lead() {
    Workers* const workers = of_process().workers.load(std::memory_order_acquire);
    return workers && workers->led_.try_lock() ? workers : nullptr;
  }
  void leave() { led_.unlock(); }
  Crew& crew() { return crew_; }
  /// Starts missing threads. Returns the number of members, at most `most`.
  int members(int most) {
    if (members() < most) start(most);
    return (std::min)(members(), most);
  }

  /// Counts the teams that may use the workers. The first team makes the workers, the last one ends
  /// them.
  [[gnu::noinline]] static void count_team(int more) {
    Process& process = of_process();
    Workers* ended = nullptr;
    {
      const std::lock_guard<std::mutex> lock(process.mutex);
      if (process.teams == 0) process.workers.store(new Workers, std::memory_order_release);
      process.teams += more;
      if (process.teams == 0) ended = process.workers.exchange(nullptr, std::memory_order_acq_rel);
    }
    delete ended;
  }

 private:
  struct Process {
    std::mutex mutex;
    // Released after the writes of a constructor. A thread that leads acquires it, without the
    // mutex.
    std::atomic<Workers*> workers{nullptr};
    int teams = 0;
  };

  Workers() { crew_.let_sleep(); }

  static Process& of_process() {
    static Process& one = *begun();
    return one;
  }
  static Process* begun() {
    static Process* const process = new Process;  // teams may outlive static objects
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork([] { process->mutex.lock(); }, [] { process->mutex.unlock(); },
                   [] {
                     // A child has no threads of its parent. The parent's Workers stay in memory.
                     process->workers.store(process->teams ? new Workers : nullptr,
                                            std::memory_order_release);
                     process->mutex.unlock();
                   });
#endif
    return process;
  }

  int members() const { return static_cast<int>(threads_.size()) + 1; }
  [[gnu::noinline]] void start(int most) {
    try {
      for (int m = members(); m < most; ++m)
        threads_.emplace_back([this, m] {
          crew_.serve(m, [this] { return !stopped_.load(std::memory_order_acquire); });
        });
    } catch (...) {  // the system has no more threads: the existing ones suffice
    }
  }

  Crew crew_{kMost};
  std::mutex led_;
  // Released and acquired: threads see all earlier writes before they end.
  std::atomic<bool> stopped_{false};
  std::vector<std::thread> threads_;
};

/// Counts what each member of a team would do. One thread counts, and multiplies nothing.
struct Paper {
  struct Held {
    const void* matrix;
    std::int64_t bytes;
  };
  struct Member {
    std::int64_t products = 0, read = 0;  // Multiplications, and bytes of matrices that are read.
    std::vector<Held> held;               // Of these, the bytes that are not read twice.
  };
  Member members[Workers::kMost];
  std::int64_t turns[Workers::kMost + 1] = {};  // How many turns had so many members.
  int begun = 0;                                // The member whose pieces are counted now.

  /// The same as Crew::share, on one thread.
  template <class Function>
  void share(int count_of_members, std::int64_t count, Function function) {
    ++turns[count_of_members];
    for (; begun < count_of_members; ++begun)
      function(Crew::first_of(count, begun, count_of_members),
               Crew::first_of(count, begun + 1, count_of_members));
    begun = 0;
  }

  /// Counts `count` pieces of `each` multiplications. `parts` successive pieces read the same
  /// `bytes` of a matrix.
  void multiply(int count_of_members, std::int64_t count, std::int64_t parts, std::int64_t each,
                const void* matrix, std::int64_t bytes) {
    ++turns[count_of_members];
    for (int m = 0; m < count_of_members; ++m) {
      const std::int64_t from = Crew::first_of(count, m, count_of_members);
      const std::int64_t to = Crew::first_of(count, m + 1, count_of_members);
      if (from == to) continue;
      Member& one = members[begun + m];
      one.products += (to - from) * each;
      const std::int64_t read = ((to - 1) / parts - from / parts + 1) * bytes;
      one.read += read;
      auto held = one.held.begin();
      while (held != one.held.end() && held->matrix != matrix) ++held;
      if (held == one.held.end()) held = one.held.insert(held, {matrix, 0});
      held->bytes = (std::max)(held->bytes, read);
    }
  }
};

/// A team of at most `threads` threads; fewer if there is little to do. Negative, for tests:
/// exactly so many.
class Team {
 public:
  /// One more thread takes part for so many multiplications: three microseconds of a core with
  /// AVX-512, six if it reads its part of the matrix for one row.
  static constexpr std::int64_t kWorth = 1 << 17;

  explicit Team(int threads)
      : threads_((std::min)(threads < 0 ? -threads : threads, Workers::kMost)),
        forced_(threads < 0) {
    if (threads_ > 1) Workers::count_team(1);
  }
  /// Counts on the same Paper as another team.
  Team(int threads, const Team& other) : Team(threads) { paper_ = other.paper_; }
  ~Team() {
    if (threads_ > 1) Workers::count_team(-1);
  }
  Team(const Team&) = delete;

  /// While it exists, this thread leads the workers for all of its teams, unless another thread
  /// leads them.
  class Lead {
   public:
    explicit Lead(Team& team, int most = Workers::kMost)
        : own_(most > 1 && team.threads_ > 1 && !team.paper_ && !led().tried) {
      if (own_) led() = {Workers::lead(), true};
    }
    ~Lead() {
      if (!own_) return;
      if (led().workers) led().workers->leave();
      led() = {};
    }
    Lead(const Lead&) = delete;

   private:
    const bool own_;
  };

  /// How many threads may take part now.
  int members() const {
    if (lent_.load(std::memory_order_relaxed))
      return (std::min)(arrived_.load(std::memory_order_relaxed) + 1, lent_members_);
    return led().tried && !led().workers ? 1 : threads_;
  }

  /// Lets up to `helpers` threads of another library call `help` from now on, until `recall`.
  void lend(int helpers) {
    if (helpers >= lent_members_) {
      lent_members_ = helpers + 1;
      lent_crew_ = std::make_unique<Crew>(lent_members_);
    }
    arrived_.store(0, std::memory_order_relaxed);
    lent_.store(true, std::memory_order_release);
  }
  void recall() { lent_.store(false, std::memory_order_release); }

  /// Does pieces of the thread that called `lend`, until that thread calls `recall`.
  void help() {
    if (!lent_.load(std::memory_order_acquire)) return;
    const int m = arrived_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (m < lent_members_)
      lent_crew_->serve(m, [this] { return lent_.load(std::memory_order_acquire); });
  }

  /// Says whether a job of so many multiplications would be split.
  bool is_worth_it(std::int64_t job) const { return forced_ || job >= 2 * kWorth; }

  /// From now on, products are counted in `paper` and not computed; null: computed again.
  void count_on(Paper* paper) { paper_ = paper; }
  /// If products are counted, counts this one and returns true; see Paper::multiply.
  bool counts(std::int64_t count, std::int64_t parts, std::int64_t each, const void* matrix,
              std::int64_t bytes) {
    if (paper_)
      paper_->multiply((std::min)(worth(count, each), members()), count, parts, each, matrix,
                       bytes);
    return paper_;
  }

  /// Calls function(begin, end) for ranges that cover 0 to `count`; each element takes `each`
  /// multiplications and additions. Makes only one call if there is no other thread, or if the work
  /// is too small to be split.
  template <class Function>
  void split(std::int64_t count, std::int64_t each, Function function) {
    const int most = worth(count, each);
    const Lead lead(*this, most);
    int members = most < 2 ? 1 : (std::min)(most, this->members());
    const bool lent = lent_.load(std::memory_order_relaxed);
    if (members > 1 && !lent && !paper_) members = led().workers->members(members);
    if (members < 2)
      function(std::int64_t(0), count);  // the only such call, because it is inlined
    else if (paper_)
      paper_->share(members, count, function);
    else
      (lent ? *lent_crew_ : led().workers->crew()).share(members, count, function);
  }

 private:
  int worth(std::int64_t count, std::int64_t each) const {
    if (count < 2 || count >= Crew::kMost ||
        (threads_ < 2 && !lent_.load(std::memory_order_relaxed)))
      return 1;
    return static_cast<int>(
        forced_ ? count : (std::min)(count, (std::max)(count * each / kWorth, std::int64_t(1))));
  }

  /// The crew that this thread leads; null if another thread leads it.
  struct Led {
    Workers* workers = nullptr;
    bool tried = false;
  };
  static Led& led() {
    static thread_local Led one;
    return one;
  }

  const int threads_;
  const bool forced_;
  // Released by the leader's own thread, after it wrote the crew that is lent; helpers acquire it.
  std::atomic<bool> lent_{false};
  std::atomic<int> arrived_{0};  // relaxed: only numbers the helpers; `turn_` publishes their work
  int lent_members_ = 0;
  std::unique_ptr<Crew> lent_crew_;
  Paper* paper_ = nullptr;
};

}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
