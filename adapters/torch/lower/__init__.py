"""Exported programs as graphs of canonical operators. The modules of rules fill the table."""

from onernn.adapters.torch.lower import arithmetic, indexing, layers, recurrent, viewing
from onernn.adapters.torch.lower.model import load_torch, lower

__all__ = ["load_torch", "lower"]
__all__ += ["arithmetic", "indexing", "layers", "recurrent", "viewing"]
