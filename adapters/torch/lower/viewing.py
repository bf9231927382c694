"""The rules of views: the sizes that a program writes as numbers are told from what they were.

A view of (3, 7, 10) as (21, 10) is one of (N * T, 10) at any N and T; see `builder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import mul
from typing import NamedTuple, cast

from onernn.adapters.torch.lower.operator import TorchOperator, rule
from onernn.adapters.torch.read.exported import Open
from onernn.core.errors import UnsupportedError
from onernn.core.sizes import Factor, Size

_MOST_WAYS = 100


class _Group(NamedTuple):
    """Axes before and behind a view that have the same number of elements, by position."""

    before: range
    behind: range


@rule("view reshape _unsafe_view view_copy _reshape_alias")
def _view(op: TorchOperator) -> str:
    x, wanted = op.value(), op.sizes("size" if op.given("size") else "shape")
    op.attribute("stride", [])
    shape = op.shape(x)
    before = [op.builder.standing_for(size) for size in shape]
    behind = _completed([_number(op, each) for each in wanted], before)
    told: list[_Told] = []
    if behind is None:
        op.builder.tie(op.builder.free, op.why)
        told += wanted
    else:
        for group in _groups(cast(list[int], before), behind):
            told += _told(op, shape, group, behind, wanted)
    return op.emit("Reshape", x, _shape_list(op, x, told), allowzero=1)


def _number(op: TorchOperator, wanted: int | Open) -> int | None:
    """A number in the place of a size that a run tells."""
    if isinstance(wanted, int):
        return wanted
    known = op.builder.type_of(op.builder.value(wanted.name)).value
    return op.builder.standing_for(known) if isinstance(known, Size) else None


def _completed(wanted: Sequence[int | None], before: Sequence[int | None]) -> list[int] | None:
    """The shape with the number that -1 stands for; None where nobody can tell it."""
    known = [each for each in before if each is not None]
    told = [each for each in wanted if each is not None]
    if len(known) < len(before) or len(told) < len(wanted) or min(told, default=0) < -1:
        return None
    count, rest = reduce(mul, known, 1), reduce(mul, (each for each in told if each != -1), 1)
    if -1 not in told:
        return told if rest == count else None
    if told.count(-1) > 1 or not rest or count % rest:
        return None
    return [count // rest if each == -1 else each for each in told]


def _groups(before: Sequence[int], behind: Sequence[int]) -> list[_Group]:
    """The finest ones, in order; sizes of 1 stand alone where they can."""
    groups, one, other = [], 0, 0
    while one < len(before) or other < len(behind):
        first, second = one, other
        left = before[one] if one < len(before) else 1
        right = behind[other] if other < len(behind) else 1
        one, other = min(one + 1, len(before)), min(other + 1, len(behind))
        while left != right:
            if left < right and one < len(before):
                left, one = left * before[one], one + 1
            elif other < len(behind):
                right, other = right * behind[other], other + 1
            else:
                one, other, left, right = len(before), len(behind), 0, 0
        groups.append(_Group(range(first, one), range(second, other)))
    return groups


class _Axis(NamedTuple):
    """The size of an axis before the view."""

    axis: int


_Told = int | Open | Size | _Axis
"""A size behind a view; a `Size` is a product of those of inputs."""


def _told(
    op: TorchOperator,
    shape: Sequence[Size | None],
    group: _Group,
    behind: Sequence[int],
    wanted: Sequence[int | Open],
) -> list[_Told]:
    """The sizes behind a view of a group: as the program has them, where no free ones are in it."""
    mine = reduce(mul, (shape[at] for at in group.before), Size.of(1))
    free = mine.names & op.builder.free.keys()
    if not free:
        return [wanted[at] for at in group.behind]
    if len(group.before) == len(group.behind) == 1:
        return [_Axis(group.before[0])]
    if len(mine.terms) == 1:
        factors = mine.terms[0][0]
        numbers = [op.builder.standing_for(Size((((each,), 1),))) or 0 for each in factors]
        if all(each in op.builder.axes for each in factors) and min(numbers) > 1:
            found = _assigned(factors, numbers, [behind[at] for at in group.behind])
            if len(found) == 1:
                return [*found[0]]
    op.builder.tie(free, op.why)  # and a size of 1 might have been none at all
    return [wanted[at] for at in group.behind]


def _assigned(
    factors: Sequence[Factor], numbers: Sequence[int], behind: Sequence[int]
) -> list[list[Size]]:
    """The ways to say numbers with the factors of their product, each once."""
    found = []
    if len(behind) ** len(factors) > _MOST_WAYS:
        return []
    for places in product(range(len(behind)), repeat=len(factors)):
        left = list(behind)
        for place, number in zip(places, numbers, strict=True):
            left[place] = left[place] // number if left[place] % number == 0 else 0
        if 0 not in left:
            own = [
                [f for f, at in zip(factors, places, strict=True) if at == n]
                for n in range(len(left))
            ]
            found.append([Size(((tuple(f), by),)) for f, by in zip(own, left, strict=True)])
    return found


def _shape_list(op: TorchOperator, x: str, sizes: Sequence[_Told]) -> str:
    """A list of sizes, of which one product of several is -1."""
    whole = [each for each in sizes if isinstance(each, int)]
    if len(whole) == len(sizes):
        return op.ints(*whole)
    inferred = None
    if -1 not in whole and 0 not in whole:
        inferred = next((at for at, each in enumerate(sizes) if isinstance(each, Size)), None)
    parts = []
    for at, each in enumerate(sizes):
        if isinstance(each, int) or at == inferred:
            parts.append(op.ints(each if isinstance(each, int) else -1))
        elif isinstance(each, _Axis):
            parts.append(op.size(x, each.axis))
        else:
            parts.append(op.as_list(each) if isinstance(each, Open) else _product(op, each))
    return op.emit("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]


def _product(op: TorchOperator, size: Size) -> str:
    """A list of one size, a product of those of axes."""
    ((factors, by),) = size.terms
    out = op.ints(by)
    for factor in factors:
        variable, axis = op.builder.axes[factor]
        out = op.emit("Mul", out, op.size(op.builder.value(variable), axis))
    return out


@rule("flatten.using_ints")
def _flatten(op: TorchOperator) -> str:
    x = op.value()
    first, last = op.axis(x, "start_dim", 0), op.axis(x, "end_dim", -1)
    if op.rank(x) == 0:
        return op.emit("Reshape", x, op.ints(1))
    sizes = op.sizes_of(x)
    parts = [op.emit("Slice", sizes, op.ints(0), op.ints(first), op.ints(0)), op.ints(-1)]
    parts.append(op.emit("Slice", sizes, op.ints(last + 1), op.ints(2**31), op.ints(0)))
    return op.emit("Reshape", x, op.emit("Concat", *parts, axis=0))


@rule("unflatten.int")
def _unflatten(op: TorchOperator) -> str:
    x, axis, sizes = op.value(), op.axis(op.value()), op.integers("sizes")
    op.builder.tie(op.builder.free_in(x, axis), op.why)
    kept = list(op.shape(x))
    parts = range(axis), range(axis + 1, len(kept))
    before, behind = ([op.size(x, at) for at in part] for part in parts)
    return op.emit("Reshape", x, op.emit("Concat", *before, op.ints(*sizes), *behind, axis=0))


@rule("unsqueeze")
def _unsqueeze(op: TorchOperator) -> str:
    x, axis = op.value(), op.attribute("dim", 0)
    return op.emit("Unsqueeze", x, op.ints(axis + op.rank(x) + 1 if axis < 0 else axis))


@rule("squeeze squeeze.dim squeeze.dims")
def _squeeze(op: TorchOperator) -> str:
    """Only axes of size 1 go, so that the program must tell which are."""
    x, sizes = op.value(), op.shape(op.value())
    gone = []
    for axis in op.axes(x):
        op.builder.tie(op.builder.free_in(x, axis), op.why)
        if op.builder.exported(sizes[axis]) is None:
            raise UnsupportedError(f"nobody tells whether axis {axis} has the size 1")
        if op.builder.exported(sizes[axis]) == 1:
            gone.append(axis)
    return op.emit("Squeeze", x, op.ints(*gone)) if gone else x


@rule("expand expand_copy")
def _expand(op: TorchOperator) -> str:
    """-1, and the size that an axis has, leave it as it is."""
    x, wanted = op.value(), op.sizes("size")
    op.attribute("implicit", None)
    shape = op.shape(x)
    shape = (Size.of(1),) * (len(wanted) - len(shape)) + tuple(shape)
    sizes: list[int | Open] = []
    for size, want in zip(shape, wanted, strict=True):
        was = op.builder.exported(size)
        if want == -1 or (isinstance(want, int) and want == was and was != 1):
            sizes.append(1)
            continue
        if isinstance(want, int):
            op.builder.tie_numbers([want], op.why)
            op.builder.tie(size.names if size else (), op.why)
        sizes.append(want)
    return op.emit("Expand", x, op.listed(sizes))


@rule("expand_as")
def _expand_as(op: TorchOperator) -> str:
    return op.emit("Expand", op.value(), op.sizes_of(op.value("other")))


@rule("view_as reshape_as")
def _view_as(op: TorchOperator) -> str:
    return op.emit("Reshape", op.value(), op.sizes_of(op.value("other")), allowzero=1)


@rule("transpose.int t numpy_T swapaxes transpose_")
def _transpose(op: TorchOperator) -> str:
    x = op.value()
    perm = [*range(op.rank(x))]
    if op.at.type in ("t", "numpy_T"):
        return op.emit("Transpose", x, perm=tuple(reversed(perm)))
    one, other = (op.axis(x, name) for name in ("dim0", "dim1"))
    perm[one], perm[other] = perm[other], perm[one]
    return op.emit("Transpose", x, perm=tuple(perm))


@rule("permute")
def _permute(op: TorchOperator) -> str:
    x = op.value()
    return op.emit("Transpose", x, perm=tuple(op.axes(x, "dims")))


@rule("movedim.int")
def _movedim(op: TorchOperator) -> str:
    x = op.value()
    source, place = op.axis(x, "source"), op.axis(x, "destination")
    perm = [at for at in range(op.rank(x)) if at != source]
    perm.insert(place, source)
    return op.emit("Transpose", x, perm=tuple(perm))
