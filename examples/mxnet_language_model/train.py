"""Trains the language model in MXNet 1.9.1: ``python examples/mxnet_language_model/train.py``.

An embedding, a two-layer LSTM and a projection, in gluon, over Python's documentation. What comes
out lies beside this file:

    model-symbol.json, model-0000.params   words and states -> scores and states, as export writes
    heldout.npz                            words never trained on, as numbers, and what they are
    training.json                          the perplexity that MXNet computed from these files
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from perplexity import BATCH, HIDDEN, LAYERS, STEPS, perplexity
from text import UNKNOWN, documents, vocabulary, words_of

HERE = Path(__file__).resolve().parent
SEED, EMBEDDING, WORDS, RATE, CLIP, DROPOUT = 11, 64, 2500, 4e-3, 0.5, 0.1
ROWS = 32
"""Streams of text that are read side by side while training."""


class LanguageModel(mx.gluon.HybridBlock):
    """(T, N) words and both states -> (T, N, V) scores and both states."""

    def __init__(self, words: int) -> None:
        super().__init__(prefix="lm_")
        with self.name_scope():
            self.embedding = mx.gluon.nn.Embedding(words, EMBEDDING)
            self.lstm = mx.gluon.rnn.LSTM(HIDDEN, LAYERS, dropout=DROPOUT, input_size=EMBEDDING)
            self.scores = mx.gluon.nn.Dense(words, flatten=False, in_units=HIDDEN)

    def hybrid_forward(self, F: Any, ids: Any, h: Any, c: Any) -> Any:  # noqa: N803
        y, after = self.lstm(self.embedding(ids), [h, c])
        return self.scores(y), *after


def zeros(rows: int) -> list[Any]:
    return [mx.nd.zeros((LAYERS, rows, HIDDEN)) for _ in range(2)]


def train(net: Any, ids: np.ndarray, epochs: float) -> int:
    """The number of words seen."""
    streams = ids[: len(ids) // ROWS * ROWS].reshape(ROWS, -1).T
    steps = int(epochs * ((len(streams) - 1) // STEPS))
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": RATE})
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    states = zeros(ROWS)
    for step in range(steps):
        at = step * STEPS % (len(streams) - STEPS)
        given, wanted = (mx.nd.array(streams[at + k : at + k + STEPS]) for k in (0, 1))
        trainer.set_learning_rate(RATE * (1 - step / steps) + 1e-5)
        with mx.autograd.record():
            scores, *states = net(given, *[state.detach() for state in states])
            total = loss(scores, wanted).mean()
        total.backward()
        grads = [p.grad() for p in net.collect_params().values() if p.grad_req != "null"]
        mx.gluon.utils.clip_global_norm(grads, CLIP)
        trainer.step(1)
        if step % 200 == 0:
            print(f"step {step} of {steps}: perplexity {math.exp(float(total.asscalar())):.1f}")
    return steps * STEPS * ROWS


class Stateful:
    """Arrays of words -> arrays of scores, in MXNet; the states go on."""

    def __init__(self, net: Any) -> None:
        self._net, self._states = net, zeros(BATCH)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        scores, *self._states = self._net(mx.nd.array(ids), *self._states)
        return scores.asnumpy()


def loaded(folder: Path) -> Any:
    """The model as its users load it."""
    names = ["data0", "data1", "data2"]
    return mx.gluon.SymbolBlock.imports(
        str(folder / "model-symbol.json"), names, str(folder / "model-0000.params")
    )


def trained(chosen: argparse.Namespace) -> dict[str, object]:
    """Writes the model and the words that it has not seen; returns what to write about it."""
    np.random.seed(SEED)
    mx.random.seed(SEED)
    split: tuple[list[str], list[str]] = ([], [])
    for number, text in enumerate(documents()):
        split[number % 20 == 7].extend(words_of(text))
    training, held_out = (words[: chosen.limit] for words in split)
    known = vocabulary(training, chosen.words)
    number_of = {word: number for number, word in enumerate(known)}
    unknown = number_of[UNKNOWN]
    ids = [
        np.array([number_of.get(word, unknown) for word in words], np.int32)
        for words in (training, held_out)
    ]
    started, cpu = time.perf_counter(), time.process_time()
    net = LanguageModel(len(known))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    seen = train(net, ids[0], chosen.epochs)
    net.export(str(chosen.output / "model"))
    kept = ids[1][: BATCH * STEPS * 60 + 1]
    np.savez_compressed(chosen.output / "heldout.npz", ids=kept, words=np.array(known))
    return {
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "training_words": len(ids[0]),
        "words_seen": seen,
        "heldout_words": len(kept) - 1,
        "seconds": round(time.perf_counter() - started),
        "cpu_seconds": round(time.process_time() - cpu),
    }


def main() -> None:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--words", type=int, default=WORDS)
    parser.add_argument("--limit", type=int, help="read no more words than this")
    parser.add_argument("--output", type=Path, default=HERE)
    parser.add_argument("--evaluate", action="store_true", help="only measure what is there")
    chosen = parser.parse_args()
    file = chosen.output / "training.json"
    results = json.loads(file.read_text()) if chosen.evaluate else trained(chosen)
    with np.load(chosen.output / "heldout.npz") as saved:
        ids = saved["ids"]
    model = loaded(chosen.output)
    value, speed = max(perplexity(Stateful(model), ids) for _ in range(5))
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    results |= {"perplexity": value, "words_a_second": round(speed), "threads": threads}
    file.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
