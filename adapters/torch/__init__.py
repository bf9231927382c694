"""PyTorch: onernn runs recurrent modules inside PyTorch, and reads PyTorch's files without it."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import Adapter, Runtime, StrPath, defer, require

if TYPE_CHECKING:  # for type checkers, which need the signatures
    from onernn.adapters.torch.plugin import explain as explain
    from onernn.adapters.torch.plugin import optimize as optimize
    from onernn.adapters.torch.plugin import refresh as refresh
    from onernn.adapters.torch.plugin import restore as restore
else:

    def __getattr__(name: str) -> Any:
        """Returns a function of `plugin`, which the first use imports, because `plugin` needs
        PyTorch.
        """
        if name in ("explain", "optimize", "refresh", "restore"):
            require("torch", "torch")
            from onernn.adapters.torch import plugin

            return getattr(plugin, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_WEIGHTS = (".pt", ".pth", ".ckpt", ".torchscript", ".safetensors", ".index.json")


def _suffix_of(path: StrPath) -> str:
    """Returns the usual suffix of a file of PyTorch with this content, or "" for other content."""
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    known = head.startswith(_BEGINS) or head[8:9] == b"{" or b'"weight_map"' in head
    return str(defer("torch.weight_files.find_suffix")(path, head)) if known else ""


_HEAD = 4096
_BEGINS = (b"PK\x03\x04", b"\x80\x02\x8a\x0a")
"""The first bytes of zip archives, and of pickles that start with a long integer."""

ADAPTER = Adapter(
    name="PyTorch",
    files="a .pt2 that torch.export.save wrote",
    reads=lambda path: (_suffix_of(path) or str(path)).endswith(".pt2"),
    suffix_of=_suffix_of,
    load=defer("torch.lower.load_torch"),
    no_params="the parameters of an exported program are in its file",
    find_faults=defer("torch.faults.find_faults"),
    no_models=dict.fromkeys(_WEIGHTS, defer("torch.weight_files.explain")),
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
