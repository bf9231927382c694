"""Models in bytes: scales from calibration batches, precisions from a budget. See `quantize`."""
