"""Compares oneDNN with onernn's kernels: oneDNN's time divided by the kernels' time.

``python -m benchmarks.backends --help`` lists the options. Each cell, hidden size and batch has a
ratio. Both backends run alternately in this process, on one thread. The minimum CPU time of each
counts, because other work on the machine can only raise the time. To measure the code for a
different CPU, set both ONERNN_MAX_ISA and ONEDNN_MAX_CPU_ISA.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.run import machine
from onernn import UnsupportedError
from onernn.backend import open_backend
from onernn.verification.suite import Shape, sample_case

CELLS = ("GRU", "LBR GRU", "LSTM", "RNN tanh")
HIDDEN = (16, 64, 128, 256, 512, 1024)
STEPS = 16
"""The number of steps of a dense batch's sequences, and the average in a ragged batch."""


def ragged(count: int) -> tuple[int, ...]:
    drawn = np.random.default_rng(7).lognormal(np.log(STEPS) - 0.7**2 / 2, 0.7, count)
    return tuple(np.clip(np.round(drawn), 1, None).astype(int).tolist())


BATCHES = {
    **{f"{n} step": (1,) * n for n in (1, 8)},
    **{f"{n} dense": (STEPS,) * n for n in (1, 2, 4, 8, 32)},
    **{f"{n} ragged": ragged(n) for n in (8, 64)},
    "32 training": (STEPS,) * 32,
}
"""The lengths of the sequences of each batch, by the batch's name."""


def run(layer: Any, x: Any, training: bool) -> None:
    if not training:
        layer.run(x)
        return
    y, _, tape = layer.run_training(x)
    layer.backward(tape, y)


def ratio(layers: list[Any], x: Any, training: bool, seconds: float) -> float:
    """Returns the second layer's minimum CPU time divided by the first layer's."""
    least, calls = [float("inf")] * len(layers), []
    for layer in layers:
        run(layer, x, training)  # packs weights, makes primitives
        started = time.perf_counter()
        run(layer, x, training)
        calls.append(max(1, int(0.004 / (time.perf_counter() - started))))
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turns < 3:
        turns += 1
        for at, layer in enumerate(layers):
            started_at = time.process_time_ns()
            for _ in range(calls[at]):
                run(layer, x, training)
            least[at] = min(least[at], (time.process_time_ns() - started_at) / calls[at])
    return least[1] / max(least[0], 1)


def rows(dtype: str, cells: list[str], hidden: list[int], seconds: float) -> Iterator[str]:
    """Yields the lines of a Markdown table of ratios, with a line for each cell and hidden size."""
    yield f"| {dtype} | H | " + " | ".join(BATCHES) + " |"
    yield "|---" * (len(BATCHES) + 2) + "|"
    backends = [open_backend(name, threads=1) for name in ("kernels", "onednn")]
    for cell in cells:
        for size in hidden:
            ratios = []
            for name, lengths in BATCHES.items():
                case = sample_case(cell, "left2right", Shape(size, size, 1, lengths))
                x = case.x if "ragged" in name else case.pad(time_major=True)
                try:
                    layers = [
                        each.prepare(case.spec, [*case.weights], dtype=dtype, strict=True)
                        for each in backends
                    ]
                    training = name.endswith("training")
                    ratios.append(f"{ratio(layers, x, training, seconds):.2f}")
                except UnsupportedError:
                    ratios.append("-")
            yield f"| {cell} | {size} | " + " | ".join(ratios) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.backends", description=__doc__)
    parser.add_argument("--dtypes", default="f32,bf16,u8")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--hidden", default=",".join(map(str, HIDDEN)))
    parser.add_argument("--seconds", type=float, default=0.2, help="of each batch")
    parser.add_argument("--out", type=Path, help="a file for the tables")
    given = parser.parse_args()
    kernels: Any = open_backend("kernels")
    onednn: Any = open_backend("onednn")
    computer = machine()
    lines = [
        f"# oneDNN beside the kernels: {kernels.kernels.isa}",
        "",
        f"oneDNN's time ({onednn.library.effective_isa}) over that of the kernels"
        f" ({kernels.kernels.isa}). {computer['cpu']}, {computer['date'][:10]}, one thread.",
    ]
    print("\n".join(lines))
    for dtype in given.dtypes.split(","):
        print()
        lines.append("")
        hidden = list(map(int, given.hidden.split(",")))
        for line in rows(dtype, given.cells.split(","), hidden, given.seconds):
            print(line, flush=True)
            lines.append(line)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
