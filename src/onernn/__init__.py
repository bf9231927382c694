"""onernn: one RNN primitive under every framework."""

from onernn.adapters.loading import load
from onernn.adapters.weight_conversion import convert_weights
from onernn.core.errors import (
    BudgetError,
    LibraryError,
    MissingDependencyError,
    ModelFormatError,
    OnernnError,
    Refusal,
    ShapeError,
    UnforeseenError,
    UnsupportedError,
)
from onernn.core.graph import Graph, register_reader
from onernn.core.ragged import Ragged
from onernn.core.spec import Activation, Cell, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.fuse_passes import FuseResult, fuse
from onernn.runtime.session import Session
from onernn.verification.auditing import AuditReport, audit
from onernn.verification.checked_conversion import convert
from onernn.verification.verifying import Report, verify

register_reader(load)

__all__ = [
    "Activation",
    "AuditReport",
    "BudgetError",
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
    "UnforeseenError",
    "UnsupportedError",
    "audit",
    "convert",
    "convert_weights",
    "fuse",
    "load",
    "verify",
]
