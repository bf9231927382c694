// Two threads share pieces of work: each piece is done once, and all of them before split returns.
#include "team.hpp"

#include <chrono>
#include <thread>

#include "check.hpp"
#include "serial.hpp"

using namespace onernn;

template <class Team>
static void check_pieces(Team& team) {
  for (std::int64_t count : {0, 1, 2, 3, 7, 64, 4095, 4096, 5000}) {
    std::vector<int> done(static_cast<std::size_t>(count));
    team.split(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) ++done[static_cast<std::size_t>(at)];
    });
    for (int times : done) CHECK(times == 1);
  }
}

TEST(every_piece_is_done_once) {
  Serial alone;
  check_pieces(alone);
  Team one(1), two(2);
  for (int again = 0; again < 20; ++again) {
    check_pieces(one);
    check_pieces(two);
  }
}

TEST(a_helper_that_sleeps_wakes_up) {
  Team two(2);
  for (int again = 0; again < 5; ++again) {
    check_pieces(two);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(a_thread_that_is_lent_helps_until_it_is_recalled) {
  Team one(1);
  for (int again = 0; again < 20; ++again) {
    one.lend();
    std::thread lent([&one] { one.help(); });
    check_pieces(one);
    one.recall();
    lent.join();
    one.help();  // returns: it came too late
    check_pieces(one);
  }
}

TEST(a_team_that_never_worked_ends) { Team two(2); }
