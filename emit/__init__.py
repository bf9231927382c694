"""Standalone C++17 from any graph, and that code as a backend."""

from onernn.emit.writing import write_cpp

__all__ = ["write_cpp"]
