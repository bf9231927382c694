#include "cells.hpp"

ONERNN_CELLS(double, double)
