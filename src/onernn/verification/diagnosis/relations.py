"""How a recurrent layer's numbers differ from those of its counterpart, read from the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.verification.diagnosis.faults import (
    CLOSE,
    LayerFault,
    PartFault,
    alike,
    bias_of,
    clip_fault,
    function_fault,
    gate_name,
    interleaved,
    merged,
    named,
    other_update,
    peephole_orders,
    permutations,
    resets,
    setting,
    signs,
    transposes,
)

_PLAIN = 10
"""How many times larger than rounding a factor or a shift is, that is not made up of rounding."""
_EVEN = 0.01
"""Of the distance of two levels: what float32 may round in up to 256 of them."""
_ROUNDED = 2.0**-7
"""Of the largest number: what two narrow ones may be wrong by in their sum."""

_OTHERS = " and has other biases of gates u (update) and r (reset)"
"""Of which a file keeps the sum of two, so that nothing tells which of them changed."""


class Relation(NamedTuple):
    """How something differs: a fault's id, and what is so, between "the model" and "in" a layer.

    ``apart``: the largest difference, where that tells something.
    """

    id: str
    text: str
    apart: float = 0.0


def relation(one: Array, other: Array) -> Relation:
    """How a constant differs from the reference's, of any shape."""
    if one.shape != other.shape:
        turned = one.ndim == other.ndim == 2 and alike(one.T, other)
        if turned:
            return Relation("weight_transposed", "is transposed")
        return Relation(
            "constant_changed", f"is of shape {one.shape}, the reference's {other.shape}"
        )
    if one.size == 1:
        said = f"is {one.reshape(-1)[0]:g}, the reference's {other.reshape(-1)[0]:g}"
        return Relation("constant_changed", said)
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return Relation("constant_changed", f"is {_listed(one)}, the reference's {_listed(other)}")
    if rounded := _rounded(one, other):
        return Relation("weights_rounded", f"is rounded to {rounded}")
    if one.ndim == 2 and one.shape[0] == one.shape[1] and alike(one.T, other):
        return Relation("weight_transposed", "is transposed")
    if not one.any():
        return Relation("constant_changed", "is zero, the reference's is not")
    if factor := _factor(one, other):
        return Relation("constant_changed", f"is {factor:g} times the reference's")
    if (shift := _shift(one, other)) is not None:
        return Relation("constant_changed", f"is the reference's and {shift:g} more")
    if alike(np.sort(one, axis=None), np.sort(other, axis=None)):
        return Relation("constant_changed", "has the reference's numbers in another order")
    apart = float(np.abs(one.astype(np.float64) - other).max())
    return Relation("constant_changed", "differs from the reference's", apart)


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
    levels = np.unique(one).astype(np.float64)
    if not 2 < len(levels) <= 256 < len(np.unique(other)):
        return ""
    step = float(np.diff(levels).min())
    places = (levels - levels[0]) / step
    even = np.abs(places - np.round(places)).max() <= _EVEN
    near = np.abs(one.astype(np.float64) - other).max() <= step * (0.5 + _EVEN)
    return f"{len(levels)} levels, as int8 has them" if even and near else ""


def _factor(one: Array, other: Array) -> float:
    """What the reference's is to be multiplied with, 0 where there is no such factor."""
    square = float(np.vdot(other, other))
    factor = float(np.vdot(one, other)) / square if square else 0.0
    plain = abs(factor - 1) > _PLAIN * CLOSE and factor != 0
    return round(factor, 6) if plain and alike(one, other * factor) else 0.0


def _shift(one: Array, other: Array) -> float | None:
    """What is added to each of the reference's numbers, None where it is not the same for all."""
    apart = one.astype(np.float64) - other
    middle = float(np.median(apart))
    spread = np.abs(apart - middle).max(initial=0)
    close = spread * _PLAIN <= abs(middle) and alike(one, other + middle)
    return float(f"{middle:.6g}") if middle and close else None


def between(mine: Recurrent, theirs: Recurrent) -> Iterator[Relation]:
    """What differs in one layer of one direction, from the frequent faults on."""
    if _family(mine.spec) != _family(theirs.spec):
        names = (each.spec.cell.value for each in (mine, theirs))
        text = "has a cell {} where the reference has {},".format(*names)
        yield Relation("operator_changed", text)
        return
    for fault in _settings(mine.spec, theirs.spec):
        yield Relation(fault.id, f"matches when {fault.text}")
    for name in ("peephole", "projection_size", "input_forget", "hidden_size", "input_size"):
        now, then = getattr(mine.spec, name), getattr(theirs.spec, name)
        same = mine.spec.hidden_size == theirs.spec.hidden_size
        if now != then and not (name == "input_size" and same):
            yield Relation("attribute_changed", f"has {name} {now}, the reference {then},")
    (one,), (other,) = mine.layers, theirs.layers
    yield from weights_between(mine.spec, one, theirs.spec, other)


def _family(spec: RnnSpec) -> tuple[tuple[str, ...], bool]:
    return spec.cell.gates, spec.cell.has_attention


def _settings(mine: RnnSpec, theirs: RnnSpec) -> Iterator[LayerFault]:
    """The faults of a layer's settings that make the reference's of the model's."""
    if mine.cell.linear_before_reset != theirs.cell.linear_before_reset:
        yield next(resets(mine))
    if mine.update != theirs.update:
        yield other_update(mine)
    if mine.direction != theirs.direction:
        yield setting("direction_swapped", "it runs the other way", direction=theirs.direction)
    if len(mine.functions) == len(theirs.functions):
        for place, (own, their) in enumerate(zip(mine.functions, theirs.functions, strict=True)):
            if own != their:
                yield function_fault(mine, (place,), their)
    for name in ("gate_clip", "cell_clip"):
        if getattr(mine, name) != (bound := getattr(theirs, name)):
            yield clip_fault(name, bound)


def weights_between(
    spec: RnnSpec, mine: RnnWeights, their: RnnSpec, theirs: RnnWeights
) -> Iterator[Relation]:
    """What differs in the numbers: faults that explain it, then how the others are related."""
    pairs = {
        name: (one, other)
        for name, one in mine.arrays.items()
        if (other := theirs.arrays.get(name)) is not None
    }
    biases = (bias_of(spec, mine), bias_of(their, theirs))
    if biases[0].shape != biases[1].shape:  # an LBR cell's, and another's: what both tell apart
        one, other = (merged(b)[..., :3, :] if b.shape[2] == 4 else b for b in biases)
        biases = one, other
    pairs["bias"] = biases
    left = [name for name, both in pairs.items() if not alike(*both)]
    apart = [fault for _, fault in transposes(spec)] + list(peephole_orders())
    for fault in (*permutations(spec), *signs(spec), *interleaved(spec), *apart):
        hit = [name for name in left if _explains(fault, spec, name, *pairs[name])]
        if not hit or (hit == ["peephole"] and fault not in apart):
            continue
        rest = [name for name in ("layer", "iter", "bias") if name in pairs and name not in hit]
        every = fault in apart or all(_explains(fault, spec, n, *pairs[n]) for n in rest)
        only = "" if every else f" in the {named(hit)} only"
        yield Relation(fault.id, f"matches when {fault.text}{only}")
        left = [name for name in left if name not in hit]
    rounded = {name: kind for name in left if (kind := _rounded(*pairs[name]))}
    for kind in dict.fromkeys(rounded.values()):
        yield Relation("weights_rounded", f"has weights rounded to {kind}")
    for name in (name for name in left if name not in rounded):
        one, other = pairs[name]
        if name == "bias":
            near = np.abs(one - other).max() <= _ROUNDED * np.abs(other).max()
            if not (rounded and near):  # a sum of two that were
                yield from bias_between(spec, one, other)
        elif name in ("layer", "iter"):
            yield _array(spec, name, one, other)
        else:
            found = relation(one, other)
            cause = found.id if found.id != "constant_changed" else "weights_changed"
            yield Relation(cause, f"has a {name} that {found.text}")


def _explains(fault: PartFault, spec: RnnSpec, name: str, one: Array, other: Array) -> bool:
    """Whether a fault of one array makes the reference's of the model's."""
    made = fault.apply((spec, name, one)) if one.shape == other.shape else None
    if made is None:
        return False
    if name == "bias" and made.shape[2] == 4 and not made[..., 3, :].any():
        other = merged(other)  # two rows became one
    return alike(made, other)


def _array(spec: RnnSpec, name: str, one: Array, other: Array) -> Relation:
    """Of input or recurrent weights that neither are permuted nor have another sign."""
    called = "recurrent weights" if name == "iter" else "input weights"
    if one.shape != other.shape:
        said = f"has {called} of shape {one.shape}, the reference {other.shape},"
        return Relation("weights_changed", said)
    gates, said, apart = _by_gate(spec, one, other)
    of = f"{called} of {gates}" if gates else called
    return Relation("weights_changed", f"has {of} that {said}", apart)


def _by_gate(spec: RnnSpec, one: Array, other: Array) -> tuple[str, str, float]:
    """The gates that differ, "" where all do; how; and by how much, where nothing more is known."""
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


def bias_between(spec: RnnSpec, one: Array, other: Array) -> Iterator[Relation]:
    """How the biases of one layer and direction differ from the reference's; nothing if not."""
    if alike(one, other):
        return
    if spec.cell.linear_before_reset:
        if alike(merged(other), one):
            yield Relation(
                "bias_merged",
                "has both biases of the candidate merged into one outside the reset gate's product",
            )
            return
        if alike(merged(one), other):
            text = "has a bias of the candidate inside the reset gate's product, the reference has"
            yield Relation("bias_merged", f"{text} both outside")
            return
        sides = {2: "input", 3: "recurrent"}
        for row, side in sides.items():
            now, then = one[..., row, :], other[..., row, :]
            if not alike(one[..., 5 - row, :], other[..., 5 - row, :]) or alike(now, then):
                continue
            others = "" if alike(one[..., :2, :], other[..., :2, :]) else _OTHERS
            if not now.any():
                yield Relation("bias_merged", f"leaves out the candidate's {side} bias{others}")
                return
            if (factor := _factor(now, then)) in (2.0, 0.5):
                how = "twice" if factor == 2 else "half of"
                yield Relation("bias_doubled", f"has {how} the candidate's {side} bias{others}")
                return
    gates, said, apart = _by_gate(spec, one, other)
    called = f"biases of {gates}" if gates else "biases"
    if "zero" in said:
        yield Relation("bias_zeroed", f"has {called} that {said}")
    elif said.startswith(("are 2 times", "are 0.5 times")) and not gates:
        yield Relation("bias_doubled", f"has {called} that {said}")
    elif "larger" in said or "smaller" in said:
        yield Relation("bias_shifted", f"has {called} that {said}")
    elif gates or "times" in said:
        yield Relation("bias_changed", f"has {called} that {said}", apart)
    elif alike(np.sort(one, axis=None), np.sort(other, axis=None)):
        yield Relation("bias_changed", "has the reference's biases in another order")
    else:
        yield Relation("bias_changed", "has other biases in all gates", apart)
