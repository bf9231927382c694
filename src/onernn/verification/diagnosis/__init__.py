"""Why outputs differ: known faults, tried one by one until one explains it."""
