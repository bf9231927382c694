"""A table of the measured sizes from which layers run faster in onernn than in their framework.

For small layers the overhead of a call matters: entering and leaving the framework, comparing
packed weights with the current ones, packing weights again in training. See design/0010, 0015 and
0055.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import inf
from typing import NamedTuple

from onernn.backend.compiled.library import load_kernels
from onernn.ir.errors import LibraryError


class Least(NamedTuple):
    """The thresholds from which a call is faster in onernn; the call must reach all of them.

    ``words``: steps times sequences. ``share``: ``words`` divided by units. ``turns``: steps
    divided by units. ``work``: ``words`` times units. ``large``: below this number of units, every
    call is faster.
    """

    large: float = 0
    units: float = 1
    steps: float = 1
    words: float = 1
    share: float = 0
    turns: float = 0
    work: float = 0

    def holds(self, steps: int, sequences: int, units: int) -> bool:
        words = steps * sequences
        return units < self.large or (
            units >= self.units
            and steps >= max(self.steps, units * self.turns)
            and words >= max(self.words, units * self.share)
            and words * units >= self.work
        )


NEVER = Least(words=inf)

_ALIKE = {
    "paddle RNN": Least(units=128, words=8, work=4096),
    "paddle GRU": Least(words=8, work=4096),
    "paddle GRU trained": Least(steps=4, words=64, share=1 / 8, work=2048),
    "paddle LSTM": Least(words=8, work=4096),
    "paddle LSTM trained": Least(steps=4, words=64, share=1 / 2, work=2048),
    "mxnet GRU": Least(units=512),
    "mxnet GRU trained": Least(units=512, words=1024),
    "mxnet LSTM": Least(units=512),
}
"""The thresholds that are the same for all measured instruction sets."""

TABLE: dict[str, dict[str, Least]] = {
    "avx512": {
        **_ALIKE,
        "torch RNN trained": Least(steps=64, share=1 / 8, work=2048),
        "torch GRU trained": Least(steps=16, turns=1 / 8),
        "paddle RNN trained": Least(steps=16, words=64, share=1 / 8, work=2048),
        "mxnet RNN": Least(units=512, steps=64),
    },
    "avx2": {
        **_ALIKE,
        "torch GRU trained": Least(steps=16, turns=1 / 8, work=2048),
        "torch LSTM trained": Least(units=128, words=2048, share=2),
        "paddle RNN trained": Least(steps=16, words=64, share=1 / 2, work=2048),
        "mxnet LSTM trained": Least(units=512, words=1024),
    },
}
"""The thresholds by instruction set and case, as ``python -m benchmarks.plugins --fit`` prints
them. A case that is not in the table is never faster in onernn.
"""

ANYWHERE = {
    "torch RNN": Least(large=1024, words=8),
    "torch GRU": Least(large=1024, words=8),
    "torch LSTM": Least(),
    "mxnet RNN cells": Least(steps=40),
    "mxnet cells": Least(steps=12),
    "mxnet RNN large cells": Least(steps=18),
    "mxnet large cells": Least(steps=6),
    "mxnet RNN folded": Least(words=500, work=1e6),
    "mxnet folded": Least(words=200, work=3e5),
}
"""The thresholds for any CPU: for PyTorch's layers, whose weights are read in place (design/0075);
for unrolled cells in MXNet's symbols; and for MXNet's layers into which a FullyConnected is merged.
"""


@lru_cache(maxsize=4096)
def is_faster(case: str, steps: int, sequences: int, units: int) -> bool:
    """Returns whether a call of this size is faster in onernn. The result is cached, because most
    programs use few sizes.

    ``case`` names the framework, the kind of cell, and "trained" if the backward pass also counts.
    """
    return _table().get(case, NEVER).holds(steps, sequences, units)


@cache
def _table() -> dict[str, Least]:
    try:
        isa = load_kernels().isa
    except LibraryError:
        return ANYWHERE
    return {**TABLE["avx512" if isa.startswith("avx512") else "avx2"], **ANYWHERE}
