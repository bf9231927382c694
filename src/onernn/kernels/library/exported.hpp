// Makes the functions of onernn.h and kernels.h visible to programs. All others are hidden.
#ifndef ONERNN_EXPORTED_HPP
#define ONERNN_EXPORTED_HPP

#pragma GCC visibility push(default)
#include "kernels.h"
#pragma GCC visibility pop

#endif
