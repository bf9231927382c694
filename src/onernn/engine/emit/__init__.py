"""Turns any graph into standalone C++17: in one call, or in the five steps that this takes."""

from onernn.engine.emit.generating import generate
from onernn.engine.emit.pipeline import infer_shapes, infer_types, initialize, parse, write_cpp

__all__ = ["generate", "infer_shapes", "infer_types", "initialize", "parse", "write_cpp"]
