"""Framework-independent rewrites: Graph in, Graph out."""

from onernn.fuse_passes.pipeline import PASSES, Applied, FuseResult, Pass, fuse, passes_for

__all__ = ["PASSES", "Applied", "FuseResult", "Pass", "fuse", "passes_for"]
