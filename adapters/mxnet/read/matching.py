"""Which array belongs to which variable: the key styles of MXNet's parameter files.

- export and Module: ``arg:NAME`` and ``aux:NAME``; nd.save: NAME.
- Legacy cells' checkpoints (mx.rnn.save_rnn_checkpoint): an array for each gate.
- gluon's save_parameters: the path of blocks, ``rnn._unfused.0.l_cell.i2h_weight``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import ModelFormatError
from onernn.core.records import dataclass
from onernn.reorders import mxnet

Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class Declared:
    """A variable of the symbol; sizes None where the symbol does not tell."""

    name: str
    shape: Sizes | None = None
    fused: mxnet.Stack | None = None  # where it is the parameter vector of an RNN operator


class Matched(NamedTuple):
    """The arrays by variable, and what a user should know of how they were found."""

    arrays: dict[str, Array]
    notes: tuple[str, ...]


def match(variables: Sequence[Declared], arrays: Mapping[str, Array], file: Path) -> Matched:
    """The array of each variable that has one; the others are inputs.

    Raises `ModelFormatError` where a shape is not the declared one, or where it cannot be told
    which array belongs to which variable.
    """
    plain: dict[str, Array] = {}
    for key, array in arrays.items():
        name = key.removeprefix("arg:").removeprefix("aux:")
        if name in plain:
            raise ModelFormatError(f"{name!r} stands there twice", file)
        plain[name] = array
    found = {each.name: a for each in variables if (a := _plain(each, plain)) is not None}
    notes: tuple[str, ...] = ()
    if not found and any(_block_of(key) for key in plain):
        found, notes = _by_structure(variables, plain, file)
    for each in variables:
        if each.name in found and not _fits(each.shape, found[each.name].shape):
            raise ModelFormatError(
                f"{each.name!r}: the symbol declares {each.shape}, got {found[each.name].shape}",
                file,
            )
    return Matched(found, notes)


def _plain(variable: Declared, arrays: Mapping[str, Array]) -> Array | None:
    if variable.name in arrays:
        return arrays[variable.name]
    if variable.fused and variable.name.endswith("parameters"):
        prefix = variable.name.removesuffix("parameters")
        parts = (_gates(f"{prefix}{name}", arrays) for name in mxnet.part_names(variable.fused))
        flat = [part.reshape(-1) for part in parts if part is not None]
        return np.concatenate(flat) if len(flat) == len(mxnet.part_names(variable.fused)) else None
    return _gates(variable.name, arrays)


def _gates(name: str, arrays: Mapping[str, Array]) -> Array | None:
    """``lstm_l0_i2h_weight``, or joined from ``lstm_l0_i2h_i_weight`` and the other gates."""
    if name in arrays:
        return arrays[name]
    parts = re.fullmatch(r"(.*[ih]2h)_(weight|bias)", name)
    for letters in mxnet.LEGACY_GATES.values() if parts else ():
        keys = [f"{parts[1]}_{letter}_{parts[2]}" for letter in letters] if parts else []
        if keys and all(key in arrays for key in keys):
            return np.concatenate([arrays[key] for key in keys])
    return None


def _fits(declared: Sizes | None, shape: tuple[int, ...]) -> bool:
    return declared is None or (
        len(declared) == len(shape)
        and all(size in (None, got) for size, got in zip(declared, shape, strict=True))
    )


def _block_of(key: str) -> tuple[str, str] | None:
    """A path of gluon's as (block, parameter): ("rnn", "l0_i2h_weight"); None for other keys."""
    cell = re.fullmatch(r"(?:(.+)\.)?_unfused\.(\d+)\.(?:([lr])_cell\.)?(\w+)", key)
    if cell:
        return cell[1] or "", f"{cell[3] or 'l'}{cell[2]}_{cell[4]}"
    path = re.fullmatch(r"(.+)\.(\w+)", key)
    return (path[1], path[2]) if path else None


def _by_structure(
    variables: Sequence[Declared], arrays: Mapping[str, Array], file: Path
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Blocks of the file and of the symbol by their parameters' names and shapes.

    Blocks that look alike are taken in order: both sides count them as they were made.
    """
    saved: dict[str, dict[str, Array]] = {}
    for key, array in arrays.items():
        block, name = _block_of(key) or ("", key)
        saved.setdefault(block, {})[name] = array
    names = sorted({n for block in saved.values() for n in block}, key=len, reverse=True)
    blocks: dict[str, dict[str, Declared]] = {}
    for each in variables:
        ending = next((n for n in names if each.name.endswith(f"_{n}")), None)
        if ending:
            blocks.setdefault(each.name.removesuffix(ending), {})[ending] = each
    found: dict[str, Array] = {}
    alike: list[str] = []
    for path, parameters in saved.items():
        fitting = _fitting(blocks, parameters)
        if not fitting:  # tied weights: the symbol has what two blocks share in one of them
            others = [a for p, block in saved.items() if p != path for a in block.values()]
            own = {n: a for n, a in parameters.items() if not any(_same(a, b) for b in others)}
            if not own:
                continue
            fitting = _fitting(blocks, own)
            parameters = own if fitting else parameters
        if not fitting:
            wanted = ", ".join(f"{name} {array.shape}" for name, array in parameters.items())
            raise ModelFormatError(
                f"no block of the symbol has the parameters of {path!r}: {wanted}", file
            )
        if len(fitting) > 1:
            alike.append(path)
            _check_counted(fitting, path, file)
        declared = blocks.pop(fitting[0])
        found |= {declared[name].name: array for name, array in parameters.items()}
    if not alike:
        return found, ()
    listed = ", ".join(alike)
    return found, (f"parameters of {listed}: other blocks look alike, they were taken in order",)


def _fitting(
    blocks: Mapping[str, Mapping[str, Declared]], parameters: Mapping[str, Array]
) -> list[str]:
    """The prefixes of the symbol's blocks that have parameters of these names and shapes."""
    return [
        prefix
        for prefix, declared in blocks.items()
        if set(declared) == set(parameters)
        and all(_fits(declared[n].shape, a.shape) for n, a in parameters.items())
    ]


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other)


def _check_counted(prefixes: Sequence[str], path: str, file: Path) -> None:
    """Refuses blocks that run in another order than they were made (dense1 before dense0)."""

    def counted(prefix: str) -> tuple[str, list[int]]:
        return re.sub(r"\d+", "#", prefix), [int(n) for n in re.findall(r"\d+", prefix)]

    for (stem, first), (other, second) in pairwise(map(counted, prefixes)):
        if stem == other and first > second:
            raise ModelFormatError(
                f"{path!r} may belong to any of {', '.join(prefixes)}; export the block, or save"
                " the parameters under the symbol's names",
                file,
            )
