"""Labels of a budget: which rows of a model's outputs count, and how many change on new data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.graphs import new_node, new_nodes
from support.layers import random_layer

import onernn
from onernn import Cell, Graph, Ragged, RnnSpec, Session, UnsupportedError
from onernn.ir.arrays import Array
from onernn.ir.graph import Value
from onernn.verification.quantizing import design_effect, upper_bound

WIDTH, HIDDEN, TIME, BATCH, CLASSES = 8, 24, 30, 40, 7
SPEC = RnnSpec(Cell.LSTM, WIDTH, HIDDEN)
LAYER = random_layer(SPEC, 0)
CONSTANTS = {
    "w": np.random.default_rng(0).normal(0, 1, (HIDDEN, CLASSES)).astype(np.float32),
    "zeros": np.zeros((1, HIDDEN), np.float32),
    "time": np.array([1]),
    "last_axis": np.array([-1]),
}


def tagger(*outputs: str) -> Graph:
    """An LSTM over (T, N, I) and lengths, as ONNX has it, and what may stand behind it."""
    nodes = (
        new_node("words = SequenceUnpad x lengths", time_major=1),
        new_node("ragged h c = Rnn words", **LAYER),
        *new_nodes("""
        y = SequencePad ragged x time_major=1
        batched = Transpose y perm=(1,0,2)
        scores = MatMul batched w
        ids = ArgMax scores axis=-1 keepdims=0
        pooled = ReduceMean batched time keepdims=0
        ends = Softmax h axis=-1
        tags = MatMul ragged w
        one = ReduceMax scores last_axis keepdims=1
    """),
    )
    inputs = (Value("x", "float32", (None, None, WIDTH)), Value("lengths", "int64", (None,)))
    return Graph("tagger", inputs, tuple(map(Value, outputs)), nodes, CONSTANTS).prune()


quantize = partial(onernn.quantize, budget="labels 99%")


def padded(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, TIME, BATCH)
    return {"x": rng.normal(0, 1, (TIME, BATCH, WIDTH)).astype(np.float32), "lengths": lengths}


def real(feed: dict[str, Array]) -> Array:
    """(N, T): the steps within each length."""
    return np.arange(TIME) < feed["lengths"][:, None]


def steps_of_y(y: Any, feed: dict[str, Array]) -> Array:
    return y.swapaxes(0, 1)[real(feed)].argmax(-1)


COUNTED: dict[str, tuple[tuple[str, ...], str, Callable[[Any, dict[str, Array]], Array]]] = {
    "what a layer gives at each step": (("y",), "y", steps_of_y),
    "scores": (("scores",), "scores", lambda value, feed: value[real(feed)].argmax(-1)),
    "integers": (("ids", "scores", "h"), "ids", lambda value, feed: value[real(feed)]),
    "a row for each sequence that has steps": (
        ("pooled",),
        "pooled",
        lambda value, feed: value[feed["lengths"] > 0].argmax(-1),
    ),
    "scores of states": (("ends",), "ends", lambda value, _: value[0, 0].argmax(-1)),
    "ragged rows": (("tags",), "tags", lambda value, _: value.data.argmax(-1)),
}


@pytest.mark.parametrize("measure", ["rmse", "max_abs"])
def test_integers_and_padding_are_no_error_of_numbers(measure: str) -> None:
    model, held = tagger("ids", "scores"), [padded(1), padded(2)]
    found = onernn.quantize(model, [padded(0)], budget=f"{measure} 9", held_out=held)
    runs = Session(model, threads=1), Session(found.model, threads=1)
    exact, given = (
        np.concatenate([run.run(feed)["scores"][real(feed)] for feed in held]) for run in runs
    )
    apart = np.abs(exact.astype(np.float64) - given)
    want = {"rmse": np.sqrt(np.mean(apart**2)), "max_abs": apart.max()}[measure]
    assert found.error == pytest.approx(want, rel=1e-9) and want > 0
    assert found.counted == f"{apart.size:,} numbers of 'scores'"
    with pytest.raises(UnsupportedError, match="a budget of labels"):
        onernn.quantize(tagger("ids"), held, budget=f"{measure} 9")


@pytest.mark.parametrize("case", COUNTED)
def test_labels_are_real_steps_of_outputs_that_are_scores(case: str) -> None:
    """Counted here once more, from the lengths."""
    outputs, name, labels = COUNTED[case]
    model, held = tagger(*outputs), [padded(1), padded(2)]
    found = quantize(model, [padded(0)], held_out=held)
    runs = Session(model, threads=1), Session(found.model, threads=1)
    exact, given = (
        np.concatenate([labels(session.run(feed)[name], feed) for feed in held]) for session in runs
    )
    assert found.error == np.mean(exact != given) > 0
    sequences = sum(int((feed["lengths"] > -(name == "ends")).sum()) for feed in held)
    assert found.counted == f"{len(exact):,} labels of {name!r} in {sequences} sequences"


def test_outputs_are_named_and_what_holds_no_labels_is_refused() -> None:
    feeds = [padded(0), padded(1)]
    found = quantize(tagger("y", "ids", "h"), feeds, labels_of="h")
    assert found.counted == f"{BATCH} labels of 'h' in {BATCH} sequences"
    for outputs, name, message in (
        (("y", "h"), "", r"labels of '' \(--labels-of, .* expected one of \['y', 'h'\]"),
        (("h",), "hh", "labels of 'hh'"),
        (("one",), "", "labels of 'one': expected integers"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            quantize(tagger(*outputs), feeds, labels_of=name)
    with pytest.raises(UnsupportedError, match="expected a budget of labels"):
        onernn.quantize(tagger("h"), feeds, budget="max_abs 1", labels_of="h")


def test_labels_that_read_several_steps_are_refused() -> None:
    """A mean over neighbours gives rows behind the end, too."""
    nodes = (
        *tagger("batched").nodes,
        *new_nodes("""
        next = Slice batched one end time
        here = Slice batched zero last time
        pairs = Add here next
    """),
    )
    more = {"zero": [0], "one": [1], "last": [-1], "end": [2**31]}
    constants = CONSTANTS | {name: np.array(each) for name, each in more.items()}
    inputs = tagger("y").inputs
    model = Graph("pairs", inputs, (Value("pairs"),), nodes, constants).prune()
    with pytest.raises(UnsupportedError, match="'pairs'.* steps"):
        quantize(model, [padded(0), padded(1)])


def test_sequences_of_upper_levels_are_the_outermost() -> None:
    """Sentences of a document depend on each other."""
    nodes = (new_node("y = Rnn x", **LAYER), new_node("s = MatMul y w"))
    inputs = (Value("x", "float32", (None, WIDTH), 2),)
    model = Graph("documents", inputs, (Value("s"),), nodes, CONSTANTS)
    data = np.random.default_rng(0).normal(0, 1, (20, WIDTH)).astype(np.float32)
    x = {"x": Ragged(data, np.array([0, 3, 3, 10, 14, 20]), (np.array([0, 2, 4, 5]),))}
    found = quantize(model, [x], held_out=[x])
    assert found.counted == "20 labels of 's' in 3 sequences"


REPEATS = 1000


RATES: dict[str, Callable[[np.random.Generator, float, tuple[int, int]], Array]] = {
    "even": lambda rng, p, shape: np.full(shape, p),
    # Rates of sequences that vary, with a correlation of 0.1 inside of them.
    "gathered": lambda rng, p, shape: rng.beta(9 * p, 9 * (1 - p), shape),
    # A sequence changes in half of its labels, or not at all.
    "whole": lambda rng, p, shape: np.where(rng.random(shape) < 2 * p, 0.5, 0.0),
}


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("number, p", [(10, 0.02), (100, 0.003), (100, 0.02), (1000, 0.001)])
def test_the_bound_is_above_the_true_rate_in_95_of_100_samples(
    rates: str, number: int, p: float
) -> None:
    """For the dtypes that tell how changes gather, and for a milder choice that they tell it for.

    Allowed: three deviations of a share of 0.95 in so many repeats.
    """
    rng = np.random.default_rng(0)
    shape = REPEATS, number
    counts = rng.integers(1, 40, shape)
    changed = rng.binomial(counts, RATES[rates](rng, p, shape))
    mild = rng.binomial(changed, 0.2)
    kept = {"own": 0, "mild": 0, "mean": 0}
    for one, less, sizes in zip(changed, mild, counts, strict=True):
        effect, total = design_effect(one, sizes), sizes.sum()
        kept["own"] += upper_bound(one.sum(), total, effect) >= p
        kept["mild"] += upper_bound(less.sum(), total, effect) >= 0.2 * p
        kept["mean"] += one.sum() / total >= p
    least = REPEATS * 0.95 - 3 * np.sqrt(REPEATS * 0.95 * 0.05)
    assert min(kept["own"], kept["mild"]) >= least > kept["mean"]


def test_the_bound_is_sharp_where_much_is_known_and_positive_where_nothing_changed() -> None:
    counts = np.full(4000, 15)
    changed = np.zeros(4000, int)
    changed[:60] = 1  # 0.1 %, each in a sequence of its own: nearly as independent labels
    effect = design_effect(changed, counts)
    assert 1 <= effect < 2 and 0.001 < upper_bound(60, counts.sum(), effect) < 0.0014
    few = design_effect(np.array([2, 0, 0, 0]), np.full(4, 10))  # 3 of 10, 2 of 4 / 1.9
    assert few == pytest.approx((3 * 10 + 2 * 4 / 1.9) / 5)
    none = design_effect(np.zeros(4000, int), counts)
    assert none == 15  # as if all labels of a sequence changed together: 3 of 4000 sequences
    assert upper_bound(0, counts.sum(), none) == pytest.approx(3 / 4000, rel=0.02)
    assert upper_bound(0, 5, design_effect(np.zeros(1), np.array([5]))) == 1
