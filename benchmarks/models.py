"""Whole saved models: what they are called with, and how every contender is called. NumPy only."""

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
"""So many mixes of lengths follow each other before the first one comes again."""
FRAMEWORKS = {"onnx": "onnxruntime", "paddle": "paddle", "mxnet": "mxnet"}
"""The contender that a kind of files was made for: the others' outputs are compared with its."""
MEAN, SIGMA = 20, 0.7
"""Lengths of sentences are lognormal, as those of the layers' ragged batches."""

Feed = dict[str, Any]
"""By an input's name: an array, or (words, offsets) of a ragged batch."""


@dataclass(frozen=True)
class Model:
    """A saved model, and the calls of it that are measured together: a round.

    ``kind``: who reads its files: onnx, paddle, mxnet. A call is a clip of T steps, or a ragged
    batch of N sentences; ``mixed`` clips have other lengths in each round, and T on average.
    ``inputs``: by name, ``shape`` with -1 for the steps of a call; ids ``below`` a bound, a
    ``signal`` of `signals`, else float32 in [-1, 1]; ``ragged``; ``output``, the place of the
    output that is its value in the next call, zeros in a round's first; ``value``, an integer that
    never changes. ``wanted``: how many times faster ours is to be, by `measuring.comparisons`.
    ``first``: each round is the first call alone. Numbers are in ``file``.
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
        """The model with numbers in ``file``: each round cuts the same ones into other lengths."""
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
        """(rounds, calls, N), or (rounds, calls, 1) of clips."""
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
        """The calls of each round, again and again."""
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
    """A call of the result runs the next round; it gives the outputs of all its calls."""
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
    """The models of ``models.toml`` by name, each with its package's ``sha256``."""
    listed = tomllib.loads(FILE.read_text())
    packages = listed["packages"]
    return {
        name: entry | ({"sha256": packages[entry["package"]]} if "package" in entry else {})
        for name, entry in listed["models"].items()
    }


def rows(name: str) -> Iterator[Model]:
    """The rows of a model; its path is that in the package or the checkout."""
    entry = models()[name]
    for row in entry["rows"]:
        yield Model(name, entry["kind"], entry["path"], entry["inputs"], **row)
