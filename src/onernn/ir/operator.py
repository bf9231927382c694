"""What an operator is: one record, from which everything else about it follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter, signature
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, Literal, TypeVar

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass

REQUIRED: Final = object()
"""In the place of an attribute's default: it has to be given."""

_INTEGERS = (bool, int, np.integer, np.bool_)
_KINDS: tuple[tuple[type, ...], ...] = (
    _INTEGERS,
    (float, int, np.floating, np.integer),
    (tuple, list),
    (str,),
)


def is_like(value: Any, default: Any) -> bool:
    """Whether a value is of a default's kind; any is where the default has none.

    Frameworks write 1 for True, and for 1.0. Lists hold what the default's does, or numbers.
    """
    kinds = next((kinds for kinds in _KINDS if isinstance(default, kinds)), None)
    if isinstance(default, tuple | list) and isinstance(value, tuple | list):
        return all(is_like(each, default[0] if default else 0.0) for each in value)
    return kinds is None or isinstance(value, kinds)


Kind = Literal["elementwise", "view", "moves", "mixes", "sizes", "sequences", "layer", "control"]
"""elementwise  an element of the result depends on the elements at its place
view         the same elements in the same order under another shape
moves        elements at other places, their numbers unchanged
mixes        an element depends on several: products, reductions, norms
sizes        integers computed from shapes, and values that are made of them
sequences    works sequence by sequence
layer        a recurrent layer
control      runs graphs of its own"""

Compute = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Axes = Array
"""The annotation of an input of integers that name axes: the result's type depends on them."""
Mixes = Callable[..., Iterable[int] | None]
TypeRule = Callable[..., Any]
Growth = Callable[..., int]
Batched = Literal["", "stretched", "axis", "joined", "axes", "batch"] | Callable[[Any, Any], None]
"""How an operator is computed of many rows at once, when its values get an axis in front:
stretched  inputs of fewer axes get ones behind that of the rows
axis       attribute ``axis`` counts one axis more; the other inputs are alike for all rows
joined     so does it; each input has all rows
axes       the input of `Axes` counts one axis more
batch      rows and axis 0 become one axis
""         not at all"""
RowRule = Literal["", "stretched", "view", "axes", "joined", "batch"] | Callable[[Any, Any], Any]
"""Where the results have the rows of a batch, each made of the same row of the inputs; see
`onernn.fuse_passes.row_independence`:
stretched  on the same axis, counted from the last one; other inputs have size 1 there
view       at the same places in memory
axes       on the same axis of the first input, unless it is one of ``mixed``
joined     on the same axis of all inputs, unless it is attribute ``axis``
batch      on axis 0 of the first input and of the first output
""         no rule: not known"""
Drops = bool | Callable[..., bool]


@dataclass(frozen=True)
class Slot:
    """An input. The last one may be ``variadic``: any number of them.

    ``axes``: integers that name axes, so that the result's type depends on them.
    """

    name: str
    optional: bool
    variadic: bool
    ragged: bool
    axes: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator in ONNX's newest form, by name and meaning, or one of the package's own domain.

    attributes  names and defaults
    type        ``type(context, *types)`` gives the types of the outputs
    compute     ``compute(attrs, *values)`` gives the output, or a tuple of them; an absent input is
                None. It sees the arrays of ragged inputs, and the result is ragged like the first
                of these
    offsets     ``compute`` sees `Ragged` values instead, and decides itself
    mixed       ``mixed(attrs, rank, *values)``: the axes of the first input along which elements
                meet; the words of a LoD must not be among them. None: they depend on unknown values
    dropped     whether axis 0 of the result is another one than the words, so that the result is an
                array; or ``dropped(attrs, rank, *values)``
    since       the first opset in which ONNX has it, in ``domain``; 0: it is not ONNX's
    keeps       the result's elements are elements of the first input (of all inputs where there may
                be any number): moved, chosen among others, cast
    growth      ``growth(node, *values)`` bounds the bytes that a run may allocate. None: those of
                the results, by ``type``; the sizes of the inputs bound them
    scratch     bytes that a run takes besides, for each element of the largest input
    sized       ``compute`` also works on arrays of `Size`: shapes are followed through it
    expression  ``expression(attrs, there)``: what an elementwise operator computes of the inputs
                that are there; see `onernn.ops.elementwise`
    batched     see `Batched`; a function ``batched(mapper, node)`` adds the node of all rows to a
                `fuse_passes.mapping.Mapper`
    rows        see `RowRule`; a function ``rows(flow, node)`` returns where the outputs have rows
    """

    name: str
    kind: Kind
    slots: tuple[Slot, ...]
    attributes: Mapping[str, Any]
    type: TypeRule
    compute: Compute | None
    mixed: Mixes
    dropped: Drops
    offsets: bool
    outputs: tuple[int, int]
    since: int
    domain: str
    sized: bool
    keeps: bool
    growth: Growth | None
    scratch: int
    expression: Compute | None
    batched: Batched
    rows: RowRule

    @cached_property
    def least(self) -> int:
        """How many inputs have to be there."""
        there = [not (slot.optional or slot.variadic) for slot in self.slots]
        return max((index for index, needed in enumerate(there, 1) if needed), default=0)

    @cached_property
    def most(self) -> int | None:
        """How many there may be, None: any number."""
        return None if self.slots and self.slots[-1].variadic else len(self.slots)

    def slot(self, index: int) -> Slot:
        return self.slots[min(index, len(self.slots) - 1)]

    def drops(self, attrs: SimpleNamespace, rank: int, *values: Any) -> bool:
        """Whether the result of a ragged input is an array."""
        dropped = self.dropped
        return dropped if isinstance(dropped, bool) else dropped(attrs, rank, *values)

    def attrs(self, attributes: Mapping[str, Any], outputs: int) -> SimpleNamespace:
        """The attributes with their defaults, and the number of ``outputs``."""
        return SimpleNamespace(**{**self.attributes, **attributes, "outputs": outputs})

    def problem(
        self, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: Mapping[str, Any]
    ) -> str:
        """What is wrong with a node's inputs, outputs or attributes, "" where nothing is."""
        if len(inputs) < self.least or (self.most is not None and len(inputs) > self.most):
            most = "more" if self.most is None else self.most
            return f"expected {self.least} to {most} inputs, got {len(inputs)}"
        for index, name in enumerate(inputs):
            if not name and not self.slot(index).optional:
                return f"input {self.slot(index).name} is missing"
        low, high = self.outputs
        if not low <= len(outputs) <= high:
            return f"expected {low} to {high} outputs, got {len(outputs)}"
        unknown = sorted(set(attributes) - set(self.attributes))
        if unknown:
            return f"unknown attribute {', '.join(unknown)}"
        for name, value in attributes.items():
            default = self.attributes[name]
            if default is None and value is not None:  # integers that the operator can find itself
                default = (0,) if isinstance(value, tuple | list) else 0
            if not is_like(value, default):
                return f"attribute {name}={value!r}: expected one like {default!r}"
        lacking = [k for k, v in self.attributes.items() if v is REQUIRED and k not in attributes]
        return f"attribute {', '.join(lacking)} is missing" if lacking else ""

    def run(self, node: Any, *values: Any) -> Any:
        """The node's output, or a tuple of them, from its input values (None where absent).

        What computes halves computes in float32, and its first output is rounded. Raises
        `ShapeError` where words of a LoD would mix, and whatever the formula raises.
        """
        if self.compute is None:
            raise ShapeError(f"{self.name} runs in a session only")
        if self.keeps or self.kind == "sizes" or not _are_halves(values):
            return self._run(node, *values)
        result = self._run(node, *(_as(value, _HALF, np.float32) for value in values))
        first, *others = result if isinstance(result, tuple) else (result,)
        with np.errstate(over="ignore"):
            first = _as(first, np.float32, _HALF)
        return (first, *others) if isinstance(result, tuple) else first

    def _run(self, node: Any, *values: Any) -> Any:
        assert self.compute is not None
        attrs = node.attrs
        if self.offsets:
            for place, value in enumerate(values):
                if self.slot(place).ragged and not isinstance(value, Ragged):
                    raise ShapeError(f"{node.inputs[place]!r} carries no offsets")
            return self.compute(attrs, *values)
        arrays = [None if value is None else data_of(value) for value in values]
        like = next((value for value in values if isinstance(value, Ragged)), None)
        dropped = False
        if like is not None:
            rank = next(array.ndim for array in arrays if array is not None)
            if any(axis in (0, -rank) for axis in self.mixed(attrs, rank, *arrays[1:]) or ()):
                raise ShapeError(
                    "axis 0 would mix the steps of ragged sequences; drop the LoD before"
                )
            dropped = self.drops(attrs, rank, *arrays[1:])
        with np.errstate(all="ignore"):  # infinity and NaN are results, not warnings
            out = self.compute(attrs, *arrays)
        if like is None or dropped:
            return out
        if isinstance(out, tuple):
            return tuple(_under(each, like) for each in out)
        return _under(out, like)


_HALF = np.dtype(np.float16)


def _are_halves(values: Iterable[Any]) -> bool:
    """Whether there are numbers of float16, and no wider ones."""
    dtypes = {data_of(value).dtype for value in values if value is not None}
    return _HALF in dtypes and {each for each in dtypes if each.kind == "f"} == {_HALF}


def _as(value: Any, dtype: Any, to: Any) -> Any:
    """A value of one dtype in another; others as they are."""
    array = None if value is None else data_of(value)
    if array is None or array.dtype != dtype:
        return value
    array = array.astype(to)
    return value.with_data(array) if isinstance(value, Ragged) else array


def _under(out: Any, like: Ragged) -> Ragged:
    if out.ndim and len(out) == len(like.data):
        return like.with_data(out)
    raise ShapeError(f"gives {out.shape} under offsets of {len(like.data)} steps")


OPERATORS: dict[str, Operator] = {}
"""All canonical operators by name; `onernn.ops` fills it."""


def mixes_nothing(*_: Any) -> tuple[int, ...]:
    return ()


def along_axis(attrs: Any, *_: Any) -> tuple[int, ...]:
    """The axis of attribute ``axis``."""
    return (attrs.axis,)


def op(
    name: str,
    *,
    kind: Kind,
    type: TypeRule,
    attributes: Mapping[str, Any] | None = None,
    mixes: Mixes = mixes_nothing,
    drops: Drops = False,
    offsets: bool | None = None,
    outputs: int | tuple[int, int] = 1,
    since: int | None = None,
    domain: str = "",
    sized: bool = False,
    keeps: bool | None = None,
    growth: Growth | None = None,
    scratch: int = 0,
    expression: Compute | None = None,
    batched: Batched | None = None,
    rows: RowRule | None = None,
) -> Callable[[Function], Function]:
    """Adds the operator that a NumPy function computes; its signature is the schema.

    Positional parameters are the inputs: annotated ``| None`` one may be absent, ``*rest`` is any
    number of them, `Ragged` carries offsets, `Axes` holds integers that name axes. Parameters by
    keyword are the attributes with their defaults; ``outputs`` is how many outputs a node has. A
    first parameter ``attrs`` takes all attributes at once; ``attributes`` lists them then. A layer
    or control flow runs in a session: its function has no body. See `Operator` for the rest.
    By default sequences, layers and control see ``offsets``, the first two are not ONNX's
    (``since`` is 0), views and moves have ``keeps``, and ``batched`` follows from `Axes`, an
    attribute ``axis``, or the kind; ``rows`` follows from ``batched``, the kind, or ``mixes``.
    """

    def register(function: Function) -> Function:
        parameters = [*signature(function).parameters.values()]
        options = {p.name: p for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
        inputs = [p for p in parameters if p.name not in options and p.name != "attrs"]
        named = {
            k: REQUIRED if p.default is Parameter.empty else p.default for k, p in options.items()
        }
        named.pop("outputs", None)

        def compute(attrs: SimpleNamespace, *values: Any) -> Any:
            if not options:
                return function(*values)
            return function(*values, **{name: attrs.__dict__[name] for name in options})

        slots, attrs = tuple(map(_slot, inputs)), {**named, **(attributes or {})}
        takes_all = parameters[0].name == "attrs"
        runs_elsewhere = kind in ("layer", "control")
        as_batch = _batched(kind, slots, attrs) if batched is None else batched
        sees_offsets = kind in ("sequences", "layer", "control") if offsets is None else offsets
        OPERATORS[name] = Operator(
            name=name,
            kind=kind,
            slots=slots,
            attributes=MappingProxyType(attrs),
            type=type,
            compute=None if runs_elsewhere else function if takes_all else compute,
            mixed=mixes,
            dropped=drops,
            offsets=sees_offsets,
            outputs=(1, outputs) if isinstance(outputs, int) else outputs,
            since=(0 if kind in ("sequences", "layer") else 13) if since is None else since,
            domain=domain,
            sized=sized,
            keeps=kind in ("view", "moves") if keeps is None else keeps,
            growth=growth,
            scratch=scratch,
            expression=expression,
            batched=as_batch,
            rows=_rows(kind, as_batch, mixes, sees_offsets) if rows is None else rows,
        )
        return function

    return register


def _batched(kind: Kind, slots: Sequence[Slot], attributes: Mapping[str, Any]) -> Batched:
    if any(slot.axes for slot in slots):
        return "axes"
    if isinstance(attributes.get("axis"), int):
        return "axis"
    return "stretched" if kind == "elementwise" else ""


def _rows(kind: Kind, batched: Batched, mixes: Mixes, offsets: bool) -> RowRule:
    if offsets or batched == "batch":
        return "" if offsets else "batch"
    if kind == "elementwise":
        return "stretched"
    return "view" if kind == "view" else "" if mixes is mixes_nothing else "axes"


def _slot(parameter: Parameter) -> Slot:
    annotation = "" if parameter.annotation is Parameter.empty else parameter.annotation
    if not isinstance(annotation, str):
        raise TypeError(f"{parameter}: the file lacks from __future__ import annotations")
    return Slot(
        parameter.name,
        optional=annotation.endswith("| None"),
        variadic=parameter.kind is Parameter.VAR_POSITIONAL,
        ragged=annotation == "Ragged",
        axes=annotation.startswith("Axes"),
    )
