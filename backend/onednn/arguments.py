"""oneDNN's execution arguments of RNN primitives, and where they are in our interface.

For those who know the developer guide: `ARGUMENTS` names the parameter or result that holds what
``DNNL_ARG_NAME`` does, and the one that holds ``DNNL_ARG_DIFF_NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Place(NamedTuple):
    """Where a value and its gradient are; "" where there is none."""

    value: str
    gradient: str


ARGUMENTS: Mapping[str, Place] = MappingProxyType(
    {
        "SRC_LAYER": Place("run(x)", "backward(...).x"),
        "SRC_ITER": Place("run(state=(h, ...))", "backward(...).state[0]"),
        "SRC_ITER_C": Place("run(state=(h, c))", "backward(...).state[1]"),
        "AUGRU_ATTENTION": Place("run(attention=)", "backward(...).attention"),
        "WEIGHTS_LAYER": Place("RnnWeights.layer", "backward(...).layers[l].layer"),
        "WEIGHTS_ITER": Place("RnnWeights.iter", "backward(...).layers[l].iter"),
        "WEIGHTS_PEEPHOLE": Place("RnnWeights.peephole", "backward(...).layers[l].peephole"),
        "WEIGHTS_PROJECTION": Place("RnnWeights.projection", "backward(...).layers[l].projection"),
        "BIAS": Place("RnnWeights.bias", "backward(...).layers[l].bias"),
        "DST_LAYER": Place("y of (y, state)", "backward(tape, dy)"),
        "DST_ITER": Place("state[0] of (y, state)", "backward(dstate=(dh, ...))"),
        "DST_ITER_C": Place("state[1] of (y, state)", "backward(dstate=(dh, dc))"),
        "WORKSPACE": Place("the tape of run_training", ""),
        "SCRATCHPAD": Place("inside, one for each execution at a time", ""),
    }
)
"""In the order of the guide; run stands for run_training, too."""
