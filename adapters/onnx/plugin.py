"""onernn inside ONNX Runtime: that runs a model's other operators, ours its recurrent ones.

A model is split at its recurrent nodes into sub-models of ONNX Runtime; arrays go from one side to
the other without a copy. See design/0008.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.native import FOLDED
from onernn.adapters.onnx.read import parse_model
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import OnernnError, Refusal, UnsupportedError
from onernn.runtime.session import Session

_RECURRENT = ("RNN", "GRU", "LSTM")


@dataclass(frozen=True)
class _Step:
    """A part of the model: what runs it, and the values it takes and gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ours: Session | None
    theirs: Any


class OptimizedSession:
    """Runs like an `onnxruntime.InferenceSession`; safe to share between threads.

    ``replaced``: a line for each recurrent node that ours runs; ``refusals``: why others are left
    to ONNX Runtime.
    """

    def __init__(
        self,
        model: Any,
        steps: Sequence[_Step],
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


def _run(step: _Step, values: dict[str, Array]) -> dict[str, Array]:
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
    split = _Split(onnx, typed, session_options)
    ours: dict[int, Session] = {}
    replaced, refusals = [], []
    for at, node in enumerate(typed.graph.node):
        if node.op_type not in _RECURRENT or node.domain not in ("", "ai.onnx"):
            continue
        where = f"node {node.name or next(filter(None, node.output))!r} ({node.op_type})"
        try:
            graph = lower(parse_model(split.alone(node).SerializeToString(), Path(where)))
            ours[at] = Session(graph, dtype=dtype, threads=threads, backend=backend)
        except OnernnError as error:
            refusals.append(Refusal(str(error).replace("\n", " "), where))
            continue
        told = ours[at].explained[0]
        replaced.append(f"{where}: {told.cell} {told.direction}, {told.dtype}, {told.kernel}")
    return OptimizedSession(typed, split.steps(ours), replaced, refusals)


class _Split:
    """A typed model, and the parts of it as models of their own."""

    def __init__(self, onnx: Any, model: Any, session_options: Any) -> None:
        self._onnx, self._model, self._options = onnx, model, session_options
        graph = model.graph
        self._constants = {each.name: each for each in graph.initializer}
        self._types = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}

    def alone(self, node: Any) -> Any:
        """A model of one recurrent node; weights that other nodes make out of constants come along."""
        made: set[str] = set()
        wanted = {name for name in (*node.input[1:4], *node.input[7:8]) if name}
        before = []
        for each in reversed(self._model.graph.node):
            if wanted & set(each.output) and each.op_type in {*FOLDED, "Constant"}:
                before.append(each)
                made.update(each.output)
                wanted.update(each.input)
        taken = [name for each in (*before, node) for name in each.input]
        inputs = [n for n in dict.fromkeys(taken) if n and n not in made | set(self._constants)]
        return self._part([*reversed(before), node], inputs, [name for name in node.output if name])

    def _part(self, nodes: Sequence[Any], inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        helper = self._onnx.helper
        used = {name for node in nodes for name in _reads(node)} | set(outputs)
        kept = [each for name, each in self._constants.items() if name in used]
        graph = helper.make_graph(
            nodes,
            "part",
            [self._typed(name) for name in inputs],
            [
                self._types.get(name) or helper.make_empty_tensor_value_info(name)
                for name in outputs
            ],
            kept,
        )
        return helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            ir_version=self._model.ir_version,
            functions=self._model.functions,
        )

    def _typed(self, name: str) -> Any:
        found = self._types.get(name)
        if found is None or not found.type.tensor_type.elem_type:
            raise UnsupportedError(
                f"the type of {name!r} cannot be inferred, the model is not split"
            )
        return found

    def steps(self, ours: Mapping[int, Session]) -> list[_Step]:
        """The parts in the order in which they run: levels, each ours behind theirs."""
        graph = self._model.graph
        level: dict[str, int] = {}
        place = []
        for at, node in enumerate(graph.node):
            here = max((level.get(name, 0) for name in _reads(node)), default=0)
            place.append(here)
            level.update(dict.fromkeys(node.output, here + (at in ours)))
        results = [value.name for value in graph.output]
        steps = []
        for here in range(max(place, default=0) + 1):
            nodes = [n for at, n in enumerate(graph.node) if place[at] == here and at not in ours]
            mine = [at for at in ours if place[at] == here]
            made = {name for node in nodes for name in node.output if name}
            later = {
                name
                for at, node in enumerate(graph.node)
                if place[at] > here or at in mine
                for name in _reads(node)
            }
            outputs = [name for name in made if name in later or name in results]
            if outputs:
                reads = dict.fromkeys(name for node in nodes for name in _reads(node))
                inputs = [n for n in reads if n not in made and n not in self._constants]
                part = self._part(nodes, inputs, outputs)
                steps.append(_Step(tuple(inputs), tuple(outputs), None, self._session(part)))
            for at in mine:
                whole = ours[at].graph
                takes, gives = (tuple(v.name for v in s) for s in (whole.inputs, whole.outputs))
                steps.append(_Step(takes, gives, ours[at], None))
        return steps

    def _session(self, part: Any) -> Any:
        runtime = require("onnxruntime", "onnx")
        options = self._options or runtime.SessionOptions()
        return runtime.InferenceSession(
            part.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


def _reads(node: Any) -> Iterable[str]:
    """What a node reads, its bodies' reads of outside among them."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            own = {v.name for v in (*attribute.g.input, *attribute.g.initializer)}
            own.update(name for each in attribute.g.node for name in each.output)
            reads = {name for each in attribute.g.node for name in _reads(each)}
            reads.update(v.name for v in attribute.g.output)
            yield from sorted(reads - own)
