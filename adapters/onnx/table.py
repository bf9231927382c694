"""One ONNX operator as a rule reads it, and the precisions of layers in a file."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from onernn.adapters.common.lowering import (
    FoldingBudget,
    GraphBuilder,
    NativeOperator,
    Results,
    Rules,
)
from onernn.adapters.common.signatures import Signature, Tensor, refuse
from onernn.adapters.onnx.read import Model, Operator, Subgraph, Unread
from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, OnernnError, ShapeError, UnsupportedError
from onernn.ir.graph import Graph
from onernn.ir.operator import REQUIRED
from onernn.ir.operator import Operator as CanonicalOperator
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import OWN, LayerPrecision, PartScales, RnnWeights, Scale

# Precisions of layers in an ``.onnx`` file: what its graph has no place for, in `metadata_props`.
#
# The graph itself has the bytes: QuantizeLinear and DequantizeLinear around an operator. Scales of
# states, and factors to the last bit, stand in one JSON text under `KEY`, by the name of the
# operator's first output.

KEY = "onernn.precision"
VERSION = 1
DTYPES = ("f32", "bf16", "f16", "u8")
"""Of layers in a file of this version."""
_SCALES, _COLUMNS = ("data", "state"), ("layer", "iter", "projection")


def encode(layers: Mapping[str, LayerPrecision]) -> str:
    """Returns the text under `KEY`."""
    import json  # slow, and needed only if a model has the text

    stored = {
        name: {"dtype": p.dtype, "parts": list(map(_part, p.parts))} for name, p in layers.items()
    }
    return json.dumps({"version": VERSION, "layers": stored}, sort_keys=True)


def _part(part: PartScales) -> dict[str, Any]:
    result: dict[str, Any] = {name: getattr(part, name) for name in _SCALES}
    for name in _COLUMNS:
        array = getattr(part, name)
        if array is not None:
            data = b2a_base64(np.ascontiguousarray(array, "<f4").tobytes(), newline=False).decode()
            result[name] = {"shape": array.shape, "float32": data}
    return {name: each for name, each in result.items() if each is not None}


def decode(text: str, file: Path) -> tuple[dict[str, LayerPrecision], str]:
    """Returns the precisions by the names of first outputs, and why there are none, else "".

    Other versions are not read. Raises `ModelFormatError` for a text not of this version.
    """
    import json

    try:
        stored = json.loads(text)
        if stored["version"] != VERSION:
            return {}, f"metadata {KEY} of version {stored['version']!r:.20}, {VERSION} is read"
        layers = {str(name): _precision(each) for name, each in stored["layers"].items()}
    except OnernnError as error:
        raise ModelFormatError(f"metadata {KEY}: {error}", file) from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        what = f"{type(error).__name__} {error!s:.200}"
        raise ModelFormatError(f"metadata {KEY}: malformed: {what}", file) from error
    except ValueError as error:  # of JSON and base64, too
        raise ModelFormatError(f"metadata {KEY}: {error!s:.200}", file) from error
    return layers, ""


def _precision(stored: Mapping[str, Any]) -> LayerPrecision:
    if stored["dtype"] not in DTYPES:
        raise ValueError(f"dtype {stored['dtype']!r:.20}")
    return LayerPrecision(stored["dtype"], tuple(map(_stored_part, stored["parts"])))


def _stored_part(stored: Mapping[str, Any]) -> PartScales:
    result: dict[str, Any] = {name: Scale(*stored[name]) for name in _SCALES if name in stored}
    result |= {name: _columns(stored[name]) for name in _COLUMNS if name in stored}
    return PartScales(**result)


def _columns(stored: Mapping[str, Any]) -> Array:
    flat = np.frombuffer(a2b_base64(stored["float32"], strict_mode=True), "<f4")
    return flat.reshape(tuple(stored["shape"]))


# The precision that a file stores for an RNN, GRU or LSTM, if the values around fit it.


class StoredPrecisions:
    """The precisions in a file's metadata, by the layers' first outputs, and what came of them."""

    def __init__(self, stored: Mapping[str, LayerPrecision], note: str = "") -> None:
        self._left, self._notes = dict(stored), [note] if note else []

    @classmethod
    def of(cls, model: Model) -> StoredPrecisions:
        """Raises `ModelFormatError` for metadata that are damaged."""
        text = model.metadata.get(KEY)
        return cls({}) if text is None else cls(*decode(text, model.file))

    def notes(self) -> list[str]:
        """Returns why layers run in other numbers than the file says."""
        none = "there is no such layer, its precision is left aside"
        return self._notes + [f"metadata {KEY}: {name!r:.80}: {none}" for name in self._left]

    def take(
        self, builder: GraphBuilder, name: str, x: str, spec: RnnSpec, weights: RnnWeights
    ) -> tuple[str, LayerPrecision]:
        """Returns what a layer reads and its precision; x itself if it has none of its own.

        The layer quantizes by itself: it reads the input that the file rounds before it.
        """
        stored = self._left.pop(name, OWN)
        try:
            return _rounded_in(builder, x, spec, weights, stored), stored
        except ShapeError as error:
            self._notes.append(
                f"metadata {KEY}: {name!r:.80}: {error}; the layer computes as the session says"
            )
            return x, OWN


def _rounded_in(
    builder: GraphBuilder, x: str, spec: RnnSpec, weights: RnnWeights, stored: LayerPrecision
) -> str:
    """Returns what is rounded before a layer. Raises `ShapeError` if values differ."""
    stored.check(spec)
    if not stored.parts:
        return x  # the kernel finds what is not stored
    for d, part in enumerate(stored.parts):
        for role in ("layer", "iter"):
            factors, matrix = getattr(part, role), getattr(weights, role)
            if factors is None or not _holds(matrix[0, d], factors):
                raise ShapeError("the weights are not in its steps")
    (data, *others) = {part.data for part in stored.parts}
    if others:
        raise ShapeError("one input is rounded in two ways")
    return x if data is None else _behind(builder, x, data)


def _holds(matrix: Array, factors: Array) -> bool:
    """Returns whether signed bytes hold the numbers of a matrix (K, G, O), to the last bit."""
    steps = np.reciprocal(factors, dtype=np.float32)
    whole = np.rint(matrix / steps).clip(-128, 127)
    return np.array_equal(whole * steps, matrix)


def _behind(builder: GraphBuilder, x: str, scale: Scale) -> str:
    """Returns what QuantizeLinear and DequantizeLinear make x of, by this scale."""
    known: list[Array] = [np.array(1 / scale.factor, np.float32), np.array(scale.shift, np.uint8)]
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        node = builder.maker(x)
        result = [] if node is None else [builder.constants.get(name) for name in node.inputs[1:]]
        same = len(result) == 2 and all(
            number is not None and (number.dtype, number.size) == (want.dtype, 1) and number == want
            for number, want in zip(result, known, strict=True)
        )
        if node is None or node.op != kind or not same:
            raise ShapeError("the input is not rounded by its scale")
        x = node.inputs[0]
    return x


# One ONNX operator as a rule of the table reads it.

INERT = frozenset({"momentum", "seed", "saturate", "sorted"})
"""Attributes without effect on what is run: training's, those of eight-bit floats, and leave for
results in any order.
"""


class OnnxBuilder(GraphBuilder):
    """A graph under construction.

    ``empty``: variables that are sequences without a tensor, ``stacked``: those whose tensor stands
    for all of a sequence. ``precisions``: those of layers in the file. ``semantics``: as `load`
    takes them.
    """

    def __init__(
        self, name: str, budget: FoldingBudget, precisions: StoredPrecisions | None = None
    ) -> None:
        super().__init__(name, budget)
        self.empty: set[str] = set()
        self.stacked: set[str] = set()
        self.precisions = precisions or StoredPrecisions({})
        self.semantics = "documented"


class Scope:
    """A graph that operators are in, or a function's call, whose names differ outside.

    ``arguments``: the attributes of the call. ``depth``: of calls inside calls. ``body``: whether
    the graph is that of a loop or branch.
    """

    def __init__(
        self,
        builder: OnnxBuilder,
        opset: int,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        names: Mapping[str, str] = MappingProxyType({}),
        prefix: str = "",
        depth: int = 0,
        body: bool = False,
    ) -> None:
        self.builder, self._names, self._prefix = builder, names, prefix
        self.opset, self.arguments, self.depth, self.body = opset, arguments, depth, body

    def variable(self, name: str) -> str:
        """Returns the builder's variable of a name."""
        return self._names[name] if name in self._names else f"{self._prefix}{name}"


_ONLY = {"block_size": 0, "precision": 0, "spatial": 1, "stash_type": 1, "training_mode": 0}
"""Attributes of which one value is understood."""
_LIKE = {"axis": 0, "equation": "", "perm": ()}
"""What attributes are like of which the operator's record has no default."""


class OnnxOperator(NativeOperator):
    """One operator; its inputs and outputs by their position."""

    main = 0
    builder: OnnxBuilder

    def __init__(
        self,
        scope: Scope,
        op: Operator,
        attributes: Mapping[str, Any],
        body: Callable[[Subgraph, OnnxOperator], tuple[Graph, list[str]]],
    ) -> None:
        slots = {at: (name,) for at, name in enumerate(op.inputs)}
        results = {at: (name,) for at, name in enumerate(op.outputs)}
        super().__init__(scope.builder, op.native, slots, results, attributes, INERT)
        for name, value in attributes.items():
            if isinstance(value, Unread):
                raise UnsupportedError(f"attribute {name}: {value.reason}")
        self.opset, self.scope, self._body = scope.opset, scope, body

    def resolve(self, variable: str) -> str:
        return self.builder.value(self.scope.variable(variable))

    def given(self, record: CanonicalOperator) -> dict[str, Any]:
        """Returns the attributes of a canonical operator that the model has."""
        self.only(**_ONLY)
        like = {k: v for k, v in record.attributes.items() if v is not None and v is not REQUIRED}
        like = {**_LIKE, **like}
        present = [name for name in record.attributes if name in self.attributes]
        return {name: self.attribute(name, like.get(name)) for name in present}

    def subgraph(self, name: str) -> Subgraph:
        """Returns the graph in an attribute."""
        result = self.attribute(name, None)
        if not isinstance(result, Subgraph):
            raise UnsupportedError(f"attribute {name}: expected a graph")
        return result

    def body(self, name: str) -> tuple[Graph, list[str]]:
        """Returns the graph in an attribute, lowered, and the outer values that it takes.

        These come after its own inputs.
        """
        return self.body_of(self.subgraph(name))

    def body_of(self, graph: Subgraph) -> tuple[Graph, list[str]]:
        return self._body(graph, self)

    def tensor(self, name: str) -> OnnxTensor:
        return OnnxTensor(self, name)

    def result_name(self, at: int) -> str:
        """Returns the builder's variable of an output."""
        return self.scope.variable(self.outputs[at][0])

    def wants(self, at: int) -> bool:
        """Returns whether the model names an output."""
        return bool(self.outputs.get(at, ("",))[0])


class OnnxTensor(Tensor):
    """A value as ONNX's rules compute with it."""

    def Sigmoid(self) -> Self:  # noqa: N802
        """Returns the function in the meaning that `load` was asked for."""
        return self._squash("Sigmoid")

    def Tanh(self) -> Self:  # noqa: N802
        """Returns the function in the meaning that `load` was asked for."""
        return self._squash("Tanh")

    def _squash(self, kind: str) -> Self:
        rational = self.op.builder.semantics == "onnxruntime" and self.type.dtype == "float32"
        return self.new(self.op.emit(kind, self.name, **{"rational": 1} if rational else {}))

    @property
    def sequence(self) -> Self:
        """The tensor whose first axis is a sequence; raises `UnsupportedError` if there is none."""
        variable = self.op.scope.variable(self.op.variable(self.place))
        if variable not in self.op.builder.stacked:
            refuse("a sequence that no loop fills is not supported")
        return self


class OnnxSignature(Signature):
    """A rule whose parameters are inputs in order; an absent one among the last ones is None."""

    def _values(self, op: NativeOperator, slot: str) -> list[Any]:
        first = (*self.slots, self.rest).index(slot)
        places = range(first, len(op.inputs)) if slot == self.rest else [first]
        names = [(at, op.optional(at)) for at in places]
        values = [self.tensor(op, name, slot, at) if name else None for at, name in names]
        return values if slot == self.rest else [*filter(None, values)]


Rule = Callable[[OnnxOperator], Results]
RULES = Rules[Rule]()
"""Rules by the types of operators; other domains than ONNX's own precede the type."""


def onnx(names: str, *, domain: str = "", **only: Any) -> Any:
    """Enters a rule whose signature is the schema of the operators ``names``; see `Signature`."""

    def enter(rule: Callable[..., Any]) -> Callable[..., Any]:
        signature = OnnxSignature(rule, only, OnnxTensor)
        RULES.update({f"{domain} {name}".strip(): signature for name in names.split()})
        return rule

    return enter
