"""Known faults are made in any graph, also in one that has another fault already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import onernn
from onernn.ir.graph import Graph
from onernn.verification.comparing import Tolerance
from onernn.verification.diagnosis import search
from onernn.verification.diagnosis.graph_faults import operator_faults
from onernn.verification.diagnosis.search import Candidate, candidates
from onernn.verification.recording import opened, read_inputs, read_outputs
from onernn.verification.tracing import Trial, traced

DATA = Path(__file__).parents[1] / "data"
MASKED = DATA / "keras" / "text_classifier"
"""Embedding with a mask, two bidirectional layers of Keras."""


def _side(file: Path) -> Trial:
    model = onernn.load(file)
    arrays, where = opened(file.parent / "io.npz")
    given = read_inputs(arrays, model.inputs, where)
    expected = read_outputs(arrays, model.outputs, where)
    tolerances = dict.fromkeys(expected, Tolerance(1e-6, 1e-5))
    run = traced(model, given)
    return Trial(run.graph, run.parts, run.values, expected, tolerances, given)


def _around_layers(side: Trial) -> list[tuple[Candidate, Graph]]:
    """The faults that are no change of a layer's numbers, in every group that can have them."""
    every = (each for refined in (False, True) for each in candidates(side, refined))
    pairs = ((e, e.applied_to(side, side.graph)) for e in every if not e.numbers and e.group)
    return [(each, graph) for each, graph in pairs if graph is not None]


def test_a_fault_is_made_behind_one_that_put_nodes_around_a_layer() -> None:
    """A backward layer from the end of the padding; then another one, and directions exchanged."""
    side = _side(MASKED / "model.keras")
    faults = _around_layers(side)
    single = [(each, graph) for each, graph in faults if len(each.group) == 1]
    first = [graph for each, graph in single if each.fault.id == "reverse_padded"]
    assert len(first) == 2  # one backward direction in each layer
    behind = [each.fault.id for each, _ in faults if each.applied_to(side, first[0]) is not None]
    assert {"reverse_padded", "direction_swapped"} <= set(behind)


@pytest.mark.parametrize("name", ["keras/old_states/model.h5", "torch/cells/model.pt2"])
def test_layers_that_begin_with_each_others_states_have_no_reverse_order(name: str) -> None:
    """A decoder's states are its encoder's: exchanged, each would be made of the other."""
    found = _around_layers(_side(DATA / name))
    texts = [each.fault.text for each, _ in found]
    assert texts and not any("initial states of the layers" in text for text in texts)


def test_no_function_follows_an_operator_of_several_results() -> None:
    """A loop over constants has weights, and a function of its first result would lose the rest."""
    graph = _side(DATA / "mxnet/gluon_control/model-symbol.json").graph
    several = {name for node in graph.nodes if len(node.outputs) > 1 for name in node.outputs}
    found = [fault.apply(graph) for _, fault in operator_faults(graph)]
    assert found and all(
        several <= {name for node in made.nodes for name in node.outputs} for made in found
    )


def test_a_search_that_breaks_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a value")

    monkeypatch.delenv("ONERNN_RAISE", raising=False)
    monkeypatch.setattr(search.Search, "causes", broken)
    model = onernn.load(MASKED / "model.keras")
    table = "embedding/embeddings"
    constants = {**model.constants, table: np.roll(model.constants[table], 1, axis=0)}
    report = onernn.verify(replace(model, constants=constants), MASKED / "io.npz")
    assert not report.passed and not report.causes
    assert report.stopped.startswith("not explained: ") and "please report" in report.stopped
