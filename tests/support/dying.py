"""A scorer that rows can kill, for processes that load it by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onernn.scoring.scorer import Scored, rejected


class Dying:
    """Twice the column x; a row of -1 kills the process, unless that happened ``often`` before."""

    def __init__(self, folder: str, often: int) -> None:
        self._folder, self._often = folder, often
        self._two = np.array([2])

    def __call__(self, rows: pa.Table, first: int, bad: Mapping[int, str]) -> Scored:
        x = rows.column("x")
        if pc.any(pc.less(x, 0)).as_py() and len(os.listdir(self._folder)) < self._often:
            with open(os.path.join(self._folder, str(os.getpid())), "wb"):
                os.kill(os.getpid(), signal.SIGKILL)
        twice = rows.append_column("y", pc.multiply(x, int(self._two[0])))
        return Scored(twice, rejected(bad, first), len(x))
