"""onernn inside ONNX Runtime: that runs a model's other operators, ours its recurrent ones.

A model is split at its recurrent nodes into sub-models of ONNX Runtime; arrays go from one side to
the other without a copy. See design/0008.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from onernn.adapters.onnx.splitting import Split, Step, is_recurrent, named, recurrent_inside
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import OnernnError, Refusal
from onernn.runtime.session import Session


class OptimizedSession:
    """Runs like an `onnxruntime.InferenceSession`; safe to share between threads.

    ``replaced``: a line for each recurrent node that ours runs; ``refusals``: why others are left
    to ONNX Runtime.
    """

    def __init__(
        self,
        model: Any,
        steps: Sequence[Step],
        replaced: Sequence[str],
        refusals: Sequence[Refusal],
    ) -> None:
        to_array = require("onnx", "onnx").numpy_helper.to_array
        constants = {each.name: each for each in model.graph.initializer}
        self._inputs = [v for v in model.graph.input if v.name not in constants]
        self._outputs = list(model.graph.output)
        self._known = {
            v.name: to_array(constants[v.name]) for v in self._outputs if v.name in constants
        }
        self._steps = tuple(steps)
        self.replaced, self.refusals = tuple(replaced), tuple(refusals)
        last: dict[str, int] = {}
        for at, step in enumerate(self._steps):
            last.update(dict.fromkeys(step.inputs, at))
        self._done = [
            [name for name, used in last.items() if used == at] for at in range(len(self._steps))
        ]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], _: Any = None
    ) -> list[Array]:
        """The outputs in order, all of them for None. Raises `OnernnError` or ONNX Runtime's."""
        names = [v.name for v in self._outputs] if output_names is None else list(output_names)
        wanted = set(names)
        if unknown := sorted(wanted - {v.name for v in self._outputs}):
            raise ValueError(f"no outputs {unknown}; there are {[v.name for v in self._outputs]}")
        if missing := [v.name for v in self._inputs if v.name not in input_feed]:
            raise ValueError(f"inputs {missing} are missing")
        values: dict[str, Any] = dict(self._known)
        values.update((name, np.asarray(array)) for name, array in input_feed.items())
        for step, done in zip(self._steps, self._done, strict=True):
            values.update(_run(step, {name: values[name] for name in step.inputs}))
            for name in done:
                if name not in wanted:
                    del values[name]
        return [values[name] for name in names]

    def get_inputs(self) -> list[Any]:
        """The inputs, each with name, shape and type, as of ONNX Runtime's sessions."""
        return [_described(value) for value in self._inputs]

    def get_outputs(self) -> list[Any]:
        return [_described(value) for value in self._outputs]

    def explain(self) -> str:
        """A line for each recurrent node: who runs it, and why."""
        lines = [
            *self.replaced,
            *(f"{each.where}: ONNX Runtime ({each.reason})" for each in self.refusals),
        ]
        return "\n".join(lines) or "no recurrent nodes"


def _run(step: Step, values: dict[str, Array]) -> dict[str, Array]:
    if step.ours is not None:
        return dict(step.ours.run(values))  # type: ignore[arg-type]
    value = require("onnxruntime", "onnx").OrtValue
    feed = {name: value.ortvalue_from_numpy(array) for name, array in values.items()}
    given = step.theirs.run_with_ort_values(list(step.outputs), feed)
    return {name: _shared(each) for name, each in zip(step.outputs, given, strict=True)}


def _shared(value: Any) -> Array:
    """A tensor of ONNX Runtime as an array over the same memory, floats at least."""
    if value.data_type() in ("tensor(float)", "tensor(double)", "tensor(float16)"):
        return np.from_dlpack(value._get_c_value())
    return value.numpy()


def _described(value: Any) -> Any:
    onnx = require("onnx", "onnx")
    tensor = value.type.tensor_type
    shape = [
        d.dim_param or d.dim_value if d.WhichOneof("value") else None for d in tensor.shape.dim
    ]
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return SimpleNamespace(name=value.name, shape=shape, type=f"tensor({kind})")


def optimize(
    model: Any,
    *,
    dtype: str = "f32",
    threads: int | None = None,
    backend: str = "onednn",
    session_options: Any = None,
) -> OptimizedSession:
    """A model whose recurrent nodes ours runs, the rest ONNX Runtime.

    ``model``: a path, a ModelProto or its bytes. ``dtype``, ``threads`` and ``backend`` are those
    of `Session`, ``session_options`` ONNX Runtime's. sequence_lens cost no padding work. Nodes that
    ours cannot run stay where they are: see ``refusals`` of the result.

    Raises `MissingDependencyError` without onnx and onnxruntime, `ModelFormatError`, and what ONNX
    Runtime raises for the rest of the model.
    """
    onnx = require("onnx", "onnx")
    require("onnxruntime", "onnx")
    whole = onnx.load(model) if isinstance(model, str | Path) else model
    whole = onnx.load_from_string(whole) if isinstance(whole, bytes) else whole
    typed = onnx.shape_inference.infer_shapes(whole)
    split = Split(onnx, typed, session_options)
    ours: dict[int, Session] = {}
    replaced: list[str] = []
    refusals: list[Refusal] = []
    for at, node in enumerate(typed.graph.node):
        if not is_recurrent(node):
            refusals += [
                Refusal(f"it stands in the body of an {around.op_type}", named(inner))
                for around, inner in recurrent_inside(node)
            ]
            continue
        where = named(node)
        try:
            graph = lower(parse_model(split.alone(at).SerializeToString(), Path(where)))
            ours[at] = Session(graph, dtype=dtype, threads=threads, backend=backend)
        except OnernnError as error:
            refusals.append(Refusal(str(error).replace("\n", " "), where))
            continue
        told = ours[at].explained[0]
        replaced.append(f"{where}: {told.cell} {told.direction}, {told.dtype}, {told.kernel}")
    return OptimizedSession(typed, split.steps(ours), replaced, refusals)
