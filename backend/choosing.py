"""Which way a batch runs: oneDNN's primitive, its chain of products, or the kernels.

A table of measurements decides, and never a clock: the same batch always takes the same way, with
the same bits. `make tune` writes the table of an instruction set, `measurements/ISA.txt`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import log2, prod
from pathlib import Path
from typing import Literal, NamedTuple

from onernn.backend.isa import ONEDNN
from onernn.core.spec import Cell, RnnSpec

Way = Literal["chain", "kernels", "inside"]
"""inside: the kernels in the place of ONNX Runtime's own operators."""
Kind = Literal["step", "dense", "ragged", "training"]

TABLES = Path(__file__).with_name("measurements")

MARGIN = 1.05
"""A way is taken where it is so many times faster, or more."""
LOSS = 0.97
"""How fast it is at least for each batch of those that it is taken for together."""

SAME_PRODUCTS = {
    Cell.AUGRU: Cell.GRU,
    Cell.LBR_AUGRU: Cell.LBR_GRU,
    Cell.RNN_RELU: Cell.RNN_TANH,
    Cell.RNN_SIGMOID: Cell.RNN_TANH,
}
"""Cells that have the rows of another one."""


def isa_of(onednn: str) -> str:
    """The table of an instruction set that oneDNN names: as the kernels name it, or amx."""
    if "amx" in onednn:
        return "amx"
    names = [name for name, theirs in ONEDNN.items() if onednn.startswith(theirs)]
    return names[-1] if names else onednn


class Choice:
    """For which batches of a layer one way is faster than what it stands beside.

    The point of the table that is nearest to the layer and to the batch decides; none where nobody
    measured that cell, data type, instruction set or number of threads.
    """

    def __init__(self, way: Way, isa: str, dtype: str, threads: int, spec: RnnSpec) -> None:
        cell = SAME_PRODUCTS.get(spec.cell, spec.cell).name
        self._ratios: dict[str, dict[int, float]] = {}
        # Where nobody measured two threads, one of them tells: both ways gain by a second one.
        for count in (1, 2) if threads == 2 else (threads,):
            kinds: dict[str, dict[int, float]] = {}
            for row in measurements(isa):
                if row[:4] == (way, dtype, count, cell):
                    nearest = row.ratios[_nearest(spec.hidden_size, row.ratios)]
                    kinds.setdefault(row.kind, {})[row.sentences] = nearest
            self._ratios |= kinds
        if "step" not in self._ratios and "dense" in self._ratios:
            self._ratios["step"] = self._ratios["dense"]
        self._known: dict[tuple[Kind, int], bool] = {}

    def prefers(self, kind: Kind, sentences: int) -> bool:
        """Whether the way is faster for such a batch."""
        known = self._known.get((kind, sentences))
        if known is None:
            measured = self._ratios.get(kind, {})
            known = bool(measured) and measured[_nearest(sentences, measured)] >= MARGIN
            if len(self._known) < 1024:
                self._known[kind, sentences] = known
        return known

    def prefers_all(self, kinds: Iterable[Kind], sentences: int | None) -> bool:
        """Whether the way is faster for batches of these kinds where one way has to run them all.

        ``sentences``: None for any number of them.
        """
        measured = [self._ratios.get(kind, {}) for kind in kinds]
        ratios = [
            ratio
            for each in measured
            for count, ratio in each.items()
            if sentences is None or count == _nearest(sentences, each)
        ]
        return all(measured) and min(ratios) >= LOSS and prod(ratios) >= MARGIN ** len(ratios)

    @property
    def others(self) -> list[str]:
        """The batches measured for which the way is not faster."""
        return [
            f"{sentences} {kind}"
            for kind, measured in self._ratios.items()
            for sentences, ratio in measured.items()
            if ratio < MARGIN and kind != "training"
        ]

    @property
    def ever(self) -> bool:
        """Whether there is a batch to run for which the way is faster."""
        return any(
            ratio >= MARGIN
            for kind, measured in self._ratios.items()
            for ratio in measured.values()
            if kind != "training"
        )


def kind_of(ragged: bool, words: int, sentences: int) -> Kind:
    """A batch of one word each is a step."""
    return "step" if words == sentences else "ragged" if ragged else "dense"


class Row(NamedTuple):
    """How many times faster a way is for one batch, by hidden size; 0 where nobody measured."""

    way: str
    dtype: str
    threads: int
    cell: str
    sentences: int
    kind: str
    ratios: dict[int, float]


@cache
def measurements(isa: str) -> tuple[Row, ...]:
    """The table of an instruction set; empty where nobody measured."""
    file = TABLES / f"{isa}.txt"
    if not file.is_file():
        return ()
    head, *lines = [
        line.split() for line in file.read_text().splitlines() if not line.startswith("#")
    ]
    hidden = list(map(int, head[5:]))
    return tuple(
        Row(way, dtype, int(threads), cell, int(sentences), kind,
            dict(zip(hidden, (0.0 if r == "-" else float(r) for r in ratios), strict=True)))
        for way, dtype, threads, cell, sentences, kind, *ratios in lines
    )  # fmt: skip


def _nearest(size: int, among: Iterable[int]) -> int:
    """By ratio; the first of two that are equally near."""
    return min(among, key=lambda one: abs(log2(one / max(size, 1))))
