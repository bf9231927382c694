"""onernn: one RNN primitive under every framework."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onernn.adapters.common.plugins import plugins_disabled
from onernn.adapters.loading import load, read_weights
from onernn.engine.session import Session
from onernn.fuse_passes import FuseResult, fuse
from onernn.ir.errors import (
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
from onernn.ir.graph import Graph, Node, Value, register_reader
from onernn.ir.ragged import Ragged
from onernn.ir.spec import Activation, Cell, RnnSpec
from onernn.ir.weights import RnnWeights

if TYPE_CHECKING:
    from onernn import recording
    from onernn.adapters.weight_conversion import convert_weights, read_layer
    from onernn.engine.sharing import Shared, shared
    from onernn.fuse_passes.joined_models import join
    from onernn.verification.auditing import AuditReport, audit
    from onernn.verification.conversion import convert, over_time
    from onernn.verification.quantizing import quantize
    from onernn.verification.verifying import Report, verify

register_reader(load)

_WHEN_ASKED_FOR = {
    "AuditReport": "onernn.verification.auditing",
    "Report": "onernn.verification.verifying",
    "Shared": "onernn.engine.sharing",
    "audit": "onernn.verification.auditing",
    "convert": "onernn.verification.conversion",
    "convert_weights": "onernn.adapters.weight_conversion",
    "join": "onernn.fuse_passes.joined_models",
    "over_time": "onernn.verification.conversion",
    "read_layer": "onernn.adapters.weight_conversion",
    "quantize": "onernn.verification.quantizing",
    "shared": "onernn.engine.sharing",
    "verify": "onernn.verification.verifying",
}
"""Names that run no model, imported at first use: they would take a fifth of the import."""


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow, and rarely asked for

        return version("onernn")
    if name == "recording":
        return import_module("onernn.recording")
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    result = getattr(import_module(_WHEN_ASKED_FOR[name]), name)
    globals()[name] = result
    return result


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
    "Node",
    "OnernnError",
    "Ragged",
    "Refusal",
    "Report",
    "RnnSpec",
    "RnnWeights",
    "Session",
    "ShapeError",
    "Shared",
    "UnforeseenError",
    "UnsupportedError",
    "Value",
    "audit",
    "convert",
    "convert_weights",
    "fuse",
    "join",
    "load",
    "over_time",
    "plugins_disabled",
    "quantize",
    "read_layer",
    "read_weights",
    "recording",
    "shared",
    "verify",
]
