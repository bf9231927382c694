"""A recurrent layer in f32 and in u8 over the same sentences: how far apart, how much faster.

python examples/u8_inference.py [--cell lstm] [--units 512]

The weights are random: what counts is what quantization does to them. u8 data is
q = x * scale + shift; a calibration batch gives the scale, each output channel of the weights has
one of its own, and signs survive through the shift of 128.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated

import numpy as np
import typer

from onernn import Cell, Ragged, RnnSpec, RnnWeights
from onernn.backend import Stack, open_backend

CHANNELS = 128


class Quantized(Enum):
    """The cells that oneDNN runs in u8, here or through products."""

    LSTM = "lstm"
    GRU = "gru"
    LBR_GRU = "lbr_gru"


def random_weights(spec: RnnSpec, rng: np.random.Generator) -> RnnWeights:
    """Uniform in +-1/sqrt(units), as frameworks initialize."""
    bound = 1 / np.sqrt(spec.hidden_size)
    shapes = (
        (1, 1, spec.input_size, spec.gates, spec.hidden_size),
        (1, 1, spec.recurrent_size, spec.gates, spec.hidden_size),
        (1, 1, spec.cell.bias_rows, spec.hidden_size),
    )
    return RnnWeights(*(rng.uniform(-bound, bound, s).astype(np.float32) for s in shapes))


def random_sentences(rng: np.random.Generator, count: int = 64) -> Ragged:
    """Words (W, I) in [-2, 2]; about 20 a sentence."""
    lengths = np.clip(rng.lognormal(3, 0.7, count).astype(np.int64), 1, 100)
    words = rng.uniform(-2, 2, (lengths.sum(), CHANNELS)).astype(np.float32)
    return Ragged.from_lengths(words, lengths)


def calibrated_scale(batches: list[Ragged]) -> float:
    """The scale that fits the largest value of some batches, and of states, into u8."""
    return 127 / max(1.0, *(float(np.abs(batch.data).max()) for batch in batches))


def milliseconds(layers: dict[str, Stack], x: Ragged, rounds: int = 20) -> dict[str, float]:
    """The median time of each, in turns, so that a busy machine is as busy for all."""
    taken: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(rounds):
        for name, layer in layers.items():
            started = time.perf_counter()
            layer.run(x)
            taken[name].append(1e3 * (time.perf_counter() - started))
    return {name: float(np.median(times)) for name, times in taken.items()}


def main(
    cell: Annotated[Quantized, typer.Option(help="Which cell.")] = Quantized.LSTM,
    units: Annotated[int, typer.Option(help="Width of the state.", min=1)] = 512,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Prints for each data type what runs it, its error against float64, and its time."""
    rng = np.random.default_rng(0)
    spec = RnnSpec(Cell[cell.name], CHANNELS, units)
    weights, x = random_weights(spec, rng), random_sentences(rng)
    scale = calibrated_scale([random_sentences(rng) for _ in range(3)])
    backend = open_backend("onednn", threads=threads)
    layers = {
        "f32": backend.prepare(spec, weights),
        "u8": backend.prepare(spec, weights, dtype="u8"),
        "u8, calibrated": backend.prepare(spec, weights, dtype="u8", data_scale=scale),
    }
    exact, _ = open_backend("reference").prepare(spec, weights, dtype="f64").run(x)
    assert isinstance(exact, Ragged)
    print(f"{spec.cell.name} {CHANNELS} -> {units}, {len(x)} sentences, {len(x.data)} words")
    print(f"scale by calibration: {scale:.1f}")
    outputs = {name: layer.run(x)[0] for name, layer in layers.items()}
    times = milliseconds(layers, x)
    for name, layer in layers.items():
        apart = np.abs(outputs[name].data - exact.data)
        error = f"max error {apart.max():.1e}, mean {apart.mean():.1e}"
        print(f"{name:15} {error}, {times[name]:6.2f} ms, {layer.kernel}")
        if layer.why:
            print(f"{'':15} {layer.why}")


if __name__ == "__main__":
    typer.run(main)
