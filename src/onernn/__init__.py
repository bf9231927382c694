"""onernn: one RNN primitive under every framework."""

from onernn.adapters.layers import convert_weights
from onernn.adapters.loading import load
from onernn.core.errors import (
    LibraryError,
    MissingDependencyError,
    ModelFormatError,
    OnernnError,
    Refusal,
    ShapeError,
    UnsupportedError,
)
from onernn.core.graph import Graph
from onernn.core.ragged import Ragged
from onernn.core.spec import Activation, Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.fuse_passes import FuseResult, fuse
from onernn.runtime.session import Session
from onernn.verification.converting import convert
from onernn.verification.verifying import Report, verify

__all__ = [
    "Activation",
    "Cell",
    "FuseResult",
    "Graph",
    "LibraryError",
    "MissingDependencyError",
    "ModelFormatError",
    "OnernnError",
    "Ragged",
    "Refusal",
    "Report",
    "RnnSpec",
    "RnnWeights",
    "Session",
    "ShapeError",
    "UnsupportedError",
    "convert",
    "convert_weights",
    "fuse",
    "load",
    "verify",
]
