"""The record that defines an operator: its schema, type rule, formula and properties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from inspect import CO_VARARGS, unwrap
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, Literal, TypeVar

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.types import Type, as_tuple, type_of

REQUIRED: Final = object()
"""Marks an attribute that has no default: a node must have a value for it."""

_INTEGERS = (bool, int, np.integer, np.bool_)
_KINDS: tuple[tuple[type, ...], ...] = (
    _INTEGERS,
    (float, int, np.floating, np.integer),
    (tuple, list),
    (str,),
)


def is_like(value: Any, default: Any) -> bool:
    """Returns whether an attribute's value has the kind of its default: integer, float, list or
    text.

    An integer is also like a Boolean or float default, because frameworks write 1 for True and for
    1.0. The elements of a list must be like the default's first element. For a default of any
    further kind, every value is accepted.
    """
    kinds = next((kinds for kinds in _KINDS if isinstance(default, kinds)), None)
    if isinstance(default, tuple | list) and isinstance(value, tuple | list):
        return all(is_like(each, default[0] if default else 0.0) for each in value)
    return kinds is None or isinstance(value, kinds)


Kind = Literal["elementwise", "view", "moves", "mixes", "sizes", "sequences", "layer", "control"]
"""The kinds of operators:

``elementwise``: each element of the result depends on the input elements with the same indices.
``view``: the result has the input's elements in the same order, in a different shape.
``moves``: the result has the input's elements at different indices.
``mixes``: an element of the result depends on several elements: products, reductions, norms.
``sizes``: the result consists of integers computed from shapes, or depends only on such integers.
``sequences``: the operator works sequence by sequence.
``layer``: the operator is a recurrent layer.
``control``: the operator runs graphs inside of the node.
"""

Compute = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Axes = Array
"""The annotation of an input that holds axis numbers, on which the result's type depends."""
Shape = Array
"""The annotation of an input of integers that only determine the size of the result."""
Axis = int
"""The annotation of an attribute that names the axis along which an operator works."""
Path = Sequence[int | None]
"""For each axis of an input, the axis of the results on which elements keep their index; None if
the operator combines or moves elements along the axis.

The path is () if every element of the results may depend on the whole input.
"""
Paths = Callable[..., Sequence[Path] | None]
"""``paths(attrs, *types)`` returns a path for each input, or None if the paths depend on the data
of a run.
"""
TypeRule = Callable[..., Any]
Growth = Callable[..., int]
Batched = Literal["", "stretched", "axis", "joined", "axes", "batch"] | Callable[[Any, Any], None]
"""How a node computes many rows at once, after its inputs get a new axis 0, the axis of rows:

``stretched``: inputs with fewer axes get axes of size 1 after the axis of rows.
``axis``: attribute ``axis`` increases by 1; inputs after the first are the same for all rows.
``joined``: attribute ``axis`` increases by 1; every input gets the axis of rows.
``axes``: the axis numbers in the input of `Axes` increase by 1.
``batch``: the axis of rows and the old axis 0 become one axis.
``""``: the node cannot compute many rows at once.
"""
RowRule = Callable[[Any, Any], Any]
"""``rows(flow, node)``: see `onernn.ops.row_rules`."""
Drops = bool | Callable[..., bool]


@dataclass(frozen=True)
class Slot:
    """One input of an operator. If the last input is ``variadic``, a node may have any number of
    inputs in its place.

    ``ragged``: the input must have offsets. ``axes``: the input holds axis numbers, on which the
    result's type depends. ``shape``: the input holds integers that only determine the result's
    size.
    """

    name: str
    optional: bool
    variadic: bool
    ragged: bool
    axes: bool
    shape: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of ONNX in its newest form, or one of onernn's own operators.

    ``attributes``: the attributes' names and defaults.
    ``type(context, *types)`` returns the types of the outputs.
    ``compute(attrs, *values)`` returns the output, or a tuple of outputs; an absent input is None.
    For a ragged input it gets the array of steps; its result gets the offsets of the first ragged
    input.
    ``offsets``: whether ``compute`` takes and returns `Ragged` values instead of arrays.
    ``paths``: see `Paths`, None if not known; the steps of a ragged input must keep their indices.
    ``reach(attrs, axis, *types)`` returns the `onernn.ops.windows.Window` of the first input that
    each index of the result reads along an axis; None if its size varies.
    ``dropped``: whether the result of ragged inputs is an array, because its axis 0 is not the axis
    of steps; or a function ``dropped(attrs, *types)`` that decides this.
    ``since``: the first opset of ``domain`` in which ONNX's operator has the same definition; 0 if
    ONNX does not have the operator.
    ``keeps``: whether each element of the result is an element of the first input, perhaps cast (of
    any input if the last input is variadic). ``growth(node, *values)`` returns a bound for the
    bytes that a run allocates. If it is None, the bound is the size of the results, by ``type``;
    ``compute`` asks the run's budget if that size depends on data.
    ``scratch``: additional bytes that a run takes, for each element of the largest input.
    ``sized``: whether ``compute`` also works on arrays of `Size`: type inference then calls it.
    ``expression(attrs, there)`` returns the expression that an elementwise operator computes from
    the inputs that are present; see `onernn.ops.elementwise`.
    ``batched``: see `Batched`; a function ``batched(mapper, node)`` adds the node for all rows to a
    `fuse_passes.mapping.Mapper`.
    ``rows``: a rule that finds a batch's rows in the outputs if ``paths`` do not show them.
    """

    name: str
    kind: Kind
    slots: tuple[Slot, ...]
    attributes: Mapping[str, Any]
    type: TypeRule
    compute: Compute | None
    paths: Paths | None
    reach: Callable[..., Any] | None
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
    rows: RowRule | None

    @cached_property
    def least(self) -> int:
        """The minimum number of inputs that a node has."""
        there = [not (slot.optional or slot.variadic) for slot in self.slots]
        return max((index for index, needed in enumerate(there, 1) if needed), default=0)

    @cached_property
    def most(self) -> int | None:
        """The maximum number of inputs; None means any number."""
        return None if self.slots and self.slots[-1].variadic else len(self.slots)

    def slot(self, index: int) -> Slot:
        return self.slots[min(index, len(self.slots) - 1)]

    def keeps_words(self, attrs: SimpleNamespace, *types: Type | None) -> bool:
        """Returns whether the result of ragged inputs is ragged; otherwise it is an array.

        Raises `ShapeError` if the operator would combine different steps.
        """
        dropped = self.dropped if isinstance(self.dropped, bool) else self.dropped(attrs, *types)
        if dropped or self.paths is stretch or (self.kind == "view" and self.paths is None):
            return not dropped
        paths = (self.paths and self.paths(attrs, *types)) or ()
        ragged = [index for index, each in enumerate(types) if each is not None and each.lod]
        if any(index >= len(paths) or list(paths[index][:1]) != [0] for index in ragged):
            raise ShapeError(
                "axis 0 would mix the steps of ragged sequences: expected a different axis, or a"
                " value without LoD"
            )
        return True

    def attrs(self, attributes: Mapping[str, Any], outputs: int) -> SimpleNamespace:
        """Returns the attributes, completed by defaults, and the number of ``outputs`` as a
        namespace.
        """
        return SimpleNamespace(**{**self.attributes, **attributes, "outputs": outputs})

    def problem(
        self, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: Mapping[str, Any]
    ) -> str:
        """Returns what is wrong with a node's inputs, outputs or attributes, "" if nothing is."""
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
            known = ", ".join(self.attributes) or "no attributes"
            return f"unknown attribute {', '.join(unknown)}: expected {known}"
        for name, value in attributes.items():
            default = self.attributes[name]
            if default is None and value is not None:  # None: the operator computes the integers
                default = (0,) if isinstance(value, tuple | list) else 0
            if not is_like(value, default):
                return f"attribute {name}={value!r}: expected one like {default!r}"
        lacking = [k for k, v in self.attributes.items() if v is REQUIRED and k not in attributes]
        return f"attribute {', '.join(lacking)} is missing" if lacking else ""

    def run(self, node: Any, *values: Any) -> Any:
        """Returns the node's output, or a tuple of them, from its input values (None if absent).

        If all floats are float16, computes in float32 and rounds the first output. Raises
        `ShapeError` if the operator would combine steps of a ragged value, and any error of the
        formula.
        """
        if self.compute is None:
            raise ShapeError(f"{self.name} needs a Session that runs it")
        if self.keeps or self.kind == "sizes" or not _are_halves(values):
            return self._run(node, *values)
        result = self._run(node, *(_as(value, _HALF, np.float32) for value in values))
        first, *others = as_tuple(result)
        with np.errstate(over="ignore"):
            first = _as(first, np.float32, _HALF)
        return (first, *others) if isinstance(result, tuple) else first

    def _run(self, node: Any, *values: Any) -> Any:
        assert self.compute is not None
        attrs = node.attrs
        if self.offsets:
            for place, value in enumerate(values):
                if self.slot(place).ragged and not isinstance(value, Ragged):
                    raise ShapeError(
                        f"{node.inputs[place]!r} has no offsets: expected onernn.Ragged"
                    )
            return self.compute(attrs, *values)
        arrays = [None if value is None else data_of(value) for value in values]
        like = next((value for value in values if isinstance(value, Ragged)), None)
        kept = like is not None and self.keeps_words(
            attrs, *(None if value is None else type_of(value) for value in values)
        )
        with np.errstate(all="ignore"):  # infinity and NaN are results, not warnings
            out = self.compute(attrs, *arrays)
        if like is None or not kept:
            return out
        if isinstance(out, tuple):
            return tuple(_under(each, like) for each in out)
        return _under(out, like)


_HALF = np.dtype(np.float16)


def _are_halves(values: Iterable[Any]) -> bool:
    dtypes = {data_of(value).dtype for value in values if value is not None}
    return _HALF in dtypes and {each for each in dtypes if each.kind == "f"} == {_HALF}


def _as(value: Any, dtype: Any, to: Any) -> Any:
    """Returns a value of ``dtype`` converted to ``to``, and values of all other dtypes
    unchanged.
    """
    array = None if value is None else data_of(value)
    if array is None or array.dtype != dtype:
        return value
    array = array.astype(to)
    return value.with_data(array) if isinstance(value, Ragged) else array


def _under(out: Any, like: Ragged) -> Ragged:
    if out.ndim and len(out) == len(like.data):
        return like.with_data(out)
    raise ShapeError(f"result: expected {len(like.data)} steps on axis 0, got {out.shape}")


OPERATORS: dict[str, Operator] = {}
"""All canonical operators by name; `onernn.ops` fills it."""


def find_operator(name: str) -> Operator | None:
    """Returns the canonical operator of this name, None if there is none.

    Imports `onernn.ops` if needed: a program may make a graph before it imports anything else.
    """
    if name not in OPERATORS:
        import_module("onernn.ops")
    return OPERATORS.get(name)


def at_axis(axis: int, rank: int) -> int:
    """Returns an axis as a number from 0 on; negative axes count from the end. Raises `ShapeError`
    for an axis that does not exist.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis}: expected an axis in [{-rank}, {rank})")
    return axis % rank


def rank_of(x: Type | None) -> int:
    """Returns the number of axes, 0 for an absent value. Raises `ShapeError` if it is not known."""
    if x is not None and x.rank is None:
        raise ShapeError("the number of axes is not known: declare the shapes of inputs")
    return 0 if x is None else x.rank or 0


def over(x: Type, axes: Iterable[Any], keepdims: Any = 1) -> list[Path]:
    """Returns the `Path` of the first input ``x`` of an operator that works along ``axes`` of
    ``x``.
    """
    along = {at_axis(int(axis), rank_of(x)) for axis in axes}
    gone = () if keepdims else along
    ranks = range(rank_of(x))
    return [[None if k in along else k - sum(axis < k for axis in gone) for k in ranks]]


def along_axis(attrs: Any, x: Type, *_: Any) -> list[Path]:
    """Returns the `Path` of the first input of an operator that works along attribute ``axis``."""
    return over(x, (attrs.axis,), vars(attrs).get("keepdims", 1))


def stretch(_: Any, *types: Type | None) -> list[Path]:
    """Returns the `Path` of each input of an operator that broadcasts its inputs to one shape."""
    ranks = list(map(rank_of, types))
    return [range(max(ranks) - rank, max(ranks)) for rank in ranks]


def join(attrs: Any, *types: Type) -> list[Path]:
    """Returns the `Path` of each input of an operator that works along attribute ``axis`` of all
    inputs.
    """
    return [over(each, (attrs.axis,))[0] for each in types]


def batch(_: Any, x: Type, *others: Any) -> list[Path]:
    """Returns the `Path` of the first input ``x`` of an operator that works within each row of axis
    0, the batch.
    """
    return over(x, range(1, rank_of(x)))


def op(
    name: str,
    *,
    kind: Kind,
    type: TypeRule,
    attributes: Mapping[str, Any] | None = None,
    paths: Paths | None = None,
    reach: Callable[..., Any] | None = None,
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
    """Returns a decorator that adds an operator; the decorated NumPy function computes it.

    The function's signature is the schema. Positional parameters are the inputs: one annotated ``|
    None`` may be absent, ``*rest`` is any number of inputs, and `Ragged`, `Axes` and `Shape` set
    the fields of `Slot`. Keyword parameters are the attributes with their defaults: `Axis` is the
    axis along which the operator works, and ``outputs`` is the number of a node's outputs. A first
    parameter ``attrs`` takes all attributes at once; then ``attributes`` lists them. The function
    of a recurrent layer or of control flow has no body, because a session runs these operators.

    `Operator` explains the other arguments. By default, ``offsets`` is true for the kinds
    sequences, layer and control. ``since`` is 0, not ONNX, for sequences and layers. ``keeps`` is
    true for views and moves. ``batched`` follows from `Axes`, an attribute ``axis``, or the kind.
    ``paths`` follows from the kind, an `Axis`, or ``batched``.
    """

    def register(function: Function) -> Function:
        # reads the code object, because `inspect.signature` is slower
        plain: Any = unwrap(function)
        code, said = plain.__code__, plain.__annotations__
        inputs, rest = code.co_varnames[: code.co_argcount], code.co_flags & CO_VARARGS
        last = code.co_argcount + code.co_kwonlyargcount
        options = code.co_varnames[code.co_argcount : last]
        takes_all = code.co_varnames[:1] == ("attrs",)
        names = (*inputs[takes_all:], *code.co_varnames[last : last + bool(rest)])
        slots = tuple(_slot(name, said.get(name, ""), name not in inputs) for name in names)
        defaults = plain.__kwdefaults__ or {}
        attrs = {name: defaults.get(name, REQUIRED) for name in options if name != "outputs"}
        attrs |= attributes or {}

        def compute(attrs: SimpleNamespace, *values: Any) -> Any:
            if not options:
                return function(*values)
            return function(*values, **{name: attrs.__dict__[name] for name in options})

        runs_elsewhere = kind in ("layer", "control")
        as_batch = _batch(kind, slots, attrs) if batched is None else batched
        sees_offsets = kind in ("sequences", "layer", "control") if offsets is None else offsets
        OPERATORS[name] = Operator(
            name=name,
            kind=kind,
            slots=slots,
            attributes=MappingProxyType(attrs),
            type=type,
            compute=None if runs_elsewhere else function if takes_all else compute,
            paths=paths or _paths(kind, as_batch, map(said.get, options)),
            reach=reach,
            dropped=drops,
            offsets=sees_offsets,
            outputs=(1, outputs) if isinstance(outputs, int) else outputs,
            since=(0 if kind in ("sequences", "layer") else 1) if since is None else since,
            domain=domain,
            sized=sized,
            keeps=kind in ("view", "moves") if keeps is None else keeps,
            growth=growth,
            scratch=scratch,
            expression=expression,
            batched=as_batch,
            rows=rows,
        )
        return function

    return register


def _batch(kind: Kind, slots: Sequence[Slot], attributes: Mapping[str, Any]) -> Batched:
    if any(slot.axes for slot in slots):
        return "axes"
    if isinstance(attributes.get("axis"), int):
        return "axis"
    return "stretched" if kind == "elementwise" else ""


def _paths(kind: Kind, batched: Batched, annotations: Iterable[Any]) -> Paths | None:
    if kind == "elementwise":
        return stretch
    if "Axis" in annotations:
        return along_axis
    return batch if batched == "batch" else None


def _slot(name: str, annotation: Any, variadic: bool) -> Slot:
    if not isinstance(annotation, str):
        raise TypeError(f"{name}: the file lacks from __future__ import annotations")
    return Slot(
        name,
        optional=annotation.endswith("| None"),
        variadic=variadic,
        ragged=annotation == "Ragged",
        axes=annotation.startswith("Axes"),
        shape=annotation == "Shape",
    )
