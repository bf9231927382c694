"""Runs the Paddle models of the benchmark in Paddle, for tests that have no Paddle.

    python -m tests.frameworks.record_paddle_models tests/data/real_models

Run in an environment with PaddlePaddle 2.6.2; the models come by ``python -m
benchmarks.model_files``. Writes NAME.npz for each: inputs, and what Paddle gave, nothing fused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.model_files import found
from benchmarks.models import models
from onernn import Ragged, load
from onernn.ir.ragged import Batch
from onernn.verification.references import run_framework

LENGTHS = (1, 2, 25, 60, 1, 7, 33, 110, 14, 3, 19, 48, 5, 5, 71, 10, 28, 1, 90, 16, 22, 40, 9, 31)


def recorded(folder: Path, inputs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Arrays by the keys of a recording, for sentences of many lengths."""
    rng, model = np.random.default_rng(17), load(folder)
    feed: dict[str, Batch] = {}
    for name, given in inputs.items():
        ids = rng.integers(given["below"], size=sum(LENGTHS)).reshape(given["shape"])
        feed[name] = Ragged.from_lengths(ids, LENGTHS)
    names = [value.name for value in model.outputs]
    outputs = run_framework("paddle", str(folder), None, feed, names)
    arrays: dict[str, Any] = {}
    for name, batch in feed.items():
        arrays |= {f"in__{name}": batch.data.astype(np.int32), f"lod__{name}": batch.offsets}
    for name, batch in outputs.items():
        assert isinstance(batch, Ragged), name
        arrays |= {f"out__{name}": batch.data, f"outlod__{name}": batch.offsets}
    return arrays


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, told in models().items():
        folder = found(told)
        if told["kind"] == "paddle" and "package" in told and folder is not None:
            np.savez_compressed(target / f"{name}.npz", **recorded(folder, told["inputs"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
