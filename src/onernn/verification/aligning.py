"""One model's inputs and outputs told in another's names and forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError
from onernn.ir.graph import Value
from onernn.ir.ragged import Batch, Ragged

LENGTHS = "_lengths"
"""What `onernn convert` appends to the name of a ragged input that it writes padded."""


def paired_inputs(mine: Sequence[Value], theirs: Sequence[Value]) -> dict[str, Value]:
    """Another model's input for each of one's: by name, the rest in order as `feed_for` does."""
    named = {value.name: value for value in theirs}
    own = {value.name for value in mine}
    spare = iter([value for value in theirs if value.name not in own])
    pairs = ((v.name, named.get(v.name) or next(spare, None)) for v in mine)
    return {name: twin for name, twin in pairs if twin is not None}


def feed_for(
    wanted: Sequence[Value], given: Mapping[str, Batch], who: str
) -> tuple[dict[str, Batch], list[str]]:
    """The inputs that a model takes, from batches by name; and what had to be assumed.

    By name; a ragged NAME serves a model that takes NAME padded and NAME_lengths, and these serve
    one that takes it ragged. What is left over is matched in order. Raises `ModelFormatError`
    where an input stays without a batch.
    """
    names = [value.name for value in wanted]
    found: dict[str, Batch] = {}
    used: set[str] = set()
    for value in wanted:
        name = value.name
        batch = given.get(name)
        stem = name.removesuffix(LENGTHS)
        if batch is None and name != stem and isinstance(ragged := given.get(stem), Ragged):
            found[name] = ragged.lengths.astype(value.dtype or np.int32)
        elif batch is not None and value.lod_depth == 1 and not isinstance(batch, Ragged):
            if (lengths := given.get(name + LENGTHS)) is None:
                continue
            used |= {name, name + LENGTHS}
            found[name] = Ragged.from_padded(batch, np.asarray(lengths).astype(np.int64))
        elif isinstance(batch, Ragged) and not value.lod_depth and name + LENGTHS in names:
            used.add(name)
            longest = max(1, int(batch.lengths.max(initial=0)))
            _, declared, *_ = (*(value.shape or ()), None, None)  # T, which some files fix
            found[name] = batch.to_padded(time=longest if declared is None else declared)
        elif batch is not None:
            used.add(name)
            found[name] = batch
    missing = [value for value in wanted if value.name not in found]
    spare = [name for name in given if name not in used and name not in names]
    notes = []
    if missing and len(missing) <= len(spare) and _alike(missing, [given[n] for n in spare]):
        for value, name in zip(missing, spare, strict=False):
            notes.append(f"input {value.name!r} of {who} is given {name!r}")
            found[value.name] = given[name]
            used.add(name)
        missing, spare = [], spare[len(missing) :]
    if missing:
        takes, has = "; ".join(map(str, wanted)), ", ".join(given)
        listed = ", ".join(repr(value.name) for value in missing)
        raise ModelFormatError(f"{who} takes {takes}; the data has no {listed}, it has {has}")
    spare = [n for n in spare if not n.endswith(LENGTHS) or n.removesuffix(LENGTHS) not in used]
    notes += [f"{who} does not take the input {name!r}" for name in spare]
    return {name: found[name] for name in names}, notes


def _alike(missing: Sequence[Value], spare: Sequence[Batch]) -> bool:
    """Whether batches could be these inputs, in order: ranks, sizes and LoD fit."""
    for value, batch in zip(missing, spare, strict=False):
        if isinstance(batch, Ragged) != bool(value.lod_depth):
            return False
        shape = batch.data.shape if isinstance(batch, Ragged) else np.shape(batch)
        if value.shape is not None and (
            len(shape) != len(value.shape)
            or any(a not in (None, b) for a, b in zip(value.shape, shape, strict=True))
        ):
            return False
    return True


def outputs_for(
    names: Sequence[str], given: Mapping[str, Batch]
) -> tuple[dict[str, tuple[str, Batch]], list[str]]:
    """For outputs of a model, the reference's by name, or in order; and what had to be assumed.

    Raises `ModelFormatError` where none can be compared.
    """
    found = {name: (name, given[name]) for name in names if name in given}
    left = [name for name in names if name not in found]
    spare = [name for name in given if name not in found]
    notes = []
    if left and len(left) == len(spare):
        for name, other in zip(left, spare, strict=True):
            found[name] = (other, given[other])
            notes.append(f"output {name!r} is compared with {other!r}")
        left, spare = [], []
    notes += [
        f"output {name!r} is not compared: the reference has none of that name" for name in left
    ]
    notes += [f"the reference's output {name!r} is not compared" for name in spare]
    if not found:
        raise ModelFormatError(
            f"no outputs to compare: the model gives {', '.join(names)},"
            f" the reference {', '.join(given)}"
        )
    return {name: found[name] for name in names if name in found}, notes


def in_one_form(actual: Batch, reference: Batch) -> tuple[Batch, Batch]:
    """Both outputs ragged where only one is and the other holds the same sentences padded.

    What stands behind a sentence is then no part of the comparison: a ragged output has none.
    Integers of any width are the same kind.
    """
    if isinstance(reference, Ragged) and not isinstance(actual, Ragged):
        actual = _ragged(actual, reference)
    elif isinstance(actual, Ragged) and not isinstance(reference, Ragged):
        reference = _ragged(reference, actual)
        if not isinstance(reference, Ragged) and actual.data.shape == np.shape(reference):
            actual = actual.data  # the reference lost its offsets, as some operators do
    one, other = (v.data if isinstance(v, Ragged) else np.asarray(v) for v in (actual, reference))
    if one.dtype != other.dtype and one.dtype.kind in "iu" and other.dtype.kind in "iu":
        wide = one.astype(np.int64)
        actual = actual.with_data(wide) if isinstance(actual, Ragged) else wide
        wide = other.astype(np.int64)
        reference = reference.with_data(wide) if isinstance(reference, Ragged) else wide
    return actual, reference


def _ragged(padded: Batch, like: Ragged) -> Batch:
    """The sentences of padded (N, T, ...) or (T, N, ...), or the array where it is neither."""
    array: Array = np.asarray(padded)
    longest = int(like.lengths.max(initial=0))
    for n, t in ((0, 1), (1, 0)):
        if array.ndim < 2 or array.shape[n] != len(like) or array.shape[t] < longest:
            continue
        if array.ndim == like.data.ndim + 1 and array.shape[2:] == like.data.shape[1:]:
            words = Ragged.from_padded(array, like.lengths, time_major=n == 1)
            return like.with_data(words.data)
    return padded
