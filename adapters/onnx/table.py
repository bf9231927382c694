"""The form in which rules read an ONNX operator, and the precisions of layers that a file
stores.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
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
from onernn.ir.graph import UNSUPPORTED, Graph
from onernn.ir.operator import REQUIRED
from onernn.ir.operator import Operator as CanonicalOperator
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.types import Size
from onernn.ir.weights import OWN, LayerPrecision, PartScales, RnnWeights, Scale

# Precisions of layers in an ``.onnx`` file.
#
# The graph stores the quantized values: QuantizeLinear and DequantizeLinear around an operator. The
# scales of states and the exact scale factors are in one JSON text, the entry `KEY` of
# `metadata_props`, by the name of the operator's first output.

KEY = "onernn.precision"
VERSION = 1
DTYPES = ("f32", "bf16", "f16", "u8")
"""The dtypes of layers that the text may contain."""
_SCALES, _COLUMNS = ("data", "state"), ("layer", "iter", "projection")


def encode(layers: Mapping[str, LayerPrecision]) -> str:
    """Returns the metadata text for the precisions ``layers``, by the layers' first outputs."""
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
    """Returns the precisions by the names of the layers' first outputs, and a note.

    The note is "", or says that the text has a different version and is not read. Raises
    `ModelFormatError` for a damaged text.
    """
    import json

    try:
        stored = json.loads(text)
        if stored["version"] != VERSION:
            version = f"{stored['version']!r:.20}"
            return {}, f"metadata {KEY}: version {version} is ignored, expected {VERSION}"
        layers = {}
        for name, each in stored["layers"].items():
            if each["dtype"] not in DTYPES:
                raise ValueError(f"dtype {each['dtype']!r:.20}: expected one of {DTYPES}")
            layers[str(name)] = LayerPrecision(each["dtype"], tuple(map(_part_of, each["parts"])))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        what = f"{type(error).__name__} {error!s:.200}"
        raise ModelFormatError(f"metadata {KEY}: malformed: {what}", file) from error
    except (OnernnError, ValueError) as error:  # also errors of JSON and base64
        raise ModelFormatError(f"metadata {KEY}: {error!s:.200}", file) from error
    return layers, ""


def _part_of(stored: Mapping[str, Any]) -> PartScales:
    result: dict[str, Any] = {name: Scale(*stored[name]) for name in _SCALES if name in stored}
    result |= {name: _columns(stored[name]) for name in _COLUMNS if name in stored}
    return PartScales(**result)


def _columns(stored: Mapping[str, Any]) -> Array:
    flat = np.frombuffer(a2b_base64(stored["float32"], strict_mode=True), "<f4")
    return flat.reshape(tuple(stored["shape"]))


# A layer gets the precision that the file stores for it, if its weights and input match the
# precision.


class StoredPrecisions:
    """The precisions in a file's metadata, by the layers' first outputs, with notes about unused
    ones.
    """

    def __init__(self, model: Model) -> None:
        """Reads the metadata. Raises `ModelFormatError` if they are damaged."""
        text = model.metadata.get(KEY)
        self._left, note = ({}, "") if text is None else decode(text, model.file)
        self._notes = [note] if note else []

    def notes(self) -> list[str]:
        """Returns a note for each stored precision that is not used."""
        none = "the model has no such layer, its precision is ignored"
        return self._notes + [f"metadata {KEY}: {name!r:.80}: {none}" for name in self._left]

    def take(
        self, builder: GraphBuilder, name: str, x: str, spec: RnnSpec, weights: RnnWeights
    ) -> tuple[str, LayerPrecision]:
        """Returns the value that a layer reads, and the layer's precision. If the file stores no
        precision, the value is ``x``.

        A quantized layer rounds its input itself, so it reads the value before QuantizeLinear.
        """
        stored = self._left.pop(name, OWN)
        try:
            return _source_of(builder, x, spec, weights, stored), stored
        except ShapeError as error:
            self._notes.append(
                f"metadata {KEY}: {name!r:.80}: {error}; the layer runs in the session's dtype"
            )
            return x, OWN


def _source_of(
    builder: GraphBuilder, x: str, spec: RnnSpec, weights: RnnWeights, stored: LayerPrecision
) -> str:
    """Returns the value from which the graph computes ``x`` by rounding. Raises `ShapeError` if the
    stored scales do not match the weights or this rounding.
    """
    stored.check(spec)
    if not stored.parts:
        return x  # the kernel computes the scales that are not stored
    for d, part in enumerate(stored.parts):
        for role in ("layer", "iter"):
            factors, matrix = getattr(part, role), getattr(weights, role)
            if factors is None or not _holds(matrix[0, d], factors):
                raise ShapeError("expected weights that are multiples of the stored scales")
    (data, *others) = {part.data for part in stored.parts}
    if others:
        raise ShapeError("expected one scale of the input for both directions, got two")
    return x if data is None else _find_rounded(builder, x, data)


def _holds(matrix: Array, factors: Array) -> bool:
    """Returns whether each element of a matrix (K, G, O) is exactly an int8 value times 1 /
    factor.
    """
    steps = np.reciprocal(factors, dtype=np.float32)
    whole = np.rint(matrix / steps).clip(-128, 127)
    return np.array_equal(whole * steps, matrix)


def _find_rounded(builder: GraphBuilder, x: str, scale: Scale) -> str:
    known = [("float32", float(np.float32(1 / scale.factor))), ("uint8", scale.shift)]
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        node = builder.maker(x)
        if node is None or node.op != kind:
            raise ShapeError("expected an input that is quantized with the stored scale")
        arrays = [builder.constants.get(name) for name in node.inputs[1:]]
        values = [(str(a.dtype), *a.reshape(-1).tolist()) for a in arrays if a is not None]
        if len(arrays) != 2 or values != known:
            raise ShapeError("expected an input that is quantized with the stored scale")
        x = node.inputs[0]
    return x


# An ONNX operator in the form that rules read.

INERT = frozenset({"momentum", "seed", "saturate", "sorted"})
"""Attributes that do not change results. They concern training, 8-bit floats, or the order of
results that may have any order.
"""


NO_SEQUENCE = "a sequence is supported only if a Loop fills it, or SplitToSequence makes it"
"""The reason for refusing an operator that reads a sequence from a different source."""


_SIZES = ("Shape", "Size")
"""Operators that return sizes of their input."""


class OnnxBuilder(GraphBuilder):
    """A graph under construction.

    ``empty``: the names of empty sequences. ``stacked``: the names of sequences that are one
    tensor, whose first axis counts the elements. ``precisions``: the precisions of layers in the
    file. ``semantics``: see `load`. ``native``: the graph in the file; None in a body.
    """

    advice = "; declare the types of inputs (inputs=, or --input 'x=float32(N, 80)')"

    def __init__(
        self, name: str, budget: FoldingBudget, precisions: StoredPrecisions, semantics: str
    ) -> None:
        super().__init__(name, budget)
        self.empty: set[str] = set()
        self.stacked: set[str] = set()
        self.precisions, self.semantics = precisions, semantics
        self.native: Subgraph | None = None

    def has(self, name: str) -> bool:
        """Returns whether a variable or a value has the name."""
        return self.value(name) in self._names

    def emit_many(
        self,
        op: str,
        inputs: Sequence[str],
        count: int,
        attributes: Mapping[str, Any] | None = None,
    ) -> tuple[str, ...]:
        """Adds a node with ``count`` outputs and returns their names. If known sizes determine the
        outputs, they become constants and no node is added.

        Exporters compute sizes of weights from the declared sizes of inputs.
        """
        outs = super().emit_many(op, inputs, count, attributes)
        is_node = bool(self.nodes) and self.nodes[-1].outputs == outs
        if is_node and (op in _SIZES or any(map(self._describes_sizes, inputs))):
            known = [self.type_of(name) for name in outs]
            numbers = [each.numbers for each in known]
            if not any(each is None for each in numbers):
                self.nodes.pop()
                self._typed = len(self.nodes)
                for name, type_, array in zip(outs, known, numbers, strict=True):
                    self.constants[name] = np.asarray(array, type_.dtype)
        return outs

    def array(self, value: str, role: str) -> Array:
        """Returns the array of a constant.

        Raises `UnsupportedError` if the value is computed at run time. The message names the input
        sizes that would make the value constant.
        """
        try:
            return super().array(value, role)
        except UnsupportedError as error:
            options = self._ask_sizes(value)
            if not options:
                raise
            raise UnsupportedError(f"{error}; known sizes make it one: pass {options}") from None

    def _ask_sizes(self, value: str) -> str:
        """Returns the ``--input`` options for the inputs whose sizes determine a value; "" if the
        value depends on more than sizes.
        """
        from onernn.engine.inferring import write_option  # slow, and rarely needed

        makers = {name: node for node in self.nodes for name in node.outputs}
        left, seen, sizes, undeclared = [value], {value}, set[str](), set[str]()
        while left:
            name = left.pop()
            known = self.type_of(name).value
            if name in self.constants:
                continue
            if known is not None:
                parts = (known,) if isinstance(known, Size) else known
                sizes.update(each for part in parts for each in part.names)
                continue
            node = makers.get(name)
            if node is None or node.op == UNSUPPORTED:
                return ""
            if node.op in _SIZES and node.inputs[0] not in makers:
                undeclared.add(node.inputs[0])
                continue
            new = {each for each in node.inputs if each} - seen
            left, seen = [*left, *new], seen | new
        options = list[str]()
        for each in self.inputs:
            own = [s.names if s else frozenset() for s in each.type.shape or ()]
            axes = {axis for axis, names in enumerate(own) if names & sizes}
            sizes.difference_update(*(own[axis] for axis in axes))
            if axes or each.name in undeclared:
                options.append(write_option(each, dict.fromkeys(axes, "?")))
        return "" if sizes else " ".join(options)

    def _describes_sizes(self, value: str) -> bool:
        """Returns whether a value consists of sizes that are known or have names."""
        if value in self.constants or value not in self._types:
            return False
        return self._types[value].value is not None


@dataclass(frozen=True, eq=False)
class Scope:
    """The names and opset for lowering the operators of a graph or of a function's call.

    ``arguments``: the attributes of the call. ``names``: the outer variables by their names in the
    function. ``prefix``: the beginning that makes all other names of the function unique.
    ``depth``: the number of nested calls. ``body``: whether the graph is the body of a loop or
    branch.
    """

    builder: OnnxBuilder
    opset: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0
    body: bool = False

    def variable(self, name: str) -> str:
        """Returns the builder's name of the variable ``name``."""
        return self.names.get(name, f"{self.prefix}{name}")


_ONLY = {"spatial": 1, "stash_type": 1, "training_mode": 0}
"""Attributes of which only this value is supported."""
_LIKE = {"axis": 0, "equation": "", "perm": ()}
"""Values that show the types of attributes for which the operator's record has no default."""


class OnnxOperator(NativeOperator):
    """An ONNX operator as a rule reads it; inputs and outputs are numbered, not named."""

    main = 0
    builder: OnnxBuilder

    def __init__(
        self,
        scope: Scope,
        op: Operator,
        attributes: Mapping[str, Any],
        body: Callable[..., tuple[Graph, list[str]]],
    ) -> None:
        slots = {at: (name,) for at, name in enumerate(op.inputs)}
        results = {at: (name,) for at, name in enumerate(op.outputs)}
        super().__init__(scope.builder, op.native, slots, results, attributes, INERT)
        for name, value in attributes.items():
            if isinstance(value, Unread):
                raise UnsupportedError(f"attribute {name}: {value.reason}")
        self.opset, self.scope = scope.opset, scope
        self.body_of = partial(body, op=self)

    def resolve(self, variable: str) -> str:
        return self.builder.value(self.scope.variable(variable))

    def attributes_of(self, record: CanonicalOperator) -> dict[str, Any]:
        """Returns those attributes of a canonical operator that the model sets."""
        self.only(**_ONLY)
        like = {k: v for k, v in record.attributes.items() if v is not None and v is not REQUIRED}
        like = {**_LIKE, **like}
        present = [name for name in record.attributes if name in self.attributes]
        return {name: self.attribute(name, like.get(name)) for name in present}

    def subgraph(self, name: str) -> Subgraph:
        """Returns the graph in an attribute."""
        result = self.attribute(name, None)
        if not isinstance(result, Subgraph):
            raise UnsupportedError(f"attribute {name}: expected a graph, got {result!r:.60}")
        return result

    def body(self, name: str) -> tuple[Graph, list[str]]:
        """Returns the lowered graph in an attribute, and the names of the outer values that it
        reads.

        The outer values are the last inputs of the lowered graph.
        """
        return self.body_of(self.subgraph(name))

    def tensor(self, name: str) -> OnnxTensor:
        return OnnxTensor(self, name)

    def result_name(self, at: int) -> str:
        """Returns the builder's name of output ``at``."""
        return self.scope.variable(self.outputs[at][0])

    def wants(self, at: int) -> bool:
        """Returns whether output ``at`` has a name; nothing reads an output without a name."""
        return bool(self.outputs.get(at, ("",))[0])


class OnnxTensor(Tensor):
    """A tensor in the rules for ONNX operators."""

    def Sigmoid(self) -> Self:  # noqa: N802
        """Returns the sigmoid that the ``semantics`` of `load` define."""
        return self._squash("Sigmoid")

    def Tanh(self) -> Self:  # noqa: N802
        """Returns the hyperbolic tangent that the ``semantics`` of `load` define."""
        return self._squash("Tanh")

    def _squash(self, kind: str) -> Self:
        rational = self.op.builder.semantics == "onnxruntime" and self.type.dtype == "float32"
        return self.new(self.op.emit(kind, self.name, **{"rational": 1} if rational else {}))

    @property
    def sequence(self) -> Self:
        """This tensor, if its first axis counts the elements of a sequence; else raises
        `UnsupportedError`.
        """
        variable = self.op.scope.variable(self.op.variable(self.place))
        if variable not in self.op.builder.stacked:
            refuse(NO_SEQUENCE)
        return self


class OnnxSignature(Signature):
    """The signature of a rule whose parameters are the inputs in order; absent inputs at the end
    are None.
    """

    def _values(self, op: NativeOperator, slot: str) -> list[Any]:
        first = (*self.slots, self.rest).index(slot)
        places = range(first, len(op.inputs)) if slot == self.rest else [first]
        names = [(at, op.optional(at)) for at in places]
        values = [self.tensor(op, name, slot, at) if name else None for at, name in names]
        return values if slot == self.rest else [*filter(None, values)]


Rule = Callable[[OnnxOperator], Results]
RULES = Rules[Rule]()
"""The rules by the types of operators. Domains other than ONNX's own precede the type:
"com.microsoft Gelu".
"""


def onnx(names: str, *, domain: str = "", **only: Any) -> Any:
    """Returns a decorator that adds a rule for the operators ``names`` to `RULES`; see
    `Signature`.
    """

    def enter(rule: Callable[..., Any]) -> Callable[..., Any]:
        signature = OnnxSignature(rule, only, OnnxTensor)
        RULES.update({f"{domain} {name}".strip(): signature for name in names.split()})
        return rule

    return enter
