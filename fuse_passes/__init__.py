"""Rewrites of a graph: cells and loops become layers, and layers become larger layers."""

from onernn.fuse_passes.pipeline import PASSES, Applied, FuseResult, fuse, passes_for
from onernn.fuse_passes.rewriting import Pass

__all__ = ["PASSES", "Applied", "FuseResult", "Pass", "fuse", "passes_for"]
