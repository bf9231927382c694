"""A plan with a mistake in it is refused before a step leaves the memory of its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.fusing import departure
from support.graphs import new_node, small
from support.looping import GRAPHS, feeds
from support.planning import as_it_is
from support.taggers import sentences, tagger

from onernn import BudgetError, Graph, LibraryError, Ragged, Session
from onernn.engine import plan as plans
from onernn.engine.encoding import CALL, JUMP, LAYER, NEST, VIEW, Encoded
from onernn.ir.graph import Node
from onernn.ir.types import Size

pytestmark = pytest.mark.usefixtures("built")

RNG = np.random.default_rng(0)
WORDS = {"x": Ragged(RNG.normal(size=(9, 4)).astype(np.float32), np.array([0, 2, 3, 9]))}
FAR = 2**40
"""More numbers than any value has; times four bytes it is within 64 bits."""


def unpadded(*joined: str) -> Graph:
    """Words that are padded, and unpadded to as many: a Concat asks for that."""
    nodes = (
        new_node("padded = SequencePad x", time_major=0),
        new_node("relu = Relu padded"),
        new_node("lengths = SequenceLengths x"),
        new_node("words = SequenceUnpad relu lengths"),
        Node("Concat", joined, ("y",), {"axis": 1}),
    )
    return small(nodes, {"x": [None, 4]})


def found() -> Graph:
    """A size that only the call finds, read by what follows."""
    nodes = (
        new_node("padded = SequencePad x", time_major=0),
        new_node("lengths = SequenceLengths x"),
        new_node("words = SequenceUnpad padded lengths"),
        new_node("tanh = Tanh words"),
        new_node("y = SequencePool tanh", kind="sum"),
    )
    return small(nodes, {"x": [None, 4]})


TAGGED = sentences(np.random.default_rng(0), 3)
MODELS = {
    "found": (found(), WORDS),
    "tagger": (tagger(), TAGGED),
    "loop": (GRAPHS["a layer in it"], feeds()[0]),
}


@pytest.mark.parametrize("order", [("x", "words"), ("words", "x")])
@pytest.mark.parametrize("passes", [(), None], ids=["as it is", "fused"])
def test_words_that_are_padded_and_unpadded_stand_beside_themselves(
    order: tuple[str, str], passes: tuple[()] | None
) -> None:
    both = {"x": WORDS["x"].data, "words": np.maximum(WORDS["x"].data, 0)}
    got: Any = Session(unpadded(*order), backend="kernels", passes=passes).run(WORDS)["y"]
    assert np.array_equal(got.data, np.concatenate([both[name] for name in order], 1))
    assert np.array_equal(got.offsets, WORDS["x"].offsets)


def outcome(
    graph: Graph, feed: Any, change: Callable[[Encoded], None], patch: pytest.MonkeyPatch
) -> str:
    """What a plan does that is changed before the library gets it: refused, right, or wrong.

    Where it is refused, a user gets what the walk gives.
    """

    def changed(*given: Any) -> Encoded:
        made = encode(*given)
        change(made)
        return made

    encode = plans.encode
    want = as_it_is(graph)._walk(feed, None)
    with patch.context() as inner:
        inner.setattr(plans, "encode", changed)
        session = as_it_is(graph, max_steps=5000)
        assert session._plan(feed) is not None
        try:
            got = session.run(feed)
            wrong = any(departure(got[name], want[name], 1e-5) for name in want)
            return "wrong" if wrong else "right"
        except BudgetError:  # what ends a loop was left out
            return "endless"
        except LibraryError as error:
            assert "step" in str(error)
        inner.delenv("ONERNN_RAISE")
        got = session.run(feed)
        assert not any(departure(got[name], want[name], 1e-5) for name in want)
        return "refused"


def encoded(graph: Graph, feed: Any) -> Encoded:
    plan = as_it_is(graph)._plan(feed)
    assert plan is not None and not plan.outside
    return plan.encoded


@pytest.mark.parametrize("name", MODELS)
def test_what_reads_a_value_that_no_step_wrote_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is left out in turn."""
    graph, feed = MODELS[name]
    outcomes = []
    for at, (kind, _) in enumerate(encoded(graph, feed).steps):

        def leave_out(made: Encoded, at: int = at) -> None:
            made.steps[at] = (JUMP, [-1, at + 1, 0])

        if kind in (CALL, NEST, LAYER, VIEW):
            outcomes.append(outcome(graph, feed, leave_out, monkeypatch))
    assert outcomes.count("refused") > len(outcomes) / 2, outcomes


def sizes_of(made: Encoded, at: int) -> list[int]:
    """Where sizes stand in the words of a step: of a nest all of them, of others what they read and
    write."""
    kind, words = made.steps[at]
    if kind == NEST:
        rank, reads = words[0], words[1 + words[0]]
        first = 2 + rank
        parts = [first + part * (3 + rank) for part in range(reads + 1)]
        return [*range(1, 1 + rank), *(n for p in parts for n in range(p + 2, p + 3 + rank))]
    if kind == LAYER:
        return [n for n in range(6, len(words), 3) if words[n - 1] >= 0]
    return [2] if kind == VIEW else []


@pytest.mark.parametrize("name", MODELS)
def test_a_step_that_would_leave_its_memory_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size is too large in turn: elements that are not there are neither read nor written."""
    graph, feed = MODELS[name]
    made = encoded(graph, feed)
    refused = 0
    for at in range(len(made.steps)):
        for word in sizes_of(made, at):

            def enlarge(made: Encoded, at: int = at, word: int = word) -> None:
                made.steps[at][1][word] = made.size(Size.of(FAR))

            found = outcome(graph, feed, enlarge, monkeypatch)
            assert found in ("refused", "right"), (at, made.steps[at], word)  # a loop of one turn
            refused += found == "refused"
    assert refused >= 3


@pytest.mark.parametrize("name", MODELS)
def test_memory_that_is_too_small_is_not_written_over(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value of the arena gets room for no number in turn; "found" has one of a found size."""
    graph, feed = MODELS[name]
    for short in encoded(graph, feed).arena:

        def shrink(made: Encoded, short: str = short) -> None:
            buffer = made._buffer

            def shrunk(name: str) -> tuple[int, ...]:
                place, numbers, *rest = buffer(name)
                return place, made.size(Size(())) if name == short else numbers, *rest

            made.__dict__["_buffer"] = shrunk

        assert outcome(graph, feed, shrink, monkeypatch) == "refused", short
