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

from onernn.adapters.onnx.live.splitting import (
    Split,
    Step,
    is_recurrent,
    named,
    overridable,
    recurrent_inside,
)
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import parse_model
from onernn.adapters.requirements import require
from onernn.backend import open_backend
from onernn.core.arrays import Array
from onernn.core.errors import ModelFormatError, Refusal, ShapeError, UnsupportedError
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights
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
        self._face = _Face(model)
        self._steps = tuple(steps)
        self.replaced, self.refusals = tuple(replaced), tuple(refusals)
        last: dict[str, int] = {}
        for at, step in enumerate(self._steps):
            last.update(dict.fromkeys(step.inputs, at))
        self._done = [
            [name for name, used in last.items() if used == at] for at in range(len(self._steps))
        ]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Array]:
        """The outputs in order, all of them for None or none.

        The feed may hold values for initializers that are inputs, too. Raises what ONNX Runtime
        raises for a wrong call, and `OnernnError`.
        """
        values = self._face.checked(output_names, input_feed, run_options)
        names = list(output_names or self._face.outputs)
        given, wanted = set(values), set(names)
        for step, done in zip(self._steps, self._done, strict=True):
            taken = (*step.inputs, *given.intersection(step.overridable))
            values.update(_run(step, {name: values[name] for name in taken}, run_options))
            for name in done:
                if name not in wanted:
                    del values[name]
        return [values[name] if name in values else self._face.known[name] for name in names]

    def get_inputs(self) -> list[Any]:
        """The inputs, each with name, shape and type, as of ONNX Runtime's sessions."""
        return [_described(value) for value in self._face.required]

    def get_overridable_initializers(self) -> list[Any]:
        """The initializers that a feed may hold other values for."""
        return [_described(value) for value in self._face.overridable.values()]

    def get_outputs(self) -> list[Any]:
        return [_described(value) for value in self._face.outputs.values()]

    def explain(self) -> str:
        """A line for each recurrent node: who runs it, and why."""
        lines = [
            *self.replaced,
            *(f"{each.where}: ONNX Runtime ({each.reason})" for each in self.refusals),
        ]
        return "\n".join(lines) or "no recurrent nodes"


class _Face:
    """A model's inputs and outputs without what lies between: ONNX Runtime checks calls of it.

    ``known``: the outputs that are initializers.
    """

    def __init__(self, model: Any) -> None:
        onnx = require("onnx", "onnx")
        constants = {each.name: each for each in model.graph.initializer}
        free = overridable(model)
        # Copies: a message keeps all of the model in memory that it is a part of.
        own = onnx.GraphProto(input=model.graph.input, output=model.graph.output)
        self.overridable = {value.name: value for value in own.input if value.name in free}
        self.required = [value for value in own.input if value.name not in constants]
        self.outputs = {value.name: value for value in own.output}
        to_array = onnx.numpy_helper.to_array
        self.known = {n: to_array(constants[n]) for n in self.outputs if n in constants}
        self._model = onnx.ModelProto(ir_version=8, opset_import=[onnx.helper.make_opsetid("", 13)])
        self._model.graph.name = "face"
        self._sessions: dict[frozenset[str], Any] = {}
        self._session(frozenset())

    def checked(
        self, output_names: Sequence[str] | None, feed: Mapping[str, Any], run_options: Any
    ) -> dict[str, Array]:
        """The feed as arrays. Raises what ONNX Runtime raises for names, types and shapes."""
        other = frozenset(self.overridable.keys() & feed.keys())
        self._session(other).run(output_names, feed, run_options)
        values = {name: _array(name, feed[name], self.overridable[name]) for name in other}
        return values | {v.name: _array(v.name, feed[v.name], v) for v in self.required}

    def _session(self, other: frozenset[str]) -> Any:
        """That of a model which takes the initializers ``other`` from its caller."""
        if other not in self._sessions:
            onnx, runtime = require("onnx", "onnx"), require("onnxruntime", "onnx")
            face = onnx.ModelProto()
            face.CopyFrom(self._model)
            face.graph.input.extend([*self.required, *(self.overridable[n] for n in sorted(other))])
            inputs = {value.name for value in face.graph.input}
            nothing = onnx.numpy_helper.from_array(np.zeros((), np.float32))
            for name, value in self.outputs.items():
                if name not in inputs:
                    face.graph.node.append(
                        onnx.helper.make_node("Constant", [], [name], value=nothing)
                    )
                    value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ())
                face.graph.output.append(value)
            options = runtime.SessionOptions()
            options.log_severity_level = 3  # errors only: nobody reads its inputs
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self._sessions[other] = runtime.InferenceSession(
                face.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        return self._sessions[other]


def _array(name: str, value: Any, declared: Any) -> Array:
    """What a caller gives as an array in the machine's own order of bytes; lists as declared."""
    if value is None:
        raise ValueError(f"input {name!r} is None")
    if hasattr(value, "numpy"):  # OrtValue
        value = value.numpy()
    if not isinstance(value, np.ndarray):
        to_dtype = require("onnx", "onnx").helper.tensor_dtype_to_np_dtype
        return np.asarray(value, to_dtype(declared.type.tensor_type.elem_type))
    return np.asarray(value, value.dtype.newbyteorder("="))


def _run(step: Step, values: dict[str, Array], run_options: Any) -> dict[str, Array]:
    if step.ours is not None:
        bound = {n: np.ascontiguousarray(values.pop(n)) for n in step.overridable if n in values}
        again = step.rebound if bound else None
        session = again(tuple(bound), [*bound.values()]) if again else step.ours
        return dict(session.run(values))  # type: ignore[arg-type]
    if any(array.dtype.kind in "OSU" for array in values.values()):  # OrtValues hold no text
        return dict(
            zip(step.outputs, step.theirs.run(step.outputs, values, run_options), strict=True)
        )
    value = require("onnxruntime", "onnx").OrtValue
    feed = {name: value.ortvalue_from_numpy(array) for name, array in values.items()}
    given = step.theirs.run_with_ort_values(list(step.outputs), feed, run_options)
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
    backend: str = "auto",
    session_options: Any = None,
) -> OptimizedSession:
    """A model whose recurrent nodes ours runs, the rest ONNX Runtime.

    ``model``: a path, a ModelProto or its bytes. ``dtype``, ``threads`` and ``backend`` are those
    of `Session`, ``session_options`` ONNX Runtime's. sequence_lens cost no padding work. Nodes that
    ours cannot run stay where they are: see ``refusals`` of the result.

    Raises `MissingDependencyError` without onnx and onnxruntime, `UnsupportedError` for a dtype or
    backend that is unknown, `LibraryError`, `ModelFormatError`, and what ONNX Runtime raises for
    the rest of the model.
    """
    onnx = require("onnx", "onnx")
    require("onnxruntime", "onnx")
    engine = open_backend(backend, threads=threads)
    whole = onnx.load(model) if isinstance(model, str | Path) else model
    whole = onnx.load_from_string(whole) if isinstance(whole, bytes) else whole
    typed = _typed(onnx, whole)
    split = Split(onnx, typed, session_options)

    def made(at: int, names: tuple[str, ...] = (), arrays: Sequence[Array] = ()) -> Session:
        bound = dict(zip(names, arrays, strict=True))
        alone = split.alone(at, bound).SerializeToString()
        graph = lower(parse_model(alone, Path(named(typed.graph.node[at]))), bound)
        return Session(graph, dtype=dtype, threads=threads, backend=backend)

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
            ours[at] = made(at)
        except (ModelFormatError, ShapeError, UnsupportedError) as error:
            refusals.append(Refusal(str(error).replace("\n", " "), where))
            continue
        told = ours[at].explained[0]
        replaced.append(f"{where}: {told.cell} {told.direction}, {told.dtype}, {told.kernel}")
    if not replaced:  # a layer that any backend runs tells whether it knows the dtype
        one = np.ones((1,) * 5, np.float32)
        engine.prepare(RnnSpec(Cell.RNN_TANH, 1, 1), RnnWeights(one, one), dtype=dtype)
    return OptimizedSession(typed, split.steps(ours, made), replaced, refusals)


def _typed(onnx: Any, model: Any) -> Any:
    """The model with the types of its values, whatever stands in the place of initializers."""
    free = overridable(model)
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(a for a in model.graph.initializer if a.name not in free)
    typed = onnx.shape_inference.infer_shapes(bare)
    typed.graph.initializer.extend(a for a in model.graph.initializer if a.name in free)
    return typed
