// Threads share pieces of work: each piece is done once, and all of them before split returns.
#define ONERNN_LATE_MEMBERS
#include "team.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <thread>

#include "check.hpp"
#include "late.hpp"
#include "library/division.cpp"
#include "serial.hpp"

using namespace onernn;

constexpr std::int64_t kMuch = std::int64_t(1) << 30;  // multiplications of a piece: all take part

template <class Team>
static void check_pieces(Team& team) {
  for (std::int64_t count : {0, 1, 2, 3, 7, 64, 4095, 4096, 5000}) {
    std::vector<int> done(static_cast<std::size_t>(count));
    team.split(count, kMuch, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) ++done[static_cast<std::size_t>(at)];
    });
    for (int times : done) CHECK(times == 1);
  }
}

TEST(every_piece_is_done_once_by_any_number_of_threads) {
  Serial alone;
  check_pieces(alone);
  for (int threads : {1, 2, 3, 4, 7, 8, 16, 64, 1000}) {
    Team team(threads), forced(-threads);
    for (int again = 0; again < 3; ++again) {
      check_pieces(team);
      check_pieces(forced);
    }
  }
}

TEST(members_that_are_late_change_nothing) {
  const Late late(300);
  for (int threads : {2, 5, 16, 64}) {
    Team team(-threads);
    for (int again = 0; again < 3; ++again) check_pieces(team);
  }
}

TEST(a_piece_without_memory_fails_the_call_and_no_later_one) {
  for (int threads : {1, 2, 5}) {
    Team team(-threads);
    for (std::int64_t wrong : {0, 5, 9}) {
      std::atomic<int> done{0};
      bool failed = false;
      try {
        team.split(10, kMuch, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t at = begin; at < end; ++at) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so that helpers take some
            if (at == wrong) throw std::bad_alloc();
            ++done;
          }
        });
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      CHECK(failed && done < 10);
      check_pieces(team);
    }
  }
}

TEST(helpers_that_sleep_wake_up) {
  Team team(4);
  for (int again = 0; again < 5; ++again) {
    check_pieces(team);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(helpers_take_part_where_there_is_enough_to_do_and_else_do_not) {
  Team team(3);
  std::mutex mutex;
  const auto members = [&](std::int64_t each) {
    std::set<std::thread::id> seen;
    for (int again = 0; again < 200 && seen.size() < 3; ++again)
      team.split(3, each, [&](std::int64_t, std::int64_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(each > 1 ? 2 : 0));
        const std::lock_guard<std::mutex> lock(mutex);
        seen.insert(std::this_thread::get_id());
      });
    return seen.size();
  };
  CHECK(members(kMuch) == 3);
  CHECK(members(1) == 1);
}

TEST(callers_at_the_same_time_do_not_wait_for_each_other) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller)
    callers.emplace_back([] {
      Team team(3);
      for (int again = 0; again < 10; ++again) {
        const Team::Lead lead(team);  // nobody's, where another caller leads
        Team inner(2);                // led by the same thread
        check_pieces(team);
        check_pieces(inner);
      }
    });
  for (std::thread& each : callers) each.join();
}

TEST(threads_that_are_lent_help_until_they_are_recalled) {
  Team one(1);
  for (int helpers : {1, 3, 2}) {
    for (int again = 0; again < 10; ++again) {
      one.lend(helpers);
      std::vector<std::thread> lent;
      for (int at = 0; at < helpers + 1; ++at) lent.emplace_back([&one] { one.help(); });
      check_pieces(one);
      one.recall();
      for (std::thread& each : lent) each.join();
      one.help();  // returns: it came too late
      check_pieces(one);
    }
  }
}

TEST(groups_of_sequences_have_nearly_the_same_number_of_words) {
  std::vector<std::int64_t> offsets{0};
  std::mt19937 random(7);
  std::lognormal_distribution<double> length(3, 0.7);
  for (int n = 0; n < 64; ++n)
    offsets.push_back(offsets.back() + std::max<std::int64_t>(1, std::int64_t(length(random))));
  Batching batching(64);
  const Batch batch = batching.lod(offsets.data(), 64);
  Deal deal;
  for (std::int64_t groups : {1, 2, 3, 7, 16}) {
    deal(batch, groups);
    std::int64_t sequences = 0, words = 0, most = 0;
    for (std::int64_t group = 0; group < groups; ++group) {
      const Batch part = deal.part(batch, group);
      std::int64_t own = 0, before = 1 << 30;
      for (std::int64_t m = 0; m < part.sequences; ++m) {
        const std::int64_t one = part.length[part.order[m]];
        CHECK(one <= before);  // the longest first
        before = one;
        own += one;
      }
      sequences += part.sequences;
      words += own;
      most = std::max(most, own);
    }
    CHECK(sequences == 64 && words == offsets.back());
    CHECK(double(most) <= 1.1 * double(words) / double(groups));
  }
}

TEST(sizes_alone_decide_how_a_layer_is_divided) {
  const auto groups = [](std::int64_t sequences, std::int64_t units, std::int64_t members,
                         std::int64_t directions = 1) {
    const std::int64_t products = 4 * units * units;
    const Work work{sequences, sequences * 20, 20, units,     products,
                    products,  4 * products,   1,  directions};
    return groups_of(work, members);
  };
  CHECK(groups(64, 256, 1) == 0);
  CHECK(groups(64, 64, 16) == 16);   // a small matrix, read by everybody
  CHECK(groups(1, 1024, 16) == 0);   // nothing to deal out
  CHECK(groups(1, 128, 2, 2) == 1);  // a direction each
  CHECK(groups(0, 256, 4) == 0);
  CHECK(groups(4, 2048, 4) == 0);  // a large matrix: each reads a quarter of it
}

TEST(a_team_that_never_worked_ends) { Team four(4); }

// Both refuse threads in a forked child: the sanitizer, and qemu-user.
#if !defined(__SANITIZE_THREAD__) && !defined(ONERNN_EMULATED)
TEST(a_forked_child_has_threads_of_its_own) {
  Team team(-3);
  check_pieces(team);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a child that hangs is ended
    check_pieces(team);
    Team another(-4);
    check_pieces(another);
    _exit(failures > 0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  check_pieces(team);
}
#endif
