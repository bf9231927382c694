// The functions of onernn.h, the only ones that can be seen from outside.
#ifndef ONERNN_EXPORTED_HPP
#define ONERNN_EXPORTED_HPP

#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {
#include "onernn.h"
}
#pragma GCC visibility pop

#endif
