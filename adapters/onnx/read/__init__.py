"""ONNX's files as Python values."""

from onernn.adapters.onnx.read.model import (
    Model,
    Operator,
    Reference,
    Subgraph,
    Unread,
    Variable,
    model_of,
    parse_model,
    read_model,
)

__all__ = [
    "Model",
    "Operator",
    "Reference",
    "Subgraph",
    "Unread",
    "Variable",
    "model_of",
    "parse_model",
    "read_model",
]
