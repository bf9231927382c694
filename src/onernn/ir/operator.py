"""Defines an operator as one record, from which everything else about it follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from inspect import CO_VARARGS, unwrap
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, Literal, TypeVar

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.types import Type, type_of

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
    """Returns whether a value is of the same kind as a default; True without a default.

    Frameworks write 1 for True, and for 1.0. Lists hold elements of the default's kind, or numbers.
    """
    kinds = next((kinds for kinds in _KINDS if isinstance(default, kinds)), None)
    if isinstance(default, tuple | list) and isinstance(value, tuple | list):
        return all(is_like(each, default[0] if default else 0.0) for each in value)
    return kinds is None or isinstance(value, kinds)


Kind = Literal["elementwise", "view", "moves", "mixes", "sizes", "sequences", "layer", "control"]
"""elementwise  an element of the result depends on the input elements at the same place
view         the same elements in the same order under another shape
moves        elements at different places, their values unchanged
mixes        an element depends on several: products, reductions, norms
sizes        integers computed from shapes, and values computed from these integers
sequences    works sequence by sequence
layer        a recurrent layer
control      runs graphs inside of the node"""

Compute = Callable[..., Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Axes = Array
"""The annotation of an input of integers that name axes: the result's type depends on them."""
Shape = Array
"""The annotation of an input of integers that only determine the size of the result."""
Axis = int
"""The annotation of an attribute that names the axis along which an operator works."""
Path = Sequence[int | None]
"""For each axis of an input: the axis of the results on which its elements keep their index. None
if elements along it are combined or moved. () for an input that all elements of the results may
read.
"""
Paths = Callable[..., Sequence[Path] | None]
"""``paths(attrs, *types)``: a path for each input. None if only a run knows them."""
TypeRule = Callable[..., Any]
Growth = Callable[..., int]
Batched = Literal["", "stretched", "axis", "joined", "axes", "batch"] | Callable[[Any, Any], None]
"""How an operator is computed for many rows at once, when its values get a new axis 0 of rows:
stretched  inputs with fewer axes get axes of size 1 after the axis of rows
axis       attribute ``axis`` counts one more axis; the other inputs are the same for all rows
joined     attribute ``axis`` counts one more axis; each input has all rows
axes       the input of `Axes` counts one more axis
batch      rows and axis 0 become one axis
""         not possible"""
RowRule = Callable[[Any, Any], Any]
"""``rows(flow, node)``: see `onernn.ops.row_rules`."""
Drops = bool | Callable[..., bool]


@dataclass(frozen=True)
class Slot:
    """An input. The last input may be ``variadic``: then there may be any number of inputs in its
    place.

    ``axes``: integers that name axes, so that the result's type depends on them. ``shape``:
    integers that only determine the size of the result.
    """

    name: str
    optional: bool
    variadic: bool
    ragged: bool
    axes: bool
    shape: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator in ONNX's newest form, by name and meaning, or one of onernn's own domain.

    attributes  names and defaults
    type        ``type(context, *types)`` returns the types of the outputs
    compute     ``compute(attrs, *values)`` returns the output, or a tuple of them; an absent input
                is None. It gets the arrays of ragged inputs, and the result has the offsets of the
                first of them
    offsets     ``compute`` gets `Ragged` values instead, and decides about offsets itself
    paths       see `Paths`; the steps of a ragged input must keep their places. None: not known
    reach       ``reach(attrs, axis, *types)``: the window of the first input that each place along
                an axis reads, an `onernn.ops.windows.Window`; None if its size varies
    dropped     whether axis 0 of the result is not the axis of steps, so that the result is an
                array; or ``dropped(attrs, *types)``
    since       an opset; in earlier ones ONNX, in ``domain``, lacks this meaning; 0: not ONNX's
    keeps       the result's elements are elements of the first input (of all inputs if there may
                be any number): moved, selected, cast
    growth      ``growth(node, *values)`` bounds the bytes that a run may allocate. None: the bytes
                of the results, by ``type``; ``compute`` asks the run's budget if data decide
    scratch     additional bytes that a run takes, for each element of the largest input
    sized       ``compute`` also works on arrays of `Size`, so that shapes can be inferred by it
    expression  ``expression(attrs, there)``: the expression that an elementwise operator computes
                from the inputs that are present; see `onernn.ops.elementwise`
    batched     see `Batched`; a function ``batched(mapper, node)`` adds the node of all rows to a
                `fuse_passes.mapping.Mapper`
    rows        a rule for the place of a batch's rows in the outputs, if ``paths`` do not say it
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
        """The minimum number of inputs."""
        there = [not (slot.optional or slot.variadic) for slot in self.slots]
        return max((index for index, needed in enumerate(there, 1) if needed), default=0)

    @cached_property
    def most(self) -> int | None:
        """The maximum number of inputs, None: any number."""
        return None if self.slots and self.slots[-1].variadic else len(self.slots)

    def slot(self, index: int) -> Slot:
        return self.slots[min(index, len(self.slots) - 1)]

    def keeps_words(self, attrs: SimpleNamespace, *types: Type | None) -> bool:
        """Returns whether the result of ragged inputs is ragged; otherwise it is an array.

        Raises `ShapeError` if steps would be combined.
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
        """Returns the attributes with their defaults, and the number of ``outputs``."""
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
            if default is None and value is not None:  # integers that the operator can find itself
                default = (0,) if isinstance(value, tuple | list) else 0
            if not is_like(value, default):
                return f"attribute {name}={value!r}: expected one like {default!r}"
        lacking = [k for k, v in self.attributes.items() if v is REQUIRED and k not in attributes]
        return f"attribute {', '.join(lacking)} is missing" if lacking else ""

    def run(self, node: Any, *values: Any) -> Any:
        """Returns the node's output, or a tuple of them, from its input values (None if absent).

        Operators on float16 compute in float32, and the first output is rounded. Raises
        `ShapeError` if steps of a LoD would be combined, and any error that the formula raises.
        """
        if self.compute is None:
            raise ShapeError(f"{self.name} needs a Session that runs it")
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
    """Returns whether there are float16 values and no wider ones."""
    dtypes = {data_of(value).dtype for value in values if value is not None}
    return _HALF in dtypes and {each for each in dtypes if each.kind == "f"} == {_HALF}


def _as(value: Any, dtype: Any, to: Any) -> Any:
    """Returns a value of one dtype in another dtype; returns a value of any other dtype
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


def at_axis(axis: int, rank: int) -> int:
    """Returns an axis counted from the front. Raises `ShapeError` for an axis that does
    not exist.
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
    """Returns the path of the first input of an operator that works along axes of this input."""
    along = {at_axis(int(axis), rank_of(x)) for axis in axes}
    gone = () if keepdims else along
    ranks = range(rank_of(x))
    return [[None if k in along else k - sum(axis < k for axis in gone) for k in ranks]]


def along_axis(attrs: Any, x: Type, *_: Any) -> list[Path]:
    """Returns the paths of an operator along the axis of attribute ``axis``."""
    return over(x, (attrs.axis,), vars(attrs).get("keepdims", 1))


def stretch(_: Any, *types: Type | None) -> list[Path]:
    """Returns the paths of inputs that are broadcast to one shape."""
    ranks = list(map(rank_of, types))
    return [range(max(ranks) - rank, max(ranks)) for rank in ranks]


def join(attrs: Any, *types: Type) -> list[Path]:
    """Returns the paths of inputs that all work along the axis of attribute ``axis``."""
    return [over(each, (attrs.axis,))[0] for each in types]


def batch(_: Any, x: Type, *others: Any) -> list[Path]:
    """Returns the path of a first input whose axis 0 is a batch."""
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
    """Adds the operator that a NumPy function computes; its signature is the schema.

    Positional parameters are the inputs. An input annotated ``| None`` may be absent, ``*rest`` is
    any number of inputs, `Ragged` has offsets, `Axes` and `Shape` hold integers for axes and sizes.
    Keyword parameters are the attributes with their defaults; `Axis` is the axis along which the
    operator works; ``outputs`` is the number of a node's outputs. A first parameter ``attrs`` takes
    all attributes at once; then ``attributes`` lists them. A layer or control flow runs in a
    session: its function has no body. See `Operator` for the rest. By default, sequences, layers
    and control get ``offsets``; sequences and layers are not ONNX operators (``since`` is 0); views
    and moves have ``keeps``. By default, ``batched`` follows from `Axes`, an attribute ``axis``, or
    the kind, and ``paths`` follows from the kind, an `Axis`, or ``batched``.
    """

    def register(function: Function) -> Function:
        plain: Any = unwrap(function)  # faster than `inspect.signature`, of 250 operators
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
