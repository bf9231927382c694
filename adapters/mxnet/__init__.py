"""The MXNet adapter: it reads MXNet's models without MXNet, and runs recurrent layers inside a live
MXNet.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import Adapter, Plugin, Runtime, StrPath, defer

SYMBOL_ENDING = "-symbol.json"


if TYPE_CHECKING:  # so that type checkers see the signatures
    from onernn.adapters.mxnet.plugin import explain as explain
    from onernn.adapters.mxnet.plugin import optimize as optimize
    from onernn.adapters.mxnet.plugin import restore as restore
    from onernn.adapters.mxnet.plugin import rnn as rnn
else:

    def __getattr__(name: str) -> Any:
        """Returns a function of the plug-in, which is imported on first use because reading a model
        does not need it.
        """
        if name in ("explain", "optimize", "restore", "rnn"):
            from onernn.adapters.mxnet import plugin

            return getattr(plugin, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def rnn_param_size(
    mode: str,
    input_size: int,
    state_size: int,
    num_layers: int = 1,
    *,
    bidirectional: bool = False,
    projection_size: int | None = None,
) -> int:
    """Returns the length of the vector ``parameters`` of MXNet's RNN operator.

    Arguments have the names of the operator's attributes; ``input_size`` is the size of the last
    axis of its data. The vector contains all weights, then all biases: see design/0054. Raises
    `UnsupportedError` for values that the operator does not accept, and `ShapeError` for an input
    size that is not a positive integer.

    >>> from onernn.adapters.mxnet import rnn_param_size
    >>> rnn_param_size("gru", input_size=2, state_size=3)
    63
    """
    from onernn.adapters.mxnet.attributes import stack_of
    from onernn.ir.errors import ShapeError

    attributes = {
        "mode": mode,
        "state_size": state_size,
        "num_layers": num_layers,
        "bidirectional": bidirectional,
        "projection_size": projection_size,
    }
    if isinstance(input_size, bool) or not isinstance(input_size, int) or input_size < 1:
        raise ShapeError(f"input_size: expected a positive integer, got {input_size!r}")
    return stack_of({name: str(value) for name, value in attributes.items()}).elements(input_size)


def _reads(path: StrPath) -> bool:
    path = Path(path)
    if os.path.isdir(path):
        return any(path.glob(f"*{SYMBOL_ENDING}"))
    if os.path.isfile(path) and path.suffix == ".json":
        with path.open("rb") as raw:
            return path.name.endswith(SYMBOL_ENDING) or b'"nodes"' in raw.read(256)
    return path.name.endswith(SYMBOL_ENDING) or os.path.isfile(f"{path}{SYMBOL_ENDING}")


def _plugin(path: str) -> Plugin:
    from onernn.adapters.mxnet.custom_operator import RNN

    return Plugin(call=f"mxnet.optimize(mx.sym.load({path!r}))", host="MXNet", replaces=RNN)


ADAPTER = Adapter(
    name="MXNet",
    files="an MXNet -symbol.json, its folder or the prefix of its name",
    reads=_reads,
    load=defer("mxnet.lower.load_mxnet"),
    no_models={
        ".params": "only parameters of MXNet: load NAME-symbol.json, with this file as params"
    },
    semantics=("mxnet-cpu",),
    runtime=Runtime(
        name="mxnet",
        packages=("mxnet",),
        extra="mxnet",
        run=defer("mxnet.run_model.run_model"),
    ),
    find_faults=defer("mxnet.faults.find_faults"),
    plugin=_plugin,
)
