"""Turns any graph into standalone C++17: with `write_cpp`, or with five functions that each do one
step.
"""

from onernn.engine.emit.generating import generate
from onernn.engine.emit.pipeline import infer_shapes, infer_types, initialize, parse, write_cpp

__all__ = ["generate", "infer_shapes", "infer_types", "initialize", "parse", "write_cpp"]
