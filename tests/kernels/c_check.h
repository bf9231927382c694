/* What the programs in C check, with the message of the library if it fails. */
#ifndef ONERNN_C_CHECK_H
#define ONERNN_C_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "onernn.h"

#define CHECK(holds)                                                            \
  do {                                                                          \
    if (!(holds)) {                                                             \
      fprintf(stderr, "line %d: %s; %s\n", __LINE__, #holds, onernn_message()); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

#endif
