"""onernn as an implementation of ONNX's interface `onnx.backend.base.Backend`.

Tools that accept such a backend accept this module or its class `OnernnBackend`. The onnx package
is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.common.live import Repacked
from onernn.adapters.common.lowering import FOLDED
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import PARAMETERS, RECURRENT, Model, parse_model
from onernn.engine.session import Session
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError


class Prepared:
    """A model that is prepared for repeated runs.

    A model may take its weights as inputs. onernn packs such weights in the first run, and again in
    each run in which they have changed.
    """

    def __init__(self, model: Model, **options: Any) -> None:
        self._model = model
        self._bound = _weight_inputs(model)
        self._options = options
        self._session = Repacked(self._make)
        if not self._bound:
            self._session(None, ())

    def _make(self, _: None, weights: Sequence[Array]) -> Session:
        bound = dict(zip(self._bound, weights, strict=True))
        return Session(lower(self._model, bound), **self._options)

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Returns the outputs in the model's order; ``inputs`` are one array, or arrays by name or
        in the model's order. Raises `ShapeError` if inputs are missing or too many.
        """
        names = [variable.name for variable in self._model.graph.inputs]
        if not isinstance(inputs, Mapping):
            listed = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(listed) > len(names):
                raise ShapeError(f"inputs: expected {len(names)}, {names}, got {len(listed)}")
            inputs = zip(names, listed, strict=False)
        feed = dict(inputs)
        if missing := [name for name in names if name not in feed]:
            raise ShapeError(f"inputs: expected {names}, {missing} are missing")
        weights = [np.ascontiguousarray(feed.pop(name)) for name in self._bound]
        outputs = self._session(None, weights).run(feed)
        return tuple(outputs[variable.name] for variable in self._model.graph.outputs)


def _weight_inputs(model: Model) -> list[str]:
    """Returns the names of the model inputs that recurrent operators use as weights, directly or
    after operators such as Transpose.
    """
    graph = model.graph
    wanted = {
        op.inputs[at]
        for op in graph.operators
        for at in PARAMETERS
        if op.type in RECURRENT and at < len(op.inputs)
    }
    sources = graph.native.sources(wanted, FOLDED)
    read = wanted.union(*(graph.native.reads[at] for at in sources))
    return [variable.name for variable in graph.inputs if variable.name in read]


def supports_device(device: str) -> bool:
    return device.split(":")[0] == "CPU"


def is_compatible(model: Any, device: str = "CPU", **_: Any) -> bool:
    """Returns whether onernn can run every operator of a ModelProto."""
    try:
        prepare(model, device)
    except UnsupportedError:
        return False
    return True


def prepare(model: Any, device: str = "CPU", **options: Any) -> Prepared:
    """Returns a model that is prepared for repeated runs.

    ``model``: a ModelProto or its bytes. ``options``: options of `Session`. Raises
    `UnsupportedError` for operators and devices that are not supported, and `ModelFormatError` for
    a malformed model.
    """
    if not supports_device(device):
        raise UnsupportedError(f"device {device!r}: only CPU is supported")
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return _classes()[1](parse_model(data, Path("model.onnx")), **options)


def run_model(model: Any, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
    """Returns the outputs of a ModelProto in the model's order; for ``inputs`` see
    `Prepared.run`.
    """
    return prepare(model, device, **options).run(inputs)


def run_node(
    node: Any,
    inputs: Sequence[Array] | Mapping[str, Array],
    device: str = "CPU",
    outputs_info: Any = None,
    *,
    opset_version: int | None = None,
    **options: Any,
) -> tuple[Any, ...]:
    """Returns the outputs of one NodeProto; ``opset_version`` is its opset, 22 if it is None."""
    helper = require("onnx", "onnx").helper
    names = [name for name in dict.fromkeys(node.input) if name]
    arrays = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
    types = {k: helper.np_dtype_to_tensor_dtype(np.asarray(arrays[k]).dtype) for k in names}
    taken = [helper.make_tensor_value_info(name, types[name], None) for name in names]
    given = [helper.make_tensor_value_info(name, 0, None) for name in node.output if name]
    opset = [helper.make_opsetid("", opset_version or 22)]
    graph = helper.make_graph([node], "node", taken, given)
    return run_model(
        helper.make_model(graph, ir_version=10, opset_imports=opset), arrays, device, **options
    )


@cache
def _classes() -> tuple[type, type]:
    base = require("onnx.backend.base", "onnx")

    class OnernnRep(Prepared, base.BackendRep):  # type: ignore[name-defined, misc]
        pass

    class OnernnBackend(base.Backend):  # type: ignore[name-defined, misc]
        prepare = staticmethod(prepare)
        run_model = staticmethod(run_model)
        run_node = staticmethod(run_node)
        supports_device = staticmethod(supports_device)
        is_compatible = staticmethod(is_compatible)

    return OnernnBackend, OnernnRep


def __getattr__(name: str) -> Any:
    if name == "OnernnBackend":
        return _classes()[0]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
