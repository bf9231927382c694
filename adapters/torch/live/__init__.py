"""Inside of a live PyTorch."""
