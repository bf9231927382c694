"""Runs a graph: as a plan in one call of C, and in NumPy for what a plan lacks."""
