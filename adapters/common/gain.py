"""From which sizes on layers run faster here than in their framework: one table of measurements.

Below a size, what a call costs beside its arithmetic counts: entering and leaving the framework,
comparing packed weights with those that came, packing them anew in training. See design/0010, 0015
and 0055.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import NamedTuple


class Size(NamedTuple):
    """A call of a layer. ``products``: multiplications of one word."""

    steps: int
    sequences: int
    hidden: int
    products: int = 0


class Least(NamedTuple):
    """What a call must reach, all of it, to be faster here.

    ``words``: steps times sequences. ``share``: words for each unit. ``units``: words times units.
    ``row``: steps times units. ``work``: products of all words.
    """

    steps: float = 0
    words: float = 0
    share: float = 0
    units: float = 0
    row: float = 0
    work: float = 0


@lru_cache(maxsize=4096)
def is_faster(size: Size, least: Least) -> bool:
    """Whether a call of this size is faster here; most calls are of few sizes."""
    words = size.steps * size.sequences
    return (
        size.steps >= least.steps
        and words >= max(least.words, size.hidden * least.share // 1)
        and words * size.hidden >= least.units
        and size.steps * size.hidden >= least.row
        and words * size.products >= least.work
    )


PADDLE = Least(words=8, units=1024)
PADDLE_TRAINING = Least(words=32, share=1 / 4)

MXNET_PLAIN_CELLS, MXNET_CELLS = Least(steps=40), Least(steps=12)
MXNET_LARGE_PLAIN_CELLS, MXNET_LARGE_CELLS = Least(steps=18), Least(steps=6)
"""Unrolled cells; a call of a Custom operator costs 0.2 ms, in training 0.8 ms."""
MXNET_GRU, MXNET_NEVER = Least(work=3e9), Least(work=inf)
MXNET_PLAIN_FOLDED, MXNET_FOLDED = Least(work=1e9), Least(work=4e8)
"""The RNN operator, also where a FullyConnected becomes part of it."""

TORCH_TRAINING = Least(row=1000)
TORCH_PLAIN_TRAINING = Least(row=4000)
TORCH_PADDED_LSTM_TRAINING = Least(words=2000, work=200_000_000)
"""A padded LSTM is one call of oneDNN there; the others take their time for each step."""
