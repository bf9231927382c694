// Says which instruction set this library is for, and which instruction sets this CPU runs.
#include "cpu.hpp"

#include <cstdint>

#include "exported.hpp"

std::uint32_t onernn_abi() { return ONERNN_ABI; }

const char* onernn_isa() { return ONERNN_LIBRARY_ISA; }

const char* onernn_cpu() {
  static const Names names = runnable();
  return names.text;
}
