"""Graphs of canonical operators as ONNX models."""

from onernn.adapters.onnx.write.model import padded, to_onnx

__all__ = ["padded", "to_onnx"]
