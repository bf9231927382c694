// Speech in a recording, frame by frame, as speech.c does it.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <vector>

#include "onernn.hpp"

int main(int count, char** arguments) try {
  if (count != 3) throw std::invalid_argument("usage: speech silero.onernn samples.f32");
  constexpr int kContext = 64, kStep = 512;
  const onernn::Model model(arguments[1], 1);
  onernn::Stream stream(model);
  const int output = model.value("output");

  std::vector<float> frame(kContext + kStep);
  stream.give(model.value("input"), frame.data(), {1, kContext + kStep});
  std::ifstream samples(arguments[2], std::ios::binary);
  while (samples.read(reinterpret_cast<char*>(frame.data() + kContext), kStep * sizeof(float))) {
    stream.run();
    std::printf("%.4f\n", *stream.numbers<float>(output));
    std::copy(frame.end() - kContext, frame.end(), frame.begin());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
