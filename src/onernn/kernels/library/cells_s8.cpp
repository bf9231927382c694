#include "../quads.hpp"
#include "cells.hpp"

ONERNN_CELLS(float, ByteQuad)
