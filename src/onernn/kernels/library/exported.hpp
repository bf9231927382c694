// The functions of onernn.h and kernels.h, the only ones that can be seen from outside.
#ifndef ONERNN_EXPORTED_HPP
#define ONERNN_EXPORTED_HPP

#pragma GCC visibility push(default)
#include "kernels.h"
#pragma GCC visibility pop

#endif
