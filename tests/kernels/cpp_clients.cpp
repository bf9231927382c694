// Two clients of a model by onernn.hpp: prints what each gets, and what is refused.
#include <cstdio>

#include "onernn.hpp"

int main(int, char** arguments) try {
  const onernn::Model model(arguments[1], 1);
  onernn::Clients clients(model, 2, 2, 4);
  const std::int64_t one = clients.open(), two = clients.open();
  const std::int64_t words[] = {1, 2, 4};
  clients.push({one, two, one}, {words});
  std::vector<float> results(9);
  const std::int64_t refused = clients.pull({two, one, one}, {results.data()});
  std::printf("%d\n", static_cast<int>(refused));
  for (const float each : results) std::printf("%.9g ", static_cast<double>(each));
  std::puts("");
  clients.close(two);
  try {
    clients.push({one}, {words, words});
  } catch (const std::invalid_argument& error) {
    std::puts(error.what());
  }
  try {
    clients.push({two}, {words});
  } catch (const onernn::Error& error) {
    std::puts(error.status == ONERNN_MISUSED ? "closed" : error.what());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
