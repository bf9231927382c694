"""PyTorch: its recurrent modules, alive; its files, read without it."""

from __future__ import annotations

from functools import partial
from typing import Any

from onernn.adapters.common.adapter import Adapter, Runtime, defer, require


def __getattr__(name: str) -> Any:
    """Returns what works in a live PyTorch, imported when it is asked for."""
    if name in ("explain", "optimize", "refresh", "restore"):
        require("torch", "torch")
        from onernn.adapters.torch import plugin

        return getattr(plugin, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_WEIGHTS = (".pt", ".pth", ".ckpt", ".torchscript", ".safetensors")
_ADVICE = (
    "weights, no model that is read here: onernn weights writes its recurrent layers for others,"
    " and onernn.read_weights gives its arrays for a graph of your own; to run the model, write it"
    " where PyTorch is as"
    " torch.export.save(torch.export.export(model.eval(), inputs), 'model.pt2')"
)

ADAPTER = Adapter(
    name="PyTorch",
    files="a .pt2 that torch.export.save wrote",
    reads=lambda path: str(path).endswith(".pt2"),
    load=defer("torch.lower.load_torch"),
    no_params="the parameters of an exported program are in its file",
    find_faults=defer("torch.faults.find_faults"),
    no_models=dict.fromkeys(_WEIGHTS, _ADVICE),
    weights=dict.fromkeys(_WEIGHTS, defer("torch.weight_files.read_arrays")),
    layers_among=defer("torch.weight_files.layers_among"),
    runtime=Runtime(
        name="torch",
        packages=("torch",),
        extra="torch",
        run=defer("torch.run_model.run_model"),
        load=partial(defer("torch.lower.load_torch"), fixed=True),
        run_live=defer("torch.run_model.run_module"),
    ),
)
