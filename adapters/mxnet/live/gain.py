"""Where MXNet's own operators are faster: what was measured beside MXNet 1.9.1, on two threads.

A call of a Custom operator costs 0.2 ms in inference and 0.8 ms in training, whatever it computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onernn.adapters.mxnet.live.execution import LiveRnn, Options
from onernn.core.errors import Refusal
from onernn.core.records import dataclass
from onernn.core.spec import Cell

_LARGE = 256
"""Units of a layer whose steps outweigh a call sooner."""
_ROWS = 1000
"""Steps times sequences, taken where a symbol does not tell: 40 sequences of 25 steps."""
_INSTEAD = "backend='kernels' replaces it anyway"


@dataclass(frozen=True)
class Slower(Refusal):
    """A layer that stays MXNet's since ours was measured as slower."""


def slower_cells(options: Options, cell: Cell, hidden: int, steps: int) -> str | None:
    """Why MXNet keeps unrolled cells, None where ours are faster."""
    small, large = (40, 18) if cell in (Cell.RNN_TANH, Cell.RNN_RELU) else (12, 6)
    fewest = large if hidden >= _LARGE else small
    if not _chooses(options) or steps >= fewest:
        return None
    return f"MXNet runs {steps} steps of {cell.value} cells of {hidden} units faster; {_INSTEAD}"


def slower_operator(
    options: Options,
    live: LiveRnn,
    data: Sequence[int] | None,
    dtype: Any = None,
    *,
    folds: bool = False,
) -> str | None:
    """Why MXNet keeps an RNN operator, None where ours is faster or computes something else.

    Both run oneDNN or kernels of its speed: ours wins with large GRUs, and where it ``folds`` a
    FullyConnected. ``data``: the shape (T, N, I) of its input; sizes that are unknown are 0 or -1.
    ``dtype``: its type, None where that is unknown. MXNet has no float16, and computes float64
    without oneDNN.
    """
    others = dtype is not None and np.dtype(dtype) != np.float32
    if not _chooses(options) or live.only_ours or others:
        return None
    steps, sentences, width = data if data and len(data) == 3 else (0, 0, 0)
    stack = live.stack
    rows = steps * sentences if min(steps, sentences) > 0 else _ROWS
    work = rows * stack.elements(width if width > 0 else stack.hidden)
    if folds:
        least = 1e9 if stack.mode.startswith("rnn") else 4e8
    else:
        least = 3e9 if stack.mode == "gru" else math.inf
    if work >= least:
        return None
    batch = f"{steps} steps of {sentences} sequences" if rows == steps * sentences else "batches"
    return (
        f"MXNet runs {batch} of its {stack.mode} operator of {stack.hidden} units at least as"
        f" fast; {_INSTEAD}"
    )


def _chooses(options: Options) -> bool:
    return options.backend == "auto" and options.dtype == "f32"
