// A ragged model by onernn.hpp: prints the sizes, offsets and numbers of its first output.
#include <cstdio>
#include <fstream>
#include <type_traits>
#include <utility>

#include "onernn.hpp"

template <class Stream, class Offsets, class = void>
struct Takes : std::false_type {};
template <class Stream, class Offsets>
struct Takes<Stream, Offsets,
             decltype(std::declval<Stream&>().give_offsets(0, 0, std::declval<Offsets>()))>
    : std::true_type {};
using Offsets = std::vector<std::int64_t>;
static_assert(Takes<onernn::Stream, const Offsets&>::value, "offsets of the caller");
static_assert(!Takes<onernn::Stream, Offsets>::value, "offsets that would be gone before the run");

template <class Function>
void refused(Function call) {
  try {
    call();
    std::puts("not refused");
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
}

int main(int, char** arguments) try {
  const onernn::Model model(arguments[1], 1);
  onernn::Stream stream(model);
  const int input = model.value("words"), output = model.inputs();

  std::ifstream file(arguments[2], std::ios::binary);
  Offsets words(5);
  file.read(reinterpret_cast<char*>(words.data()), 5 * sizeof(std::int64_t));
  const Offsets offsets{0, 3, 5};
  stream.give(input, words.data(), {5});
  stream.give_offsets(input, 0, offsets);
  stream.run();
  const onernn::Stream moved = std::move(stream);
  std::printf("%d %d %d\n", static_cast<int>(moved.size(output, 0)),
              static_cast<int>(moved.sequences(output, 0)),
              static_cast<int>(moved.offsets(output, 0)[1]));
  for (int row = 0; row < 5; ++row)
    std::printf("%d ", static_cast<int>(moved.numbers<std::int64_t>(output)[row]));
  std::puts("");

  refused([&] { model.value("word"); });
  onernn::Stream other(model);
  refused([&] { other.give(input, words.data(), {5, 1}); });
  refused([&] { other.run(); });
  refused([&] { onernn::Model nowhere("nowhere.onernn"); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
