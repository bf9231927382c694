"""A language model that MXNet trained and saved, run without MXNet.

python examples/mxnet_language_model/perplexity.py
python examples/mxnet_language_model/perplexity.py "the function returns"

Without words: its perplexity on text never trained on, beside what MXNet computed from the same
files. With words: those that it expects next.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
LAYERS, HIDDEN = 2, 128
STEPS, BATCH = 35, 8
"""Words that are read in one call, of how many streams side by side."""


def batches(ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(T, N) words and the words behind them, so that states go on from call to call."""
    whole = ids[: (len(ids) - 1) // BATCH * BATCH + 1]
    given, wanted = (part.reshape(BATCH, -1).T for part in (whole[:-1], whole[1:]))
    for at in range(0, len(given), STEPS):
        yield given[at : at + STEPS], wanted[at : at + STEPS]


def loss_of(scores: np.ndarray, wanted: np.ndarray) -> float:
    """The sum of -log p of the wanted words, in float64."""
    exact = scores.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    picked = np.take_along_axis(exact, wanted[..., None], -1)[..., 0]
    return float((np.log(np.exp(exact).sum(-1)) - picked).sum())


class LanguageModel:
    """(T, N) words -> (T, N, V) scores; the states go on."""

    def __init__(self, folder: Path = HERE, **session: object) -> None:
        import onernn

        self.session = onernn.Session(onernn.load(folder), **session)  # type: ignore[arg-type]
        self._words, *self._states = (value.name for value in self.session.graph.inputs)
        self._after = [value.name for value in self.session.graph.outputs][1:]
        self.states: list[np.ndarray] = []

    def begun(self) -> LanguageModel:
        """The model at the beginning of a text."""
        self.states = []
        return self

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        rows = ids.shape[1]
        states = self.states or [np.zeros((LAYERS, rows, HIDDEN), np.float32)] * 2
        feeds = dict(zip(self._states, states, strict=True))
        scores, *self.states = self.session.run({self._words: ids, **feeds}).values()
        return scores


def perplexity(score: Callable[[np.ndarray], np.ndarray], ids: np.ndarray) -> tuple[float, float]:
    """(perplexity, words a second): the time is that of the model, not of the loss behind it."""
    losses, count, seconds = 0.0, 0, 0.0
    for given, wanted in batches(ids):
        started = time.perf_counter()
        scores = score(given)
        seconds += time.perf_counter() - started
        losses += loss_of(scores, wanted)
        count += wanted.size
    return math.exp(losses / count), count / seconds


def expected(model: LanguageModel, words: list[str], text: str, count: int = 5) -> list[str]:
    """The words that are most likely next."""
    number_of = {word: number for number, word in enumerate(words)}
    given = [number_of.get(w, 0) for w in re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", text.lower())]
    scores = model(np.array(given, np.int32)[:, None])[-1, 0]
    return [words[at] for at in np.argsort(-scores)[:count]]


def main() -> None:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("text", nargs="?", help="words to go on from")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="f32")
    chosen = parser.parse_args()
    model = LanguageModel(threads=chosen.threads, dtype=chosen.dtype)
    with np.load(HERE / "heldout.npz") as saved:
        ids, words = saved["ids"], saved["words"].tolist()
    if chosen.text:
        print(" ".join(expected(model, words, chosen.text)))
        return
    training = json.loads((HERE / "training.json").read_text())
    value, speed = max(perplexity(model.begun(), ids) for _ in range(5))
    print(model.session.explain())
    print(f"perplexity {value:.6f}, in MXNet {training['perplexity']:.6f}")
    print(
        f"words a second {speed:.0f}, in MXNet {training['words_a_second']} where it was trained"
        f" (threads: {training['threads']})"
    )


if __name__ == "__main__":
    main()
