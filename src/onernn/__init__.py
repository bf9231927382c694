"""onernn: one RNN primitive under every framework.

The examples in docstrings begin after ``import numpy as np`` and ``import onernn``. Arrays of
ragged sequences have the shape (W, ...), with one row for each step of all sequences. Arrays of
dense sequences have the shape (T, N, I): time, batch, channels.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onernn.ir.errors import (
    BudgetError,
    FrameError,
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
from onernn.ir.records import warn_renamed

if TYPE_CHECKING:
    from onernn import recording
    from onernn.adapters.common.caller_rules import Replacing
    from onernn.adapters.common.plugins import plugins_disabled
    from onernn.adapters.loading import load, read_weights
    from onernn.adapters.weight_conversion import convert_weights, read_layer
    from onernn.engine.compiled_model import CompiledModel
    from onernn.engine.compiling import compile_model
    from onernn.engine.session import Session
    from onernn.engine.sharing import Shared, share
    from onernn.fuse_passes import FuseResult, fuse
    from onernn.fuse_passes.joined_models import join
    from onernn.ir.spec import Activation, Cell, RnnSpec
    from onernn.ir.weights import RnnWeights
    from onernn.verification.auditing import AuditReport, audit
    from onernn.verification.conversion import Repair, convert, over_time, repair
    from onernn.verification.quantizing import quantize
    from onernn.verification.verifying import Report, verify

    __version__: str
    shared = share

_WHEN_ASKED_FOR = {
    "Activation": "onernn.ir.spec",
    "AuditReport": "onernn.verification.auditing",
    "Cell": "onernn.ir.spec",
    "CompiledModel": "onernn.engine.compiled_model",
    "FuseResult": "onernn.fuse_passes",
    "Replacing": "onernn.adapters.common.caller_rules",
    "Repair": "onernn.verification.conversion",
    "Report": "onernn.verification.verifying",
    "RnnSpec": "onernn.ir.spec",
    "RnnWeights": "onernn.ir.weights",
    "Session": "onernn.engine.session",
    "Shared": "onernn.engine.sharing",
    "audit": "onernn.verification.auditing",
    "compile_model": "onernn.engine.compiling",
    "convert": "onernn.verification.conversion",
    "convert_weights": "onernn.adapters.weight_conversion",
    "fuse": "onernn.fuse_passes",
    "join": "onernn.fuse_passes.joined_models",
    "load": "onernn.adapters.loading",
    "over_time": "onernn.verification.conversion",
    "plugins_disabled": "onernn.adapters.common.plugins",
    "read_layer": "onernn.adapters.weight_conversion",
    "read_weights": "onernn.adapters.loading",
    "quantize": "onernn.verification.quantizing",
    "repair": "onernn.verification.conversion",
    "share": "onernn.engine.sharing",
    "verify": "onernn.verification.verifying",
}
"""The module of each name that is imported at first use. So a program that runs a compiled model
does not import readers and passes.
"""


def _read(path: Any, rules: Any) -> Graph:
    from onernn.adapters.loading import load

    return load(path, rules=rules)


register_reader(_read)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name):
        if name == "__version__":
            from importlib.metadata import version  # slow to import, and rarely needed

            return version("onernn")
        if name == "recording":
            return import_module("onernn.recording")
        if name == "shared":
            warn_renamed("onernn.shared", "onernn.share")
            name = "share"
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
    "CompiledModel",
    "FrameError",
    "FuseResult",
    "Graph",
    "LibraryError",
    "MissingDependencyError",
    "ModelFormatError",
    "Node",
    "OnernnError",
    "Ragged",
    "Refusal",
    "Repair",
    "Replacing",
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
    "compile_model",
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
    "repair",
    "share",
    "verify",
]
