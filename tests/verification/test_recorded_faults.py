"""Faults against a recording of ONNX Runtime, or of the reference backend: named, never wrong."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import planted
from support.graphs import new_node
from support.layers import random_weights
from support.planted import FAULTS, Arrays, file, fitting, named, read, recording, sound

import onernn
from onernn import Cell, Graph, RnnSpec, Session
from onernn.ir.graph import Node, Value
from onernn.verification.diagnosis import search
from onernn.verification.recording import INPUTS, OUTPUTS, key_arrays
from onernn.verification.verifying import Report, verify

PATIENT, SHORT = 600.0, 0.5
"""Seconds of a search: as long as it takes, and where it finds nothing."""
TOLD = """bias_doubled cell_state_dropped clipped
directions_exchanged epsilon forget_bias gates gates_of_one_direction gates_of_the_biases
gates_of_the_recurrent_weights gates_of_torch hard_sigmoid lengths_dropped
recurrent_weights_transposed relu_for_tanh runs_backwards states_dropped update_negated""".split()


def compare(name: str, *, amount: float = 1.0, seconds: float = PATIENT) -> tuple[Report, str]:
    """The report of a planted fault, and its id. ``amount``: a factor on one recorded sequence."""
    good = sound(*fitting(name), seed=5)
    bad = deepcopy(good)
    wanted = FAULTS[name](bad)
    recorded = recording(file(good))
    recorded["out__tags"][:, 0] *= np.float32(amount)
    return verify(read(file(bad)), recorded, seconds=seconds), wanted


@pytest.mark.parametrize("name", TOLD)
def test_one_fault_is_named_as_a_candidate(name: str) -> None:
    report, wanted = compare(name)
    assert named(report) == [(wanted, "candidate")]


@pytest.mark.parametrize(
    "wanted, without", [("h0_dropped", {"states": False}), ("mask_ignored", {"lengths": False})]
)
@pytest.mark.parametrize("invented", [False, True])
def test_states_and_lengths_are_named_where_an_empty_sequence_ends_in_zeros(
    wanted: str, without: dict[str, bool], invented: bool
) -> None:
    """As ONNX has it: final states of a sequence without steps are zeros."""
    arrays = planted.weights("LSTM", 2)
    files = planted.model("LSTM", arrays), planted.model("LSTM", arrays, **without)
    good, bad = files[::-1] if invented else files
    report = verify(read(bad), recording(good), seconds=PATIENT)
    assert [each.id for each in report.causes] == [wanted]


def test_a_search_that_ends_without_says_how_much_it_tried() -> None:
    report, _ = compare("some_recurrent_weights", seconds=0.05)
    assert not report.passed and not report.causes
    assert "0.05 s" in report.stopped and report.stopped.endswith("--seconds")


def test_nothing_explains_a_fault_if_one_sequence_was_changed_by_hand() -> None:
    report, _ = compare("gates", amount=1.01, seconds=SHORT)
    assert not report.passed and not report.causes


# --- graphs of our own


STEPS, BATCH, WIDTH, HIDDEN = 9, 7, 6, 8
LENGTHS = np.array([9, 3, 5, 7, 4, 6, 8])
SPEC = RnnSpec(Cell.GRU, WIDTH, HIDDEN)


def layer(x: str, y: str, spec: RnnSpec = SPEC) -> Node:
    weights = random_weights(spec, 0)[0]
    return Node("Rnn", (x,), (y, f"{y}.h"), {"spec": spec, "weights": weights})


def unpad(x: str, lengths: str) -> Node:
    return Node("SequenceUnpad", (x, lengths), (f"{x}.ragged",), {"time_major": 1})


def graph(*nodes: Node, output: str = "y", **constants: np.ndarray) -> Graph:
    inputs = (
        Value("x", "float32", (None, None, WIDTH)),
        Value("lengths", "int64", (None,)),
        Value("ids", "int64", (None, None)),
    )
    read = {name for node in nodes for name in node.inputs}
    inputs = tuple(value for value in inputs if value.name in read)
    return Graph("model", inputs, (Value(output),), nodes, constants)


def sorted_lengths() -> tuple[Graph, Graph]:
    """As pack_padded_sequence sorts them; without them layers run to the end of the padding."""
    ordered = new_node("sorted order = TopK lengths count", axis=0)
    taken = new_node("batch = Gather x order", axis=1)
    count, nodes = np.array([BATCH]), (ordered, taken)
    right = *nodes, unpad("batch", "sorted"), layer("batch.ragged", "y")
    return tuple(
        graph(*each, output="y.h", count=count) for each in (right, (*nodes, layer("batch", "y")))
    )


def embedding_mask() -> tuple[Graph, Graph]:
    """Ids that are 0 at the end of a sequence, as Keras's mask_zero skips them."""
    look = new_node("rows = Gather table ids", axis=0)
    major = new_node("steps = Transpose rows", perm=(1, 0, 2))
    some = new_node("some = Cast ids", to="bool")
    ones = new_node("ones = Cast some", to="int64")
    count = new_node("counts = ReduceSum ones time", keepdims=0)
    table = np.random.default_rng(0).normal(0, 0.5, (20, WIDTH)).astype(np.float32)
    counted = (some, ones, count, unpad("steps", "counts"), layer("steps.ragged", "y"))
    right = graph(look, major, *counted, output="y.h", table=table, time=np.array([1]))
    return right, graph(look, major, layer("steps", "y"), output="y.h", table=table)


@pytest.mark.parametrize(
    "make, wanted",
    [
        (sorted_lengths, "mask_ignored"),
        (embedding_mask, "mask_ignored"),
    ],
)
def test_a_fault_of_lengths_and_order_is_named(make: object, wanted: str) -> None:
    right, wrong = make()  # type: ignore[operator]
    rng = np.random.default_rng(0)
    ids = np.where(np.arange(STEPS) < LENGTHS[:, None], rng.integers(1, 20, (BATCH, STEPS)), 0)
    x = rng.normal(0, 0.5, (STEPS, BATCH, WIDTH)).astype(np.float32)
    given: Arrays = {"x": x, "lengths": LENGTHS, "ids": ids}
    given = {value.name: given[value.name] for value in right.inputs}
    (expected,) = Session(right, backend="reference").run(given).values()
    recorded = key_arrays(INPUTS, given) | key_arrays(OUTPUTS, {"0": expected})
    report = verify(wrong, recorded, seconds=PATIENT)
    assert [each.id for each in report.causes] == [wanted], report.causes


def test_a_search_that_breaks_leaves_the_verdict(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    def break_down(*_: object) -> None:
        raise KeyError("a value")

    monkeypatch.delenv("ONERNN_RAISE", raising=False)
    monkeypatch.setattr(search, "candidates", break_down)
    folder, table = data / "keras" / "text_classifier", "embedding/embeddings"
    model = onernn.load(folder / "model.keras")
    constants = {**model.constants, table: np.roll(model.constants[table], 1, axis=0)}
    report = onernn.verify(replace(model, constants=constants), folder / "io.npz")
    assert not report.passed and not report.causes
    assert report.stopped.startswith("not explained: ") and "report" in report.stopped
