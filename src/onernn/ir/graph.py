"""The graph to which models of all frameworks are converted: values, nodes, types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from os import PathLike
from types import MappingProxyType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from onernn.ir.arrays import Array, frozen
from onernn.ir.budget import spend
from onernn.ir.errors import ModelFormatError, OnernnError, ShapeError, UnsupportedError, printable
from onernn.ir.operator import OPERATORS, Operator, find_operator
from onernn.ir.records import (
    NOTHING,
    Immutable,
    NamedTuple,
    Renamed,
    cached_property,
    dataclass,
    replace,
)
from onernn.ir.types import (
    UNKNOWN,
    Size,
    Type,
    as_tuple,
    constant_type,
    dense,
    evaluate,
    lod_names,
    words_of,
)

UNSUPPORTED = "Unsupported"
"""The ``op`` of a node for a framework's operator that onernn cannot express; its attribute
``reason`` says why.
"""


class NativeOp(NamedTuple):
    """One operator of the framework's own graph: its position in that graph, and its type.

    ``name``: the operator's own name, which viewers of the file, such as Netron, show; "" if it has
    none. ``value``: the name of its main output, which identifies operators without a name, such as
    Paddle's.
    """

    position: int
    type: str
    name: str = ""
    value: str = ""


_RECURRENT = ("rnn", "lstm", "gru", "recurrent", "bidirectional")
_NAMED = 3


def layer_operators(origin: Iterable[NativeOp]) -> tuple[NativeOp, ...]:
    """Returns the native operators of recurrent types, each once; returns all operators if none is
    recurrent.
    """
    every = tuple(dict.fromkeys(origin))
    return tuple(op for op in every if names_recurrence(op.type)) or every


def names_recurrence(text: str) -> bool:
    """Returns whether a text, such as an operator's type or a refusal's reason, contains the name
    of a kind of recurrent layer.
    """
    return any(kind in text.lower() for kind in _RECURRENT)


def native_names(origin: Iterable[NativeOp]) -> str:
    """Returns the quoted names of at most three operators, such as ``'/r/LSTM'``, and "..." for
    more; "" if an operator has no name.
    """
    names = [*dict.fromkeys(op.name for op in origin)]
    more = ["..."] if len(names) > _NAMED else []
    return "" if "" in names else ", ".join([*map(repr, names[:_NAMED]), *more])


def native_types(origin: Iterable[NativeOp]) -> str:
    """Returns the types of native operators, each once: an unrolled layer has hundreds of them."""
    return "+".join(dict.fromkeys(op.type for op in origin))


def describe_operators(origin: tuple[NativeOp, ...]) -> str:
    """Returns a text by which a user finds the operators in the file: "LSTM '/r/LSTM'", "gru that
    makes 'y'".
    """
    types, value = native_types(origin), origin[-1].value
    if names := native_names(origin):
        return printable(f"{types} {names}")
    return printable(f"{types} that makes {value!r}" if value else types)


def is_named_here(value: str) -> bool:
    """Returns whether onernn made this name of a value, such as "x/Rnn#2". The model's file does
    not contain such a name.
    """
    _, slash, last = value.rpartition("/")
    return bool(slash) and last.partition("#")[0] in OPERATORS


@dataclass(frozen=True)
class Value:
    """An input or output that a graph declares.

    ``dtype``: NumPy's name. ``shape``: the sizes, None for a dynamic size. ``lod_depth``: the
    number of LoD levels. ``ranges``: the minimum and maximum of dynamic sizes by axis, if the model
    declares them. ``names``: the model's name for the dynamic size of each axis, "" for no name.
    Dynamic sizes with the same name are equal in all inputs.

    >>> str(onernn.Value("x", "float32", (None, 80)))
    'x: float32(?, 80)'
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    lod_depth: int = 0
    ranges: Mapping[int, tuple[int, float]] = field(default_factory=dict, hash=False)
    names: tuple[str, ...] = ()

    @property
    def named(self) -> dict[int, str]:
        """The names of dynamic sizes by axis; empty if ``names`` and ``shape`` differ in length."""
        sizes = self.shape or ()
        pairs = zip(self.names, sizes, strict=True) if len(self.names) == len(sizes) else ()
        return {axis: name for axis, (name, size) in enumerate(pairs) if name and size is None}

    @property
    def type(self) -> Type:
        """The value's type: each dynamic size has the model's name, or a name made from the value's
        name and the axis.
        """
        shape: list[Any] | None = None
        lod = lod_names(self.name, self.lod_depth)
        if self.shape is not None:
            own = {axis: f"{name}." for axis, name in self.named.items()}
            shape = [
                own.get(index, f"{self.name}.{index}") if s is None else s
                for index, s in enumerate(self.shape)
            ]
            if lod:
                shape[:1] = [words_of(lod)]
        return replace(dense(self.dtype, shape), lod=lod)

    def declare(self, known: Any) -> Value:
        """Returns the input with the dtype and sizes of ``known``: a `Value`, an array, a dtype or
        a shape.

        Raises `ShapeError` if ``known`` is none of these, or if the model declares a different
        shape.
        """
        if isinstance(known, Value):
            shape = known.shape
        else:
            dtype, shape = getattr(known, "dtype", known), getattr(known, "shape", None)
            if isinstance(known, (tuple, list)):
                numbers = (int(each) if isinstance(each, np.integer) else each for each in known)
                dtype, shape = self.dtype, tuple(numbers)
            try:
                dtype = dtype and np.dtype(dtype).name
            except TypeError:
                expected = "expected an array, a dtype or a shape such as (1, 80)"
                raise ShapeError(f"input {self}: {expected}, got {known!r}") from None
        own = self.shape
        if own is not None and shape is not None:
            pairs = zip(own, shape, strict=False)
            both = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
            if len(own) != len(shape) or any(a != b for a, b in both):
                raise ShapeError(f"input {self}: expected sizes that fit, got the shape {shape}")
            sizes = zip(own, shape, strict=True)
            shape = tuple(a if b is None else b for a, b in sizes)
        shape = own if shape is None else shape
        if isinstance(known, Value):
            return replace(known, name=self.name, shape=shape, names=self.names)
        return replace(self, dtype=self.dtype or dtype, shape=shape)

    def complete(self, array: Array) -> Value:
        """Returns the input with the dtype and rank of the array if the model does not declare
        them. Sizes remain dynamic.
        """
        shape = (None,) * array.ndim if self.shape is None else self.shape
        return replace(self, dtype=self.dtype or array.dtype.name, shape=shape)

    declared, opened = Renamed("declare"), Renamed("complete")

    def __str__(self) -> str:
        shape = ("...",) if self.shape is None else self.shape
        sizes = ["?" if size is None else str(size) for size in shape]
        ragged = f", LoD depth {self.lod_depth}" if self.lod_depth else ""
        return f"{printable(self.name)}: {self.dtype or 'any'}({', '.join(sizes)}){ragged}"


def sizes_by_name(values: Iterable[Value], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the size in ``shapes`` for each name of a dynamic size in ``values``.

    ``shapes`` maps names of values to shapes, in which a size may also be a name, or None if it is
    unknown. Raises `ShapeError` if one name would have two different numbers.
    """
    found: dict[str, tuple[Any, str]] = {}
    for value in values:
        shape = shapes.get(value.name) or ()
        for axis, name in value.named.items() if len(shape) == len(value.names) else ():
            size, place = shape[axis], f"{shape[axis]} on axis {axis} of {value.name!r}"
            first, where = found.get(name, (None, ""))
            if isinstance(first, int) and isinstance(size, int) and first != size:
                raise ShapeError(
                    f"inputs: the model has one size {printable(name)!r}, got {where} and {place}"
                )
            if first is None or isinstance(size, int):
                found[name] = size, place
    return {name: size for name, (size, _) in found.items() if size is not None}


def with_open_names(value: Value) -> Value:
    """Returns the value with a named dynamic size in place of each name in its shape."""
    own = value.named
    names = tuple(
        size if isinstance(size, str) else own.get(axis, "")
        for axis, size in enumerate(value.shape or ())
    )
    shape = value.shape and tuple(s if isinstance(s, int) else None for s in value.shape)
    return replace(value, shape=shape, names=names if any(names) else ())


def with_rows(value: Value, count: int | None, name: str = "") -> Value:
    """Returns the value with a new axis 0 of ``count`` rows; each row has the shape of
    ``value``.
    """
    if value.shape is None:
        return value
    names = (name, *(value.names or ("",) * len(value.shape)))
    ranges = {axis + 1: each for axis, each in value.ranges.items()}
    return replace(value, shape=(count, *value.shape), names=names, ranges=ranges)


def declare_inputs(
    inputs: Sequence[Value],
    known: Mapping[str, Any],
    given: Mapping[str, Array] = NOTHING,
) -> list[Value]:
    """Returns the inputs that are not ``given``, with the dtypes and sizes of ``known``
    (`Value.declare`).

    A named size is the same in all inputs. Raises `ShapeError` if ``known`` contradicts the model,
    or if one name has two sizes.
    """
    left = [value for value in inputs if value.name not in given]
    result = [value.declare(known.get(value.name, value)) for value in left]
    shapes: dict[str, Any] = {name: array.shape for name, array in given.items()}
    sizes = sizes_by_name(inputs, shapes | {value.name: value.shape for value in result})
    for at, value in enumerate(left):
        shape = [*(result[at].shape or ())]
        for axis, name in value.named.items():
            shape[axis] = sizes.get(name)
        if value.named:
            result[at] = replace(result[at], shape=tuple(shape))
    return result


@dataclass(frozen=True, eq=False)
class Node(Immutable):
    """One operation of a graph: an operator of ONNX, or one of onernn's additional operators.

    Absent optional inputs and outputs are "". ``origin``: the native operators that the node
    represents.

    >>> node = onernn.Node("Gemm", ("x", "w"), ("y",), {"alpha": 0.5})
    >>> node.label, node.attributes["alpha"]
    ("node 'y' (Gemm)", 0.5)
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: tuple[NativeOp, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    @property
    def label(self) -> str:
        """The node's name in messages: the name of its native operator in the file, or of an
        output.
        """
        shown = layer_operators(self.origin)
        if names := native_names(shown):
            return printable(f"node {names} ({native_types(shown)})")
        value = next(filter(None, self.outputs), "")
        if is_named_here(value) and shown and shown[-1].value:
            value = shown[-1].value
        return printable(f"node {value!r} ({native_types(self.origin) or self.op})")

    @property
    def native(self) -> str:
        """The file's operator that this node represents, as text: "LSTM '/r/LSTM'", or "gru that
        makes 'y'".
        """
        shown = layer_operators(self.origin)
        if not shown:
            return self.label
        return describe_operators(shown)

    @cached_property
    def attrs(self) -> SimpleNamespace:
        """The attributes, with the operator's defaults for absent ones."""
        operator = find_operator(self.op)
        if operator is None:  # an unknown operator: its defaults are not known
            return SimpleNamespace(**self.attributes)
        return operator.attrs(self.attributes, len(self.outputs))

    @cached_property
    def problem(self) -> str:
        """The fault in the number of inputs or outputs, or in the attributes; "" if none."""
        operator = find_operator(self.op)
        return operator.problem(self.inputs, self.outputs, self.attributes) if operator else ""

    @property
    def typed(self) -> tuple[Any, Any, Any, bool]:
        """The result of the last inference: input types, output types and groups of equal sizes.

        The last element tells whether the outputs have sizes or offsets named after the node.
        """
        return self.__dict__.get("_typed", (None, (), (), False))

    def remember_types(self, *known: Any) -> None:
        """Stores the result of an inference in `typed`."""
        self.__dict__["_typed"] = known

    def rename(self, names: Mapping[str, str]) -> Node:
        """Returns the node with renamed values; keeps its cached attributes and types."""
        if names.keys().isdisjoint((*self.inputs, *self.outputs)):
            return self
        inputs, outputs = (
            tuple(names.get(value, value) for value in values)
            for values in (self.inputs, self.outputs)
        )
        out = replace(self, inputs=inputs, outputs=outputs)
        for known in {"attrs", "problem"} & self.__dict__.keys():
            out.__dict__[known] = self.__dict__[known]
        if outputs == self.outputs or not self.typed[-1]:
            out.remember_types(*self.typed)
        return out

    renamed = Renamed("rename")

    def input(self, position: int) -> str:
        """Returns the name of an input, "" if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""


# The types of a graph's values, inferred by the operators' rules.

FAILURES = (OnernnError, ValueError, IndexError, TypeError, KeyError, OverflowError)
"""Exceptions of type rules and formulas that mean that a run would fail as well. Inference catches
them, and the output types stay unknown.
"""


class Sizes:
    """A record of names of sizes that must be equal; type rules add to it.

    ``bound`` maps a name to the size that it equals.
    """

    def __init__(self) -> None:
        self.bound: dict[str, Size] = {}

    def same(self, *sizes: Size | None) -> Size | None:
        """Records that the given sizes are equal. Returns the simplest of them: a number, else a
        single name; None if none is known.
        """
        known = [self.settle_size(size) for size in sizes if size is not None]
        if not known:
            return None
        chosen = min(known, key=lambda size: (size.number is None, size.name is None))
        for size in known:
            if size != chosen and size.name and size.name not in chosen.names:
                self.bound[size.name] = chosen
        return chosen

    def settle_size(self, size: Size) -> Size:
        """Returns the size in which each bound name is replaced by the size that it equals."""
        if not self.bound or size.names.isdisjoint(self.bound):
            return size
        return size.substitute(
            {name: self._follow(name) for name in size.names & self.bound.keys()}
        )

    def _follow(self, name: str) -> Size:
        """Returns the final size of a bound name, and binds every name in the chain to that size
        directly.
        """
        way, result = [name], self.bound[name]
        while result.name in self.bound:
            way.append(result.name)
            result = self.bound[result.name]
        result = self.settle_size(result)
        self.bound |= dict.fromkeys(way, result)
        return result

    def settle(self, found: Type) -> Type:
        """Returns the type with `settle_size` applied to each of its sizes."""
        if not self.bound or found.shape is None:
            return found
        shape = tuple(None if size is None else self.settle_size(size) for size in found.shape)
        value = found.value
        if value is not None:
            settle = self.settle_size
            value = settle(value) if isinstance(value, Size) else (*map(settle, value),)
        if shape == found.shape and value == found.value:
            return found
        return replace(found, shape=shape, value=value)


class Context:
    """The data that a type rule may use in addition to the types of the inputs.

    ``attrs``: the node's attributes with their defaults. ``same(a, b)`` declares two sizes equal
    and returns that size, or raises `ShapeError`. ``fresh(label)`` returns a size that is named
    after the node and known only during a run.
    """

    def __init__(self, node: Node, sizes: Sizes) -> None:
        self.attrs: SimpleNamespace = node.attrs
        self.said: list[tuple[Size | None, ...]] = []
        self.named = False  # whether a size or offsets are named after the node
        self._sizes, self._name = sizes, next(filter(None, node.outputs), "")

    def same(self, *sizes: Size | None) -> Size | None:
        self.said.append(sizes)
        result = self._sizes.same(*sizes)
        known = [self._sizes.settle_size(size).number for size in sizes if size is not None]
        numbers = {*known} - {None}
        if len(numbers) > 1:
            raise ShapeError(f"expected equal sizes, got {sorted(filter(None, numbers))}")
        return result

    def fresh(self, label: str) -> Size:
        self.named = True
        return Size.of(f"{self._name}.{label}")

    def lod(self, label: str = "lod0") -> str:
        """Returns a name for LoD offsets that this node produces."""
        self.named = True
        return f"{self._name}.{label}"


class Inference:
    """The types of values, inferred node after node.

    ``known``: the types of values that no node produces. ``bound`` maps names of sizes to the sizes
    that they equal.
    """

    def __init__(
        self,
        known: Mapping[str, Type] = NOTHING,
        bound: Mapping[str, Size] = NOTHING,
    ) -> None:
        self._sizes, self._found = Sizes(), dict(known)
        self._sizes.bound.update(bound)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Type:
        return self._sizes.settle(self._found[name])

    def __setitem__(self, name: str, known: Type) -> None:
        self._found[name] = known

    def add(self, node: Node) -> None:
        """Infers the types of a node's outputs; the types of its inputs must be known."""
        spend(1 + len(node.inputs) + len(node.outputs))
        inputs = tuple([self[name] if name else None for name in node.inputs])
        before, outputs, said, _ = node.typed
        if before == inputs:  # inferred before: graphs share nodes
            for equal in said:
                self._sizes.same(*equal)
        else:
            context = Context(node, self._sizes)
            outputs = _outputs(node, inputs, context)
            node.remember_types(inputs, outputs, tuple(context.said), context.named)
        self._found.update(zip(node.outputs, outputs, strict=True))

    def rename(self, name: str, new: str) -> None:
        self._found[new] = self._found.pop(name)

    def types(self) -> dict[str, Type]:
        return {name: self._sizes.settle(result) for name, result in self._found.items() if name}


def infer(
    nodes: Iterable[Node],
    known: Mapping[str, Type],
    bound: Mapping[str, Size] = NOTHING,
) -> dict[str, Type]:
    """Returns the types of all values, given in ``known`` or inferred; `UNKNOWN` if a rule fails.

    ``bound`` maps names of sizes to the sizes that they equal.
    """
    inference = Inference(known, bound)
    for node in nodes:
        inference.add(node)
    return inference.types()


def input_types(types: Mapping[str, Type], node: Node) -> list[Type | None]:
    """Returns the types of a node's inputs; None for absent inputs."""
    return [types[name] if name else None for name in node.inputs]


def _outputs(node: Node, inputs: tuple[Type | None, ...], context: Context) -> tuple[Type, ...]:
    unknown = (UNKNOWN,) * len(node.outputs)
    operator = find_operator(node.op)
    if operator is None or node.problem:
        return unknown
    try:
        outputs = as_tuple(operator.type(context, *inputs))
        if not operator.offsets:
            outputs = _under_words(operator, node, inputs, outputs)
    except FAILURES:
        return unknown
    try:
        outputs = _numbers(operator, node, inputs, outputs[0]) or outputs
    except FAILURES:
        pass  # keeps the shape, which is known
    return (*outputs, *unknown)[: len(node.outputs)]


def _under_words(
    operator: Operator, node: Node, inputs: tuple[Type | None, ...], outputs: tuple[Type, ...]
) -> tuple[Type, ...]:
    """Returns the output types. If the operator keeps offsets, they get the LoD of the first ragged
    input, the same as in `Operator.run`.
    """
    given = [each for each in inputs if each is not None]
    like = next((each for each in given if each.lod != ()), None)
    if like is None or operator.dropped is True:
        return tuple(Type(each.dtype, each.shape, (), each.value) for each in outputs)
    if like.lod is None:
        return tuple(replace(each, lod=None) for each in outputs)
    if given[0].rank is None:
        keeps = operator.kind in ("elementwise", "view") and operator.dropped is False
        return tuple(replace(each, lod=like.lod if keeps else None) for each in outputs)
    try:
        keeps = operator.keeps_words(node.attrs, *inputs)
    except FAILURES:
        return (UNKNOWN,) * len(outputs)
    if not keeps:
        return tuple(replace(each, lod=()) for each in outputs)
    words = like.shape[0] if like.shape else None
    return tuple(
        replace(each, lod=like.lod, shape=each.shape and (words, *each.shape[1:]), value=None)
        for each in outputs
    )


def _numbers(
    operator: Operator, node: Node, inputs: tuple[Type | None, ...], out: Type
) -> tuple[Type, ...] | None:
    """Returns the types of integer or Boolean outputs with their values, computed from the inputs'
    values.

    Returns None if an input's value is unknown, or if the dtype is not int32, int64 or bool:
    smaller integers may overflow.
    """
    if not operator.sized or out.dtype not in ("int32", "int64", "bool"):
        return None
    if not inputs or any(each is not None and each.value is None for each in inputs):
        return None
    result = operator.compute(node.attrs, *(e if e is None else e.sizes for e in inputs))  # type: ignore[misc]
    parts = as_tuple(result)
    return tuple(evaluate(out.dtype, part) for part in parts)


__all__ = [
    "UNSUPPORTED",
    "Graph",
    "NativeOp",
    "Node",
    "Value",
    "graph_of",
    "native_types",
    "register_reader",
]


@dataclass(frozen=True, eq=False)
class Graph(Immutable):
    """An immutable model: its nodes in an order in which they can run, its constants read-only.

    ``notes``: messages of a reader for the user. Raises `ModelFormatError` if a value is used
    before it is made (including a cycle) or is made twice, and if a node's inputs, outputs or
    attributes do not fit its operator.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> model.producer("y").op, model.is_read("x"), model.users("y")
    ('Relu', True, [])
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        spend(len(self.nodes) + len(self.inputs) + len(self.outputs) + len(self.constants))
        constants = {name: frozen(array) for name, array in self.constants.items()}
        object.__setattr__(self, "constants", MappingProxyType(constants))
        object.__setattr__(self, "notes", tuple(map(printable, self.notes)))
        known = set[str]()
        for value in self.inputs:
            if value.name in known:
                raise ModelFormatError(f"input {value.name!r}: expected one, got two", self.name)
            known.add(value.name)
        known.update(constants)
        for node in self.nodes:
            if node.problem:
                raise ModelFormatError(f"{node.label}: {node.problem}", self.name)
            for name in filter(None, node.inputs):
                if name not in known:
                    raise ModelFormatError(
                        f"{node.label} reads {name!r}: expected a value of an earlier node",
                        self.name,
                    )
            for name in filter(None, node.outputs):
                if name in known:
                    raise ModelFormatError(
                        f"{node.label} makes {name!r} again: expected a new name", self.name
                    )
                known.add(name)
        for value in self.outputs:
            if value.name not in known:
                raise ModelFormatError(
                    f"output {value.name!r}: expected a value of a node, an input or a constant",
                    self.name,
                )

    @cached_property
    def ops(self) -> frozenset[str]:
        """The operators of the nodes."""
        return frozenset([node.op for node in self.nodes])

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def _users(self) -> dict[str, list[Node]]:
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                users.setdefault(name, []).append(node)
        return users

    @cached_property
    def types(self) -> dict[str, Type]:
        """The type of every value, inferred from the inputs' declarations; see `Type`."""
        return self.infer_types({value.name: value.type for value in self.inputs})

    def infer_types(
        self, inputs: Mapping[str, Type], bound: Mapping[str, Size] = NOTHING
    ) -> dict[str, Type]:
        """Returns the types of all values if the inputs have these types.

        ``bound`` maps names of sizes to the sizes that they equal.
        """
        constants = {name: constant_type(array) for name, array in self.constants.items()}
        return infer(self.nodes, {**constants, **inputs}, bound)

    typed, pruned = Renamed("infer_types"), Renamed("prune")
    used_only_by = Renamed("is_used_only_by")

    def is_dense(self, *names: str) -> bool:
        """Returns whether all values are known to have no offsets; absent values ("") count as
        dense.
        """
        return all(self.types[name].lod == () for name in names if name)

    def _repr_html_(self) -> str:
        """Returns a table for notebooks: inputs, operators with the types of their outputs, and
        outputs.
        """
        from onernn.ir import html

        rows = [("input", "", value.name, str(self.types[value.name])) for value in self.inputs]
        for node in self.nodes:
            result = [name for name in node.outputs if name]
            types = "; ".join(str(self.types[name]) for name in result)
            rows.append((node.op, native_types(node.origin), ", ".join(result), types))
        rows += [("output", "", value.name, "") for value in self.outputs]
        return html.table(self.name, ("operator", "from", "makes", "type"), rows)

    def number(self, name: str) -> Any:
        """Returns the number in a constant of one element, None for any other value."""
        array = self.constants.get(name)
        return array.item() if array is not None and array.size == 1 else None

    def producer(self, name: str, *ops: str) -> Node | None:
        """Returns the node that makes a value; None for inputs, constants and "".

        ``ops``: the result is also None if the node's operator is not in ``ops``.
        """
        node = self._producers.get(name)
        return None if node is None or ops and node.op not in ops else node

    def has(self, node: Node) -> bool:
        """Returns whether this node object itself, not only an equal node, is in the graph."""
        return any(self.producer(name) is node for name in node.outputs if name)

    def users(self, name: str) -> list[Node]:
        """Returns the nodes that read a value, each once, in order."""
        return list(self._users.get(name, ()))

    def is_output(self, name: str) -> bool:
        """Returns whether the graph has an output of this name."""
        return any(value.name == name for value in self.outputs)

    def is_read(self, name: str) -> bool:
        """Returns whether any node, or the caller of the graph, reads the value; False for ""."""
        return bool(name) and (name in self._users or self.is_output(name))

    def is_used_only_by(self, name: str, node: Node) -> bool:
        """Returns whether this node is the value's only reader. The caller of the graph counts as a
        reader.
        """
        return self.users(name) == [node] and not self.is_output(name)

    def splice(
        self,
        old: Iterable[Node],
        new: Iterable[Node],
        constants: Mapping[str, Array] = NOTHING,
    ) -> Graph:
        """Returns the pruned graph in which the ``new`` nodes replace the ``old`` nodes, at the
        position of the last old node; adds ``constants``.
        """
        gone = set(map(id, old))
        place = max(i for i, node in enumerate(self.nodes) if id(node) in gone)
        kept = [node for node in self.nodes[: place + 1] if id(node) not in gone]
        nodes = (*kept, *new, *self.nodes[place + 1 :])
        return self._prune(nodes, {**self.constants, **constants})

    def bypass(self, identities: Iterable[Node]) -> Graph:
        """Returns the graph in which readers of each of these nodes read the node's first input
        instead.

        An output of the graph keeps its name, through an Identity.
        """
        behind = {node.outputs[0]: node.inputs[0] for node in identities}

        def source(name: str) -> str:
            while name in behind:
                name = behind[name]
            return name

        nodes = []
        for node in self.nodes:
            inputs = tuple(map(source, node.inputs))
            if node.outputs[0] not in behind:
                nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
            elif self.is_output(node.outputs[0]):
                nodes.append(Node("Identity", inputs[:1], node.outputs[:1], {}, node.origin))
        return self._prune(nodes, self.constants)

    def prune(self) -> Graph:
        """Returns the graph without nodes and constants that no output needs; all inputs stay."""
        return self._prune(self.nodes, self.constants)

    def _prune(self, nodes: Sequence[Node], constants: Mapping[str, Array]) -> Graph:
        needed = {value.name for value in self.outputs} | {""}
        kept = []
        for node in reversed(nodes):
            if not needed.isdisjoint(filter(None, node.outputs)):
                kept.append(node)
                needed.update(node.inputs)
        used = {name: array for name, array in constants.items() if name in needed}
        return replace(self, nodes=tuple(reversed(kept)), constants=used)


@dataclass(frozen=True, eq=False)
class Defaults:
    """The inputs of a graph that have a default in the file: the graph holds these defaults as
    constants.

    ``inputs``: these inputs in the form that the file declares. ``open(names, bound)`` reads the
    file again, and returns the graph in which ``names`` are inputs, and the arrays of ``bound`` are
    constants.
    """

    inputs: tuple[Value, ...]
    open: Callable[[Collection[str], Mapping[str, Array]], Graph]

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(value.name for value in self.inputs)


_defaults = WeakKeyDictionary[Graph, Defaults]()


def declare_defaults(graph: Graph, defaults: Defaults) -> None:
    """Records the defaults of a graph that was read from a file. Graphs that passes make from this
    graph have no recorded defaults.
    """
    _defaults[graph] = defaults


def defaults_of(graph: Graph) -> Defaults | None:
    return _defaults.get(graph)


def feed_defaults(graph: Graph, names: Iterable[str]) -> Graph:
    """Returns the graph in which each of ``names`` with a default in the file is an input."""
    defaults = defaults_of(graph)
    fed = defaults.names.intersection(names) if defaults else frozenset[str]()
    return defaults.open(fed, {}) if defaults and fed else graph


_readers: list[Callable[..., Graph]] = []


def register_reader(read: Callable[..., Graph]) -> None:
    """Registers the function that `graph_of` calls to read a path."""
    _readers.append(read)


def graph_of(model: Graph | str | PathLike[str], rules: Mapping[str, Any] | None = None) -> Graph:
    """Returns a graph unchanged; loads a path by `onernn.load` with these ``rules``.

    Raises the errors of `onernn.load`. Raises `UnsupportedError` for other types, and for rules of
    a model that has already been read.
    """
    if isinstance(model, Graph):
        if rules:
            raise UnsupportedError(
                f"rules: {model.name} is read already; pass them to onernn.load, or give a path"
            )
        return model
    if isinstance(model, str | PathLike):
        return _readers[-1](model, rules)
    raise UnsupportedError(
        "model: expected the result of onernn.load, or the path of a model, got"
        f" {type(model).__module__}.{type(model).__qualname__}"
    )
