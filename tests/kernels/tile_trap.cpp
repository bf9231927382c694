// The trap as a library, which a process of Python loads.
#include "tile_trap.hpp"

extern "C" void trap_tiles() { trap::set(); }
