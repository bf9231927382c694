#include "cells.hpp"

ONERNN_CELLS(float, float)
