"""What runs a graph: its plan, in one call of C, and NumPy for what a plan lacks."""
