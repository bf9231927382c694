"""Whole saved models and the inputs of their calls. This module needs only NumPy."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.signals import SIGNALS
from benchmarks.tasks import Array, Prepared, Takes

FILE = Path(__file__).with_name("models.toml")
ROUNDS = 32
"""The number of rounds with different sequence lengths, before the first round is repeated."""
FRAMEWORKS = {"onnx": "onnxruntime", "paddle": "paddle", "mxnet": "mxnet"}
"""The framework of each kind of files. The outputs of other contenders are compared with the
framework's outputs.
"""
MEAN, SIGMA = 20, 0.7
"""The mean and sigma of the lognormal distribution of sequence lengths in ragged batches."""

Feed = dict[str, Any]
"""The inputs of a call by name. A value is an array, or (steps, offsets) for a ragged batch."""


@dataclass(frozen=True)
class Model:
    """A saved model and its calls. A round is a series of calls whose total time is measured.

    ``kind``: the framework of the files: onnx, paddle or mxnet. ``calls``: the number of calls of a
    round. A call has one sequence of T steps, or a ragged batch of N sequences if N is not 0. If
    ``mixed``, the lengths of the sequences change from call to call, and T is their mean.
    ``wanted``: how many times as fast onernn should be, by the kind of comparison in
    `measuring.comparisons`. ``first``: whether a round has only the first call. ``file``: an
    ``.npz`` of the inputs' values.

    ``inputs`` describes each input by a dict. ``shape``: its shape, with -1 for the steps of a
    call. ``below``: its values are integers below this bound. ``signal``: its values are this
    signal of `signals`. Without these two keys the values are float32 in [-1, 1]. ``ragged``:
    whether it is ragged. ``output``: the index of the output that is its value in the next call;
    the first call of a round gets zeros. ``value``: its value in all calls.
    """

    name: str
    kind: str
    path: str
    inputs: dict[str, dict[str, Any]]
    calls: int = 1
    T: int = 1
    N: int = 0
    mixed: bool = False
    wanted: dict[str, float] = field(default_factory=dict)
    dtype: str = "f32"
    threads: int = 1
    file: str = ""
    first: bool = False

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Model:
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def with_(self, **fields: Any) -> Model:
        return replace(self, **fields)

    def __str__(self) -> str:
        what, count = ("sentence", self.N) if self.N else ("step", self.T)
        mixed = ", mixed" * self.mixed
        return f"{self.name}, {self.calls} x {count} {what}{'s' * (count > 1)}{mixed}"

    def taken_by(self, mode: Takes) -> bool:
        return self.kind in mode.kinds.split() and self.dtype in mode.dtypes.split()

    def written(self, file: Path) -> Model:
        """Writes random values of the inputs to ``file``, and returns the model with this file.

        All rounds use the same values, with different sequence lengths.
        """
        rng = np.random.default_rng(0)
        lengths = self._lengths(rng)
        arrays = {"lengths": lengths}
        steps = int(lengths[0].sum())
        for name, given in self.inputs.items():
            if given.keys().isdisjoint(("output", "value")):
                shape = (steps, int(np.prod([size for size in given["shape"] if size != -1])))
                if "below" in given:
                    arrays[name] = rng.integers(given["below"], size=shape)
                elif "signal" in given:
                    arrays[name] = SIGNALS[given["signal"]](*shape, rng)
                else:
                    arrays[name] = rng.uniform(-1, 1, shape).astype(np.float32)
        np.savez(file, **arrays)  # type: ignore[arg-type]
        return self.with_(file=str(file))

    def _lengths(self, rng: np.random.Generator) -> Array:
        """Returns the sequence lengths: (rounds, calls, N), or (rounds, calls, 1) if N is 0."""
        if self.N:
            drawn = rng.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, self.calls * self.N)
            sentences = np.clip(np.round(drawn), 1, None).astype(int)
            rounds = [rng.permutation(sentences) for _ in range(ROUNDS)]
            return np.reshape(rounds, (ROUNDS, self.calls, self.N))
        steps = self.calls * self.T
        if not self.mixed:
            return np.full((1, self.calls, 1), self.T)
        cuts = [
            np.sort(1 + rng.choice(steps - 1, self.calls - 1, replace=False)) for _ in range(ROUNDS)
        ]
        return np.diff(cuts, prepend=0, append=steps)[..., None]

    def rounds(self) -> Iterator[list[Feed]]:
        """Yields the inputs of the calls of each round, and repeats the rounds without end."""
        with np.load(self.file) as arrays:
            lengths = arrays["lengths"]
            pools = {name: arrays[name] for name in arrays.files if name != "lengths"}
        if self.first:
            lengths = lengths[:1, :1]
        return cycle([list(self._calls(mix, pools)) for mix in lengths])

    def _calls(self, mix: Array, pools: dict[str, Array]) -> Iterator[Feed]:
        stop = 0
        for lengths in mix:
            start, stop = stop, stop + int(lengths.sum())
            feed: Feed = {}
            for name, given in self.inputs.items():
                if name in pools:
                    array = pools[name][start:stop].reshape(given["shape"])
                    offsets = np.concatenate([[0], np.cumsum(lengths)])
                    feed[name] = (array, offsets) if given.get("ragged") else array
                elif "value" in given:
                    feed[name] = np.full(given["shape"], given["value"])
                else:
                    feed[name] = np.zeros(given["shape"], np.float32)
            yield feed


def in_turn(model: Model, run: Callable[[Feed], list[Array]], note: str = "") -> Prepared:
    """Returns a `Prepared`. Each of its calls runs the model's next round, and returns the outputs
    of all calls of the round.

    ``run``: runs the model on the inputs of one call.
    """
    rounds = model.rounds()
    held = {name: given["output"] for name, given in model.inputs.items() if "output" in given}

    def call() -> list[Array]:
        outputs: list[Array] = []
        states: Feed = {}
        for feed in next(rounds):
            made = run({**feed, **states} if held else feed)
            states = {name: made[at] for name, at in held.items()}
            outputs += made
        return outputs

    return Prepared(call, list, note)


def models() -> dict[str, dict[str, Any]]:
    """Returns the models of ``models.toml`` by name, each with the ``sha256`` of its package."""
    listed = tomllib.loads(FILE.read_text())
    packages = listed["packages"]
    return {
        name: entry | ({"sha256": packages[entry["package"]]} if "package" in entry else {})
        for name, entry in listed["models"].items()
    }


def rows(name: str) -> Iterator[Model]:
    """Yields the rows of a model. The path is relative to the package or the checkout."""
    entry = models()[name]
    for row in entry["rows"]:
        yield Model(name, entry["kind"], entry["path"], entry["inputs"], **row)
