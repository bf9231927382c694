"""Pure NumPy functions from a framework's arrays to the pivot, and back."""
