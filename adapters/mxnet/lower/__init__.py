"""MXNet's symbols as graphs of canonical operators."""

from onernn.adapters.mxnet.lower.model import load_mxnet, lower, read_model

__all__ = ["load_mxnet", "lower", "read_model"]
