"""A Paddle program as values: what its files hold, whatever their format is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from onernn.core.arrays import Array
from onernn.core.node import NativeOp
from onernn.core.records import dataclass


@dataclass(frozen=True)
class Variable:
    """A variable of a block. ``kind``: VarType.Type, 7 a tensor, 13 an array of tensors.

    dtype by NumPy's name, or bfloat16. Sizes are None where dynamic; dtype and shape are None where
    the kind has none.
    """

    name: str
    kind: int
    dtype: str | None
    shape: tuple[int | None, ...] | None
    lod_depth: int
    persistable: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of a block, variables by the names of its slots.

    Attributes are Python values, lists are tuples, a block is its number.
    """

    position: int
    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]

    @property
    def native(self) -> NativeOp:
        slots = [slot for slot in _RESULTS if self.outputs.get(slot)] or self.outputs
        names = (name for slot in slots for name in self.outputs[slot] if name)
        return NativeOp(self.position, self.type, value=next(names, ""))


_RESULTS = ("Out", "Hidden", "Output", "Y")
"""Slots of what an operator is there for; others are by-products."""


@dataclass(frozen=True, eq=False)
class Block:
    """What a loop or a branch runs. ``variables``: those that live no longer than a turn."""

    operators: tuple[Operator, ...]
    variables: Mapping[str, Variable]


@dataclass(frozen=True, eq=False)
class Program:
    """What the files hold. Arrays are read-only, bfloat16 ones are float32 of the same values.

    ``operators`` and ``variables`` are those of block 0, ``inner`` are the other blocks.
    """

    file: Path
    operators: tuple[Operator, ...]
    variables: Mapping[str, Variable]
    parameters: Mapping[str, Array]
    version: int
    blocks: int
    inner: Mapping[int, Block] = field(default_factory=dict)


Parameters = Callable[[Sequence[Variable]], Mapping[str, Array]]
"""Gives the arrays among variables by name."""
