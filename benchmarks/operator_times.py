"""Prints the times of a model's operators: ``python -m benchmarks.operator_times 'dtln, 64 x 1'``.

The argument is a regular expression that selects rows of ``models.toml``. Each line is an operator,
as Python runs the operators one by one, and the slowest comes first. Further lines have the time
between operators, and the time of a normal run for comparison. All runs use one thread. NumPy's
matrix products use one thread if OPENBLAS_NUM_THREADS=1 is set.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.contenders import onernn
from benchmarks.model_files import NotThere, fetched
from benchmarks.models import Model, models, rows
from benchmarks.worker import timed

SECONDS = 1.0


def table_of(model: Model) -> list[str]:
    """Returns the lines of a row, with times in microseconds per call."""
    spent: Counter[str] = Counter()

    def watching(node: Any, outputs: Any, seconds: float) -> None:
        spent[f"{node.op:20} {node.label}"] += seconds

    whole, walk = (
        timed(onernn.prepare_whole(model, watch), SECONDS)["median"] / model.calls
        for watch in (None, lambda *_: None)
    )
    watched = onernn.prepare_whole(model, watching)
    watched.call()
    spent.clear()
    start = time.perf_counter()
    watched.call()
    between = time.perf_counter() - start - spent.total()
    lines = [f"{model}: {whole * 1e6:.1f} us a call, {walk * 1e6:.1f} operator by operator"]
    for name, seconds in [*spent.most_common(), ("between operators", between)]:
        lines.append(f"{seconds / model.calls * 1e6:10.1f}  {name}")
    return lines


def main(wanted: str) -> int:
    chosen = [m for name in models() for m in rows(name) if re.search(wanted, str(m))]
    with tempfile.TemporaryDirectory() as folder:
        for model in chosen:
            try:
                path = fetched(models()[model.name])
            except NotThere as error:
                print(f"benchmarks.operator_times: {error}", file=sys.stderr)
                return 2
            made = model.with_(path=str(path)).written(Path(folder) / "numbers.npz")
            print(*table_of(made), "", sep="\n")
    return 0 if chosen else 2


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
