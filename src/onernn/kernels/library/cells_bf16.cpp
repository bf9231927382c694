#include "../tile_products.hpp"
#include "cells.hpp"

ONERNN_CELLS(float, BrainPair)
