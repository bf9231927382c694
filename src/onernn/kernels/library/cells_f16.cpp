#include "cells.hpp"

ONERNN_CELLS(float, Half)
