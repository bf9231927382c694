// Each function that steps of a compiled model call, alone, with arrays that have as many numbers
// as its rule asks for and not one more: the address sanitizer finds each number that a rule
// forgets.
//
// functions_alone RUNS [PREFIX [SHORT]]: so many runs of each function whose name begins with
// PREFIX. Array SHORT has a number less than its rule asks for, which has to be found.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "draws.hpp"
#include "library/bounds.cpp"

using namespace onernn;

namespace {

constexpr std::int64_t kMany = 4096, kLimit = 1 << 20;

using Content = std::vector<unsigned char>;

/// Arguments of a function. The numbers of array k are counted by size k.
struct Call {
  const Function* function;
  Numbers words, sizes;
  std::vector<char> letters;  // of each array
  std::vector<std::int64_t> widths;
  std::vector<Content> contents;

  std::size_t arrays() const { return letters.size(); }
  std::size_t bytes(std::size_t array) const {
    return static_cast<std::size_t>(sizes[array] * widths[array]);
  }
};

std::int64_t drawn_size() {
  constexpr std::int64_t far[] = {-1,
                                  INT64_MIN,
                                  INT64_MAX,
                                  std::int64_t(1) << 32,
                                  std::int64_t(1) << 40,
                                  std::int64_t(1) << 62};
  if (one_in(24)) return far[any_below(6)];
  return static_cast<std::int64_t>(any_below(one_in(6) ? 40 : 5));
}

/// So many numbers: offsets, small integers, or any bits.
Content drawn_content(std::int64_t count, std::int64_t width) {
  Content content(static_cast<std::size_t>(count * width));
  const std::uint64_t kind = any_below(3);
  std::int64_t number = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    if (kind == 0 && at > 0) number += static_cast<std::int64_t>(any_below(3));
    if (kind == 1) number = static_cast<std::int64_t>(any_below(6)) - 3 * one_in(8);
    if (kind == 2) number = static_cast<std::int64_t>(any());
    std::memcpy(content.data() + at * width, &number, static_cast<std::size_t>(width));
  }
  return content;
}

/// Numbers for each array that has too few.
void fill(Call& call) {
  for (std::size_t at = 0; at < call.arrays(); ++at)
    if (call.contents[at].size() < call.bytes(at))
      call.contents[at] = drawn_content(call.sizes[at], call.widths[at]);
}

/// Most lists of sizes have the same length; a window is a list of eight.
Call drawn(const Function& function) {
  Call call{&function, {0, 0}, {}, {}, {}, {}};
  for (const char* takes = function.takes; *takes; ++takes)
    if (*takes == 'r' || *takes == 'w') call.sizes.push_back(kMany);
  const std::uint64_t rank = any_below(4);
  const auto draw = [&call] {
    call.words.push_back(static_cast<std::int64_t>(call.sizes.size()));
    call.sizes.push_back(drawn_size());
  };
  for (int i = 0; function.takes[i]; ++i) switch (const char letter = function.takes[i]) {
      case 'r':
      case 'w': {
        const auto array = static_cast<std::int64_t>(call.arrays());
        const bool is_there = !one_in(10);
        call.words.insert(call.words.end(), 2, is_there ? array : -1);
        call.letters.push_back(is_there ? letter : '-');
        call.widths.push_back(function.widths[i]);
        call.contents.emplace_back();
        break;
      }
      case 'D': {
        const std::uint64_t count = one_in(4) ? 8 : one_in(8) ? any_below(5) : rank;
        call.words.push_back(static_cast<std::int64_t>(count));
        for (std::uint64_t k = 0; k < count; ++k) draw();
        break;
      }
      case 'd':
        call.words.push_back(one_in(2) ? 0 : static_cast<std::int64_t>(any()));
        break;
      case 's':
      case 'f':
        draw();
    }
  return call;
}

/// The call with other sizes, or other numbers in its arrays.
Call changed(Call call) {
  const std::uint64_t own = call.sizes.size() - call.arrays();
  for (std::uint64_t left = any_below(4); left > 0 && own > 0; --left) {
    std::int64_t& size = call.sizes[call.arrays() + any_below(own)];
    if (one_in(3))
      size = call.sizes[call.arrays() + any_below(own)];
    else
      size = one_in(3) || size > kMany ? drawn_size() : size + (one_in(2) ? 1 : -1);
  }
  for (std::size_t at = 0; at < call.arrays(); ++at) {
    call.sizes[at] = kMany;
    if (one_in(4)) call.contents[at].clear();
  }
  return call;
}

/// function(frame) where the arrays of a call stand at `places`.
template <class Use>
auto framed(const Call& call, std::vector<void*> places, Use use) {
  static Team team(1);
  Numbers sizes = call.sizes, bytes, roots;
  for (std::size_t at = 0; at < call.arrays(); ++at) {
    bytes.push_back(static_cast<std::int64_t>(call.bytes(at)));
    roots.push_back(static_cast<std::int64_t>(at));
  }
  Numbers writable = bytes;
  Frame frame{places.data(), sizes.data(), &team, bytes.data(), writable.data(), roots.data()};
  return use(frame);
}

bool is_allowed(const Rule* rule, Call& call) {
  std::vector<void*> places;
  for (Content& each : call.contents) places.push_back(each.data());
  return framed(call, places, [&](Frame& frame) {
    const Function& function = *call.function;
    const Args args(function, call.words.data(), frame.sizes, &frame, kLimit);
    return function.counts ? fits(*function.counts, function.takes, args) : rule->holds(args);
  });
}

/// Cuts each array to the fewest numbers that the rule or the function's type takes.
void cut(const Rule* rule, Call& call) {
  for (std::size_t at = 0; at < call.arrays(); ++at) {
    std::int64_t& count = call.sizes[at];
    for (std::int64_t step = kMany; step > 0; step /= 2)
      while (count >= step) {
        count -= step;
        if (is_allowed(rule, call)) continue;
        count += step;
        break;
      }
  }
}

/// Runs a call on arrays that are no larger than it says. Two may be one, where a file may say so.
Status run(const Rule* rule, const Call& call) {
  std::vector<std::unique_ptr<Exact>> memory;
  std::vector<void*> places;
  std::size_t read = 0, written = 0;
  for (std::size_t at = 0; at < call.arrays(); ++at) {
    if (call.letters[at] == 'r' && one_in(2)) read = at;
    if (call.letters[at] == 'w' && one_in(2)) written = at;
    memory.push_back(std::make_unique<Exact>(call.bytes(at)));
    places.push_back(memory.back()->data());
  }
  if (!depends_on_contents(rule) && one_in(3) && call.arrays() > 1 && call.letters[read] == 'r' &&
      call.letters[written] == 'w') {
    memory.push_back(std::make_unique<Exact>((std::max)(call.bytes(read), call.bytes(written))));
    places[read] = places[written] = memory.back()->data();
  }
  for (std::size_t at = 0; at < call.arrays(); ++at)
    std::copy_n(call.contents[at].data(), call.bytes(at), static_cast<unsigned char*>(places[at]));
  return framed(call, places, [&](Frame& frame) {
    const Status status = call.function->run(frame, Words(call.words.data() + 2));
    check(frame.sound, "the rule asks for less than is there");
    return status;
  });
}

/// Runs a function until so many runs had numbers in all of their arrays and were not refused.
bool is_sound(const Function& function, long runs, std::size_t too_short) {
  const Rule* const rule = rule_of(function.name);
  check(rule || function.counts, function.name);
  long full = 0, all = 0;
  std::vector<Call> base;  // a call that had numbers in all arrays, mostly one with many
  std::int64_t most = 0;
  for (long tries = 0; full < runs && tries < 2000000; ++tries) {
    Call call = base.empty() || one_in(4) ? drawn(function) : changed(base.back());
    if (depends_on_contents(rule)) fill(call);
    if (!is_allowed(rule, call)) continue;
    cut(rule, call);
    bool is_full = true;
    std::int64_t numbers = 0;
    for (std::size_t at = 0; at < call.arrays(); ++at) {
      is_full = is_full && (call.letters[at] == '-' || call.sizes[at] > 0);
      numbers += call.sizes[at];
    }
    ++all;
    fill(call);
    if (too_short < call.arrays() && call.sizes[too_short] > 0) --call.sizes[too_short];
    if (run(rule, call) != Status::ok || !is_full) continue;
    ++full;
    if (numbers <= most && !one_in(3)) continue;
    most = numbers;
    base.assign(1, std::move(call));
  }
  if (full < runs) std::printf("%s: %ld of %ld runs\n", function.name, full, all);
  return full >= runs;
}

}  // namespace

int main(int count, char** arguments) {
  const long runs = count > 1 ? std::atol(arguments[1]) : 100;
  const std::string prefix = count > 2 ? arguments[2] : "";
  const std::size_t too_short = count > 3 ? std::strtoul(arguments[3], nullptr, 10) : SIZE_MAX;
  long functions = 0;
  bool sound = true;
  for (std::int32_t at = 0; const char* name = onernn_call_name(at); ++at) {
    if (std::strncmp(name, prefix.c_str(), prefix.size())) continue;
    const char* takes;
    sound = is_sound(*static_cast<const Function*>(onernn_call(name, &takes)), runs, too_short) &&
            sound;
    ++functions;
  }
  std::printf("%ld functions, %ld runs each\n", functions, runs);
  return sound && functions > 0 ? 0 : 1;
}
