"""The workloads of ``workloads.toml``: their tasks, the tasks' arrays, and the expected outputs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tasks import Array, Numbers, Task
from onernn import Cell, Ragged, RnnSpec, RnnWeights
from onernn.backend import open_backend

FILE = Path(__file__).with_name("workloads.toml")
SLOPES, STEP = 6, 1e-4
"""The number of random directions along which gradients are compared, and the step of the central
differences, whose error is of the order STEP**2.
"""


def workloads() -> dict[str, dict[str, Any]]:
    return tomllib.loads(FILE.read_text())


def tasks(workload: dict[str, Any]) -> Iterator[Task]:
    """Yields the tasks of a workload, without dtype and number of threads.

    A row with lists has a task for each combination of the lists' elements.
    """
    for row in workload["rows"]:
        many = {key: v if isinstance(v, list) else [v] for key, v in row.items()}
        for values in product(*many.values()):
            sizes = dict(zip(many, values, strict=True))
            yield Task(
                workload["kind"],
                sizes["cell"],
                sizes["I"],
                sizes["O"],
                _lengths(workload, sizes),
                sizes.get("L", 1),
                sizes.get("D", 1),
            )


def target(workload: dict[str, Any], task: Task) -> float | None:
    """Returns how many times as fast as the fastest other framework onernn should be, or None."""
    for given in workload.get("targets", ()):
        if task.dtype in given and re.search(given.get("only", ""), str(task)):
            return float(given[task.dtype][min(task.threads, 2) - 1])
    return None


def _lengths(workload: dict[str, Any], sizes: dict[str, int]) -> tuple[int, ...]:
    if "batch" not in workload:
        return (sizes["T"],) * sizes.get("N", 1)
    batch = workload["batch"]
    mean, sigma = batch["mean"], batch["sigma"]
    rng = np.random.default_rng(batch["seed"])
    drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, batch["sentences"])
    return tuple(np.clip(np.round(drawn), 1, None).astype(int).tolist())


def written(task: Task, file: Path) -> Task:
    """Writes random arrays of a task to ``file``, and returns the task with this file.

    The inputs are in [-1, 1], and the weights are so small that states do not grow.
    """
    rng = np.random.default_rng(0)

    def uniform(bound: float, *shape: int) -> Array:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    arrays = {"words": uniform(1, sum(task.lengths), task.input_size)}
    cell = Cell(task.cell)
    for layer, inputs in enumerate(task.input_sizes):
        bound = max(inputs, task.hidden_size) ** -0.5
        stack, gates = (1, task.directions), (len(cell.gates), task.hidden_size)
        arrays[f"layer{layer}"] = uniform(bound, *stack, inputs, *gates)
        arrays[f"iter{layer}"] = uniform(bound, *stack, task.hidden_size, *gates)
        arrays[f"bias{layer}"] = uniform(bound, *stack, cell.bias_rows, task.hidden_size)
    if task.kind == "training":
        directions = {
            f"along_{name}": (rng.standard_normal((SLOPES, *a.shape)) / a.size**0.5).astype("f")
            for name, a in arrays.items()
        }
        arrays["dy"] = uniform(1, sum(task.lengths), task.hidden_size * task.directions)
        arrays |= directions
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return task.with_(file=str(file))


def reference(task: Task) -> Array:
    """Returns the expected outputs of all steps (W, D*O), from onernn's NumPy reference in float64.

    For training, returns the expected `Numbers.slopes`, from central differences.
    """
    numbers = Numbers(task)
    names = [f"{kind}{layer}" for layer in range(task.layers) for kind in ("layer", "iter", "bias")]
    arrays = {name: numbers[name].astype(np.float64) for name in ["words", *names]}
    if task.kind != "training":
        return _run(task, arrays)
    dy = numbers["dy"].astype(np.float64)

    def loss(step: float, k: int) -> float:
        moved = {name: a + step * numbers[f"along_{name}"][k] for name, a in arrays.items()}
        return float(np.sum(_run(task, moved) * dy))

    return np.array([(loss(STEP, k) - loss(-STEP, k)) / (2 * STEP) for k in range(SLOPES)])


def _run(task: Task, arrays: dict[str, Array]) -> Array:
    spec = RnnSpec(
        Cell(task.cell),
        task.input_size,
        task.hidden_size,
        layers=task.layers,
        direction="bidirectional_concat" if task.bidirectional else "left2right",
    )
    weights = [
        RnnWeights(arrays[f"layer{k}"], arrays[f"iter{k}"], arrays[f"bias{k}"])
        for k in range(task.layers)
    ]
    layer = open_backend("reference").prepare(spec, weights, dtype="f64")
    y, _ = layer.run(Ragged.from_lengths(arrays["words"], task.lengths))
    assert isinstance(y, Ragged)
    return y.data
