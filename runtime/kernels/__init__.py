"""NumPy kernels of the canonical operators."""

from onernn.runtime.kernels import dense, sequence
from onernn.runtime.kernels.registry import KERNELS

__all__ = ["KERNELS", "dense", "sequence"]
