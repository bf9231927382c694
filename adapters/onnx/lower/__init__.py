"""ONNX's models as graphs of canonical operators."""

from onernn.adapters.onnx.lower.model import load_onnx, lower

__all__ = ["load_onnx", "lower"]
