"""How a recurrent layer's numbers differ from those of its counterpart, told by reading both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from onernn.core.arrays import Array
from onernn.core.rnn import Recurrent
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights
from onernn.verification.diagnosis.gate_faults import (
    gate_name,
    named,
    permutations,
    permuted_bias,
)
from onernn.verification.diagnosis.weight_faults import (
    as_columns,
    as_rows,
    bias_of,
    merged,
    per_gate,
)

_CLOSE = 1e-6
"""Of the largest number: what folding a constant into another one may round."""


_ROUNDED = 2.0**-7
"""Of the largest number: what two narrow ones may be wrong by in their sum."""

OTHER_BIASES = "has other biases in all gates"


class Found(NamedTuple):
    """A fault: its id, and what is so, after "the model" and before "in" a layer.

    ``apart``: the largest difference, where that tells something.
    """

    id: str
    text: str
    apart: float = 0.0


def alike(one: Array, other: Array) -> bool:
    """Whether arrays are the same but for rounding."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return np.array_equal(one, other)
    apart = np.abs(one.astype(np.float64) - other).max(initial=0)
    return bool(apart <= _CLOSE * np.abs(other).max(initial=0))


def relation(one: Array, other: Array) -> Found:
    """How a constant differs from the reference's, of any shape."""
    if one.shape != other.shape:
        turned = one.ndim == other.ndim == 2 and alike(one.T, other)
        if turned:
            return Found("weight_transposed", "is transposed")
        return Found("constant_changed", f"is of shape {one.shape}, the reference's {other.shape}")
    if one.size == 1:
        said = f"is {one.reshape(-1)[0]:g}, the reference's {other.reshape(-1)[0]:g}"
        return Found("constant_changed", said)
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return Found("constant_changed", f"is {_listed(one)}, the reference's {_listed(other)}")
    if rounded := _rounded(one, other):
        return Found("weights_rounded", f"is rounded to {rounded}")
    if one.ndim == 2 and one.shape[0] == one.shape[1] and alike(one.T, other):
        return Found("weight_transposed", "is transposed")
    if not one.any():
        return Found("constant_changed", "is zero, the reference's is not")
    if factor := _factor(one, other):
        return Found("constant_changed", f"is {factor:g} times the reference's")
    if (shift := _shift(one, other)) is not None:
        return Found("constant_changed", f"is the reference's and {shift:g} more")
    if alike(np.sort(one, axis=None), np.sort(other, axis=None)):
        return Found("constant_changed", "has the reference's numbers in another order")
    apart = float(np.abs(one.astype(np.float64) - other).max())
    return Found("constant_changed", "differs from the reference's", apart)


def _listed(array: Array) -> str:
    return str(array.tolist()) if array.size <= 8 else "other integers"


def _rounded(one: Array, other: Array) -> str:
    """The narrow type that numbers went through, "" where there is none."""
    if one.shape != other.shape:
        return ""
    with np.errstate(over="ignore"):
        if np.array_equal(one, other.astype(np.float16).astype(one.dtype)):
            return "float16"
    bits = np.ascontiguousarray(other, np.float32).view(np.uint32)
    for half in (0, 0x7FFF + ((bits >> 16) & 1)):  # cut off, and to nearest even
        bf16 = ((bits + half).astype(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        if np.array_equal(one, bf16.reshape(other.shape)):
            return "bfloat16"
    levels = np.unique(one)
    largest = np.abs(other).max(initial=0)
    near = np.abs(one - other).max(initial=0) <= largest / 100
    if len(levels) <= 256 < len(np.unique(other)) and near:
        return f"{len(levels)} levels, as int8 has them"
    return ""


def _factor(one: Array, other: Array) -> float:
    """What the reference's is to be multiplied with, 0 where there is no such factor."""
    square = float(np.vdot(other, other))
    factor = float(np.vdot(one, other)) / square if square else 0.0
    return round(factor, 6) if factor and alike(one, other * factor) else 0.0


def _shift(one: Array, other: Array) -> float | None:
    apart = one.astype(np.float64) - other
    middle = float(np.median(apart))
    close = np.abs(apart - middle).max(initial=0) <= 1e-5 * max(abs(middle), 1.0)
    return round(middle, 6) if middle and close else None


def between(mine: Recurrent, theirs: Recurrent) -> Iterator[Found]:
    """What differs in one layer of one direction, from the frequent faults on."""
    if _family(mine.spec) != _family(theirs.spec):
        names = (each.spec.cell.value for each in (mine, theirs))
        yield Found("operator_changed", "has a cell {} where the reference has {},".format(*names))
        return
    yield from _specs(mine.spec, theirs.spec)
    (one,), (other,) = mine.layers, theirs.layers
    yield from weights_between(mine.spec, one, theirs.spec, other)


def _family(spec: RnnSpec) -> tuple[tuple[str, ...], bool]:
    return spec.cell.gates, spec.cell.has_attention


def _specs(mine: RnnSpec, theirs: RnnSpec) -> Iterator[Found]:
    if mine.cell.linear_before_reset != theirs.cell.linear_before_reset:
        ways = ("after", "before") if mine.cell.linear_before_reset else ("before", "after")
        text = "applies the reset gate {} the recurrent product, the reference {} it,"
        yield Found("reset_placement", text.format(*ways))
    if mine.update != theirs.update:
        text = "has the update gate with the other sign (u keeps the new state, not the old one)"
        yield Found("update_sign", text)
    if mine.direction != theirs.direction:
        called = {"left2right": "forwards", "right2left": "backwards"}
        now, then = (called.get(s.direction, s.direction) for s in (mine, theirs))
        yield Found("direction_swapped", f"runs {now}, the reference {then},")
    if len(mine.functions) == len(theirs.functions):
        places = ("gates", "candidate", "cell")[: len(mine.functions)]
        for place, own, their in zip(places, mine.functions, theirs.functions, strict=True):
            if own != their:
                of = f"the {place}" if len(places) > 1 else "the state"
                text = f"has {own} for {of} where the reference has {their},"
                yield Found("activation_changed", text)
    for name, what in (("gate_clip", "gates"), ("cell_clip", "the cell state")):
        now, then = getattr(mine, name), getattr(theirs, name)
        if now != then:
            said = [
                f"{what} clipped to {_bound(b)}" if b else f"{what} unclipped" for b in (now, then)
            ]
            text = f"has {said[0]}, the reference {said[1]},"
            yield Found("clip_ignored", text)
    for name in ("peephole", "projection_size", "input_forget", "hidden_size", "input_size"):
        now, then = getattr(mine, name), getattr(theirs, name)
        if now != then and not (name == "input_size" and mine.hidden_size == theirs.hidden_size):
            yield Found("attribute_changed", f"has {name} {now}, the reference {then},")


def _bound(bound: float | tuple[float, float]) -> str:
    low, high = bound if isinstance(bound, tuple) else (-bound, bound)
    return f"[{low:g}, {high:g}]"


def weights_between(
    spec: RnnSpec, mine: RnnWeights, their: RnnSpec, theirs: RnnWeights
) -> Iterator[Found]:
    """What differs in the numbers, told by array and gate."""
    arrays = {
        name: (one, other)
        for name in ("layer", "iter")
        if (one := getattr(mine, name)) is not None and (other := getattr(theirs, name)) is not None
    }
    biases = (bias_of(spec, mine), bias_of(their, theirs))
    if biases[0].shape != biases[1].shape:  # an LBR cell's, and another's: what both tell apart
        one, other = (merged(b)[..., :3, :] if b.shape[2] == 4 else b for b in biases)
        biases = one, other
    if all(alike(*both) for both in arrays.values()) and alike(*biases):
        yield from _others(mine, theirs)
        return
    left = {name: both for name, both in arrays.items() if not alike(*both)}
    orders = {name: found for name, both in left.items() if (found := _order(*both))}
    order = next(iter(orders.values()), None) or (_order(*biases) if not left else None)
    known = dict(permutations(spec))
    order = order[: len(spec.cell.gates)] if order else None  # an LBR cell has a fourth bias
    if order in known and (not orders or set(orders.values()) == {order}):
        text = known[order]
        moved: list[str] = [name for name in ("layer", "iter") if name in orders]
        same = biases[0].shape == biases[1].shape
        turned = permuted_bias(spec, biases[0], order)
        lost = spec.cell.linear_before_reset and order[2] != 2  # two rows became one
        if same and alike(turned, biases[1]) and (turned.any() or not orders):
            moved.append("bias")
            biases = (turned, turned)
        elif not moved or len(moved) == len(arrays) and lost:
            moved.append("bias")
            biases = (turned, turned)
        zero = not biases[0].any() and not biases[1].any()
        every = len(moved) == len(arrays) + 1 or (zero and len(moved) == len(arrays))
        only = "" if every else f" in the {_joined(moved)} only"
        yield Found("gates_swapped", f"matches when {text}{only}")
        left = {name: both for name, both in left.items() if name not in orders}
    signs = [name for name, both in left.items() if _negated(spec, *both)]
    if signs:
        bias = biases[0].shape == biases[1].shape and _negated(spec, *biases)
        flipped = [*signs, *(["bias"] if bias else [])]
        whole = len(flipped) == len(arrays) + 1 or not biases[1].any() and len(signs) == len(arrays)
        kept = " (u keeps the new state, not the old one)"
        only = kept if whole else f" in the {_joined(flipped)} only"
        yield Found("update_sign", f"has the update gate with the other sign{only}")
        left = {name: both for name, both in left.items() if name not in signs}
        biases = (biases[1], biases[1]) if bias else biases
    rounded = {name: kind for name, both in left.items() if (kind := _rounded(*both))}
    for kind in dict.fromkeys(rounded.values()):
        yield Found("weights_rounded", f"has weights rounded to {kind}")
    for name, (one, other) in left.items():
        if name not in rounded:
            yield _array(spec, name, one, other)
    if biases[0].shape == biases[1].shape and not alike(*biases):
        kind = _rounded(*biases)
        near = np.abs(biases[0] - biases[1]).max() <= _ROUNDED * np.abs(biases[1]).max()
        if kind and kind not in rounded.values():
            yield Found("weights_rounded", f"has weights rounded to {kind}")
        elif not kind and not (rounded and near):  # a sum of two that were
            yield from bias_between(spec, *biases)
    yield from _others(mine, theirs)


def _joined(names: Sequence[str]) -> str:
    return named(tuple(names))


def _order(one: Array, other: Array) -> tuple[int, ...] | None:
    """The gates of ``one`` that those of ``other`` are, unless each is its own."""
    if one.shape != other.shape or one.ndim == 4 and one.shape[2] > 4:
        return None
    gates = one.shape[-2]
    found: list[int] = []
    for k in range(gates):
        order = sorted(range(gates), key=lambda j, k=k: j != k)  # type: ignore[misc]
        same = (j for j in order if j not in found and alike(one[..., j, :], other[..., k, :]))
        if (j := next(same, None)) is None:
            return None
        found.append(j)
    return None if found == list(range(gates)) else tuple(found)


def _negated(spec: RnnSpec, one: Array, other: Array) -> bool:
    """Whether the update gate has the other sign, and the others do not."""
    if not spec.cell.is_gru or one.shape != other.shape:
        return False
    turned = one.copy()
    turned[..., 0, :] *= -1
    return alike(turned, other)


def _array(spec: RnnSpec, name: str, one: Array, other: Array) -> Found:
    """Of input or recurrent weights that neither are permuted nor have another sign."""
    called = "recurrent weights" if name == "iter" else "input weights"
    if one.shape != other.shape:
        said = f"has {called} of shape {one.shape}, the reference {other.shape},"
        return Found("weights_changed", said)
    single = "recurrent weight" if name == "iter" else "input weight"
    if one.shape[2] == one.shape[4] and alike(per_gate(one), other):
        text = f"matches when the {single} is transposed, gate by gate"
        return Found("weight_transposed", text)
    for order in itertools.permutations(range(spec.gates)):  # as a file has the gates
        back = np.argsort(order)
        filed = one[..., list(order), :]
        for function, how in ((as_rows, "row by row"), (as_columns, "column by column")):
            if alike(function(filed)[..., back, :], other):
                return Found("weight_transposed", f"matches when the {single} is read {how}")
    gates, said, apart = _by_gate(spec, one, other)
    of = f"{called} of {gates}" if gates else called
    return Found("weights_changed", f"has {of} that {said}", apart)


def _by_gate(spec: RnnSpec, one: Array, other: Array) -> tuple[str, str, float]:
    """The gates that differ, "" where all do; how; and by how much, where that is not told."""
    rows = [k for k in range(one.shape[-2]) if not alike(one[..., k, :], other[..., k, :])]
    every = len(rows) == one.shape[-2]
    gates = spec.cell.gates
    listed = [
        gate_name(spec, gates[k]) if k < len(gates) else "the candidate, inside r*(...),"
        for k in rows
    ]
    called = "" if every else f"gate{'s' * (len(rows) > 1)} {' and '.join(listed)}"
    mine, theirs = one[..., rows, :], other[..., rows, :]
    if not mine.any():
        return called, "are zero, the reference's are not,", 0.0
    if factor := _factor(mine, theirs):
        return called, f"are {factor:g} times the reference's", 0.0
    if (shift := _shift(mine, theirs)) is not None:
        way = "larger" if shift > 0 else "smaller"
        return called, f"are {abs(shift):g} {way} than the reference's", 0.0
    apart = float(np.abs(mine.astype(np.float64) - theirs).max())
    return called, "differ from the reference's", apart


def bias_between(spec: RnnSpec, one: Array, other: Array) -> Iterator[Found]:
    """How the biases of one layer and direction differ from the reference's; nothing if not."""
    if alike(one, other):
        return
    if spec.cell.linear_before_reset:
        if alike(merged(other), one):
            yield Found(
                "bias_merged",
                "has both biases of the candidate merged into one outside the reset gate's product",
            )
            return
        if alike(merged(one), other):
            text = "has a bias of the candidate inside the reset gate's product, the reference has"
            yield Found("bias_merged", f"{text} both outside")
            return
        sides = {2: "input", 3: "recurrent"}
        for row, side in sides.items():
            now, then = one[..., row, :], other[..., row, :]
            if not alike(one[..., 5 - row, :], other[..., 5 - row, :]) or alike(now, then):
                continue
            others = not alike(one[..., :2, :], other[..., :2, :])
            of = f"the {side} bias" if others else f"the candidate's {side} bias"
            if not now.any():
                yield Found("bias_merged", f"leaves out {of}")
                return
            if (factor := _factor(now, then)) in (2.0, 0.5):
                how = "twice" if factor == 2 else "half of"
                yield Found("bias_doubled", f"has {how} {of}")
                return
    gates, said, apart = _by_gate(spec, one, other)
    called = f"biases of {gates}" if gates else "biases"
    if "zero" in said:
        yield Found("bias_zeroed", f"has {called} that {said}")
    elif said.startswith(("are 2 times", "are 0.5 times")) and not gates:
        yield Found("bias_doubled", f"has {called} that {said}")
    elif "larger" in said or "smaller" in said:
        yield Found("bias_shifted", f"has {called} that {said}")
    elif gates or "times" in said:
        yield Found("bias_changed", f"has {called} that {said}", apart)
    else:
        smaller = float(np.sum(np.square(other)) - np.sum(np.square(one)))
        yield Found("bias_changed", OTHER_BIASES, smaller)


def told_by_size(found: Found) -> Found:
    """Of biases that are others in all gates, whether one of two may be left out, or twice there.

    ``found.apart``: by how much the sum of their squares is smaller than the reference's.
    """
    if found.apart > 0:
        how = "smaller, as where one of two biases is left out"
        return Found("bias_merged", f"{OTHER_BIASES} ({how}),")
    how = "larger, as where one of two biases is added twice"
    return Found("bias_doubled", f"{OTHER_BIASES} ({how}),")


def _others(mine: RnnWeights, theirs: RnnWeights) -> Iterator[Found]:
    for name in ("peephole", "projection"):
        one, other = getattr(mine, name), getattr(theirs, name)
        if one is None or other is None or alike(one, other):
            continue
        if name == "peephole" and (order := _order(one, other)):
            text = f"peepholes i, f, o are taken from {', '.join('ifo'[k] for k in order)}"
            yield Found("gates_swapped", f"matches when {text}")
        else:
            found = relation(one, other)
            cause = found.id if found.id != "constant_changed" else "weights_changed"
            yield Found(cause, f"has a {name} that {found.text}")
