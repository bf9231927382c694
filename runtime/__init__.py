"""Walks a graph: recurrent nodes on a backend, everything else on NumPy."""
