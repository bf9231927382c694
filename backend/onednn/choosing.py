"""Whether a batch runs as RNN primitives or as a chain of products: one table of measurements."""

from __future__ import annotations

from typing import NamedTuple

from onernn.core.ragged import Packing
from onernn.core.spec import Cell, RnnSpec

_ANY = 1 << 60


class Rule(NamedTuple):
    """Where the chain was faster; ``ratio`` is the median of how much (one thread, design/0013)."""

    cells: tuple[Cell, ...]
    dtype: str
    amx: bool | None  # None: with or without
    ragged: bool
    hidden: int  # at least
    batch: tuple[int, int]
    ratio: float


_GRUS = (Cell.GRU, Cell.LBR_GRU)
RULES = (
    Rule(_GRUS, "f32", True, True, 512, (1, _ANY), 1.31),
    Rule(_GRUS, "f32", None, True, 768, (1, _ANY), 1.25),
    Rule(_GRUS, "f32", None, False, 1024, (2, 32), 1.37),
    Rule((Cell.LSTM,), "f32", True, False, 1024, (4, _ANY), 1.24),
    Rule((Cell.LSTM,), "f32", False, False, 1024, (4, 16), 1.14),
    Rule((*_GRUS, Cell.LSTM), "bf16", True, True, 1, (1, _ANY), 1.16),
    Rule(_GRUS, "bf16", True, False, 512, (1, 32), 1.03),
    Rule((Cell.LSTM,), "bf16", True, False, 1024, (1, 8), 1.09),
    Rule((Cell.LBR_GRU,), "bf16", False, True, 512, (1, _ANY), 1.12),
    Rule((Cell.GRU, Cell.LSTM), "bf16", False, True, 1024, (1, _ANY), 1.11),
    Rule((Cell.GRU,), "bf16", False, False, 1024, (1, 32), 1.15),
    Rule((Cell.LSTM,), "bf16", False, False, 1024, (2, 8), 1.13),
)


def prefers_chain(spec: RnnSpec, dtype: str, isa: str, packing: Packing) -> bool:
    """Whether a batch of this shape is faster as a chain of products."""
    if not len(packing.batch_sizes):
        return False
    largest, smallest = int(packing.batch_sizes[0]), int(packing.batch_sizes[-1])
    return any(
        rule.ragged == (largest != smallest) and rule.batch[0] <= largest <= rule.batch[1]
        for rule in rules_for(spec, dtype, isa)
    )


def rules_for(spec: RnnSpec, dtype: str, isa: str) -> list[Rule]:
    """The rules that some batch of this layer may meet."""
    return [
        rule
        for rule in RULES
        if spec.cell in rule.cells
        and rule.dtype == dtype
        and rule.amx in (None, "amx" in isa)
        and spec.hidden_size >= rule.hidden
        and not (spec.peephole or spec.projection_size)
    ]
