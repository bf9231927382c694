"""Compares PyTorch's recurrent modules with and without `optimize`.

``python -m benchmarks.torch_modules`` runs both modules alternately in one process. The outputs of
the first calls must agree. A time is the time of a call of the module. The ragged rows have the
sequence lengths of design/0040.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_sequence

from onernn.adapters.torch import optimize

RAGGED = ((128, 256, 1), (128, 256, 2), (512, 512, 1))
DENSE = ((1, 1, 16, 16), (1, 1, 512, 512), (25, 1, 512, 512), (25, 32, 512, 512))
DENSE += ((100, 32, 128, 256), (10, 4, 16, 32), (20, 8, 128, 128))
CHANGING = ((1, 1, 64), (20, 1, 64), (20, 16, 64), (1, 1, 256), (20, 1, 256), (20, 16, 256))
"""The steps, sequences and units of layers that compute weights or dropout masks in each call."""
TRAINED = ((10, 4, 16, 32), (20, 16, 128, 128), (25, 32, 512, 512), (100, 32, 128, 256))


class Row(NamedTuple):
    """A workload: the module, its input, and whether it trains."""

    name: str
    module: nn.Module
    x: Any
    trains: bool = False


class LowRank(nn.Module):
    """A parametrization that adds a product of two narrow matrices to a weight, as in LoRA."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(len(weight), 4))
        self.b = nn.Parameter(torch.randn(4, weight.shape[1]) / 100)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.a @ self.b


class DroppedWeights(nn.Module):
    """A parametrization that sets a random half of a weight's elements to 0, as in AWD-LSTM."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(weight, 0.5, True)


def add_low_rank(module: nn.Module, name: str) -> None:
    parametrize.register_parametrization(module, name, LowRank(getattr(module, name)))


def drop_weights(module: nn.Module, name: str) -> None:
    parametrize.register_parametrization(module, name, DroppedWeights())


COMPUTED = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "LoRA": add_low_rank,
    "dropped weights": drop_weights,
}


def changing_rows() -> Iterator[Row]:
    """Yields layers whose weights are computed in each call, and Monte Carlo dropout."""
    for kind in (nn.GRU, nn.LSTM):
        for T, N, units in CHANGING:
            size = f"{kind.__name__} {T}x{N} {units}->{units}"
            for name, compute in COMPUTED.items():
                module = kind(units, units)
                for weight in ("weight_ih_l0", "weight_hh_l0"):
                    compute(module, weight)
                yield Row(f"{name} {size}", module.eval(), torch.randn(T, N, units))
            module = kind(units, units, 2, dropout=0.3)
            yield Row(f"Monte Carlo dropout {size}, 2 layers", module, torch.randn(T, N, units))


def ragged_input(channels: int) -> Any:
    """Returns 64 packed sequences with lognormal lengths, 20 steps on average."""
    drawn = np.random.default_rng(7).lognormal(np.log(20) - 0.7**2 / 2, 0.7, 64)
    lengths = np.clip(np.rint(drawn), 1, None).astype(int).tolist()
    return pack_sequence([torch.randn(t, channels) for t in lengths], enforce_sorted=False)


def rows() -> Iterator[Row]:
    for kind in (nn.GRU, nn.LSTM):
        for inputs, units, layers in RAGGED:
            module = kind(inputs, units, layers, bidirectional=layers > 1)
            name = (
                f"packed {kind.__name__} {inputs}->{units}{', 2 layers, both ways' * (layers > 1)}"
            )
            yield Row(name, module.eval(), ragged_input(inputs))
        for T, N, inputs, units in DENSE:
            name = f"padded {kind.__name__} {T}x{N} {inputs}->{units}"
            yield Row(name, kind(inputs, units).eval(), torch.randn(T, N, inputs))
    for kind in (nn.GRU, nn.LSTM):
        yield Row(
            f"trained packed {kind.__name__} 128->256", kind(128, 256), ragged_input(128), True
        )
        for T, N, inputs, units in TRAINED:
            name = f"trained {kind.__name__} {T}x{N} {inputs}->{units}"
            yield Row(name, kind(inputs, units), torch.randn(T, N, inputs), True)
    yield from changing_rows()


def call_of(module: nn.Module, row: Row) -> Callable[[], torch.Tensor]:
    """Returns a function that calls the module, trains it if the row trains, and returns y."""

    def run() -> torch.Tensor:
        with torch.set_grad_enabled(row.trains):
            torch.manual_seed(0)  # dropout draws the same masks
            y = module(row.x)[0]
            y = y.data if hasattr(y, "batch_sizes") else y
            if row.trains:
                module.zero_grad()
                y.square().sum().backward()
            return y.detach()

    return run


def timed(calls: list[Callable[[], Any]], seconds: float) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 7:
        for times, call in zip(found, calls, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    parser.add_argument("--only", default="", help="rows whose names hold this")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {chosen.threads} threads")
    print("| workload | torch ms | ours ms | ratio of medians, of minima | first call ms |")
    print("|---|---|---|---|---|")
    for row in rows():
        if chosen.only not in row.name:
            continue
        theirs, ours = call_of(row.module, row), call_of(optimize(row.module), row)
        start = time.perf_counter()
        y = ours()
        first = time.perf_counter() - start
        torch.testing.assert_close(y, theirs(), rtol=1e-3, atol=1e-4)
        times = timed([theirs, ours], chosen.seconds)
        (a, b), (c, d) = map(statistics.median, times), map(min, times)
        print(
            f"| {row.name} | {a * 1e3:.3f} | {b * 1e3:.3f} | {a / b:.2f}, {c / d:.2f}"
            f" | {first * 1e3:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
