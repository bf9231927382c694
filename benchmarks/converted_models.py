"""Compares Keras models with masks with the same models as ONNX files.

``python -m benchmarks.converted_models`` runs both in onernn, alternately, on the batch of the
recording. In a converted model, ordinary operators compute the masks. The ratio of the times shows
how much time these operators take.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import ROOT

MODELS = ("text_classifier", "cells", "masked_steps")
"""Folders of recorded models, each with a mask."""
ROUNDS = 200


def measure(sessions: Mapping[str, Any], feed: Mapping[str, Any]) -> dict[str, float]:
    """Returns the median time of a call in microseconds for each session."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(feed)
            times[name].append(1e6 * (time.perf_counter() - start))
    return {name: statistics.median(each[ROUNDS // 10 :]) for name, each in times.items()}


def compare(folder: Path) -> str:
    """Returns the row of a recorded model, run on the batch of its recording."""
    import onernn

    with tempfile.TemporaryDirectory() as name:
        written = Path(name) / "model.onnx"
        onernn.convert(folder / "model.keras", written)
        sessions = {
            "keras": onernn.Session(str(folder / "model.keras"), threads=1),
            "onnx": onernn.Session(str(written), threads=1),
        }
    with np.load(folder / "io.npz") as recorded:
        feed = {each.name: recorded[f"in__{each.name}"] for each in sessions["keras"].inputs}
    medians = measure(sessions, feed)
    interpreted = "yes" if "in Python" in sessions["onnx"].explain() else "no"
    ratio = medians["onnx"] / medians["keras"]
    return (
        f"| {folder.name} | {medians['keras']:.1f} | {medians['onnx']:.1f} | {ratio:.2f}"
        f" | {interpreted} |"
    )


def main() -> None:
    print("| model | .keras, us a call | as ONNX, us a call | ratio | operators in Python |")
    print("|---|---|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        print(compare(ROOT / "tests" / "data" / "keras" / name), flush=True)


if __name__ == "__main__":
    main()
