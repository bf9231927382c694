"""PyTorch: its recurrent modules, alive; its files, read without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import Adapter, Runtime, StrPath, require
from onernn.ir.errors import UnsupportedError

if TYPE_CHECKING:
    from onernn.adapters.common.fault import FaultyModel
    from onernn.ir.graph import Graph
    from onernn.ir.ragged import Batch
    from onernn.reorders.layers import PivotLayer


def __getattr__(name: str) -> Any:
    """What works in a live PyTorch, imported when it is asked for."""
    if name in ("explain", "optimize", "refresh"):
        require("torch", "torch")
        from onernn.adapters.torch import plugin

        return getattr(plugin, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load(path: StrPath, params: StrPath | None, _: str) -> Graph:
    from onernn.adapters.torch.lower import load_torch

    if params is not None:
        raise UnsupportedError("params: the parameters of an exported program are in its file")
    return load_torch(path)


def _load_fixed(path: StrPath) -> Graph:
    from onernn.adapters.torch.lower import load_torch

    return load_torch(path, fixed=True)


def _read_layers(path: StrPath) -> Mapping[str, PivotLayer]:
    from onernn.adapters.torch.weight_files import read_layers

    return read_layers(path)


def _find_faults(path: StrPath, params: StrPath | None) -> FaultyModel[Any]:
    from onernn.adapters.torch.faults import find_faults

    return find_faults(path, params)


def _run(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    from onernn.adapters.torch.run_model import run_model

    return run_model(path, params, feed)


def _run_live(module: Any, feed: Mapping[str, Batch]) -> list[Batch]:
    from onernn.adapters.torch.run_model import run_module

    return run_module(module, feed)


_WEIGHTS = (".pt", ".pth", ".ckpt", ".torchscript", ".safetensors")
_ADVICE = (
    "weights, no model that is read here: onernn weights writes its recurrent layers for others;"
    " to run the model, write it where PyTorch is as"
    " torch.export.save(torch.export.export(model.eval(), inputs), 'model.pt2')"
)

ADAPTER = Adapter(
    name="PyTorch",
    files="a .pt2 that torch.export.save wrote",
    reads=lambda path: str(path).endswith(".pt2"),
    load=_load,
    find_faults=_find_faults,
    no_models=dict.fromkeys(_WEIGHTS, _ADVICE),
    weights=dict.fromkeys(_WEIGHTS, _read_layers),
    runtime=Runtime(
        name="torch",
        packages=("torch",),
        extra="torch",
        run=_run,
        load=_load_fixed,
        run_live=_run_live,
    ),
)
