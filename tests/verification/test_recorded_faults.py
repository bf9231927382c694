"""Faults beside a recording of ONNX Runtime alone: named, proved on other sentences, never wrong.

A cheap part runs with all tests; `make fault-pairs` runs all of them (ONERNN_FAULT_PAIRS=all).
"""

from __future__ import annotations

import os
from copy import deepcopy

import numpy as np
import pytest
from support import planted
from support.fault_pairs import FAULTS, Tagger, file, fitting, sound
from support.planted import Arrays, read, recording

from onernn.verification.comparing import Tolerance
from onernn.verification.diagnosis.batch_cuts import cut_batch
from onernn.verification.tracing import Trial, traced
from onernn.verification.verifying import Report, verify

ALL = os.environ.get("ONERNN_FAULT_PAIRS") == "all"
PATIENT, SHORT = 600.0, 0.5
"""Seconds of a search: as long as it takes, and where it finds nothing."""

Shape = tuple[str, int, int, int]
PAIRS: list[tuple[str, int, str, int, Shape]] = [
    ("gates", 0, "states_dropped", 0, ("LSTM", 12, 1, 1)),
    ("runs_backwards", 0, "gates", 1, ("GRU", 8, 2, 1)),
    ("update_negated", 0, "states_dropped", 1, ("GRU", 12, 2, 1)),
    ("gates", 0, "lengths_dropped", 1, ("GRU", 8, 2, 1)),
    ("bias_doubled", 0, "gates", 1, ("LSTM", 24, 2, 1)),
    ("cell_state_dropped", 0, "gates", 1, ("LSTM", 16, 2, 1)),
    ("gates", 0, "recurrent_weights_transposed", 0, ("GRU", 24, 1, 2)),
    ("directions_exchanged", 0, "gates_of_the_recurrent_weights", 1, ("GRU", 8, 2, 2)),
    ("gates", 0, "recurrent_weights_transposed", 1, ("LSTM", 8, 2, 2)),
]
UNTOLD = [
    "some_recurrent_weights",
    "dense_scaled",
    "dense_bias_zeroed",
    "rounded_to_float16",
    "padded",
    "layer_left_out",
    "residual_from_before_the_relu",
    "hidden_state_as_cell_state",
    "recurrent_bias_left_out",
    "biases_zeroed",
]
"""No recording tells which numbers were there, or what was read."""
SMALL = {
    "reset_before": ("GRU", 4, 1, 1),
    "candidate_biases_merged": ("GRU", 4, 1, 1),
    "bias_of_one_gate": ("LSTM", 4, 1, 1),
}
"""Biases that are solved for."""


def batch(shape: Shape, lengths: tuple[int, ...]) -> Arrays:
    """Words behind the sentences' ends, states that are not zero."""
    op, hidden, layers, directions = shape
    rng = np.random.default_rng(7)
    count = len(lengths)
    states = ("h0", "c0")[: 1 + (op == "LSTM")]
    given = {"X": rng.normal(0, 1, (max(lengths), count, 5)).astype(np.float32)}
    for name in states:
        rows = (layers * directions, count, hidden)
        given[name] = rng.uniform(-1, 1, rows).astype(np.float32)
    return given | {"lens": np.array(lengths, np.int32)}


def beside_a_recording(
    good: Tagger, bad: Tagger, given: Arrays, seconds: float = PATIENT
) -> Report:
    return verify(read(file(bad)), recording(file(good), given), seconds=seconds)


MANY = (11, 3, 7, 0, 9, 5, 4)


@pytest.mark.parametrize(
    ("one", "at", "other", "there", "shape"), PAIRS if ALL else PAIRS[:1], ids=str
)
def test_two_faults_in_different_places_are_both_named_and_proved(
    one: str, at: int, other: str, there: int, shape: Shape
) -> None:
    good = sound(*shape, seed=3)
    bad = deepcopy(good)
    wanted = sorted([FAULTS[one](bad, at), FAULTS[other](bad, there)])
    report = beside_a_recording(good, bad, batch(shape, MANY))
    assert sorted(each.id for each in report.causes) == wanted, report.causes
    assert all(each.evidence == "proved" for each in report.causes)


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - {*UNTOLD}))
def test_one_fault_is_named_and_proved(name: str) -> None:
    shape = SMALL.get(name, fitting(name, 0))
    good = sound(*shape, seed=5)
    bad = deepcopy(good)
    wanted = FAULTS[name](bad, 0)
    report = beside_a_recording(good, bad, batch(shape, MANY))
    assert [(each.id, each.evidence) for each in report.causes] == [(wanted, "proved")]


@pytest.mark.parametrize(
    ("wanted", "without"), [("h0_dropped", {"states": False}), ("mask_ignored", {"lengths": False})]
)
@pytest.mark.parametrize("invented", [False, True])
def test_states_and_lengths_are_named_where_an_empty_sentence_ends_in_zeros(
    wanted: str, without: dict[str, bool], invented: bool
) -> None:
    """As ONNX has it: final states of a sentence without words are zeros."""
    arrays = planted.weights("LSTM", 2)
    files = planted.model("LSTM", arrays), planted.model("LSTM", arrays, **without)
    good, bad = files[::-1] if invented else files
    recorded = recording(good, planted.feed(True, 2))
    report = verify(read(bad), recorded, seconds=PATIENT)
    assert [(each.id, each.evidence) for each in report.causes] == [(wanted, "proved")]


def test_what_explains_the_only_sentence_is_a_candidate() -> None:
    shape = ("GRU", 8, 1, 1)
    good = sound(*shape, seed=5)
    bad = deepcopy(good)
    wanted = FAULTS["gates"](bad, 0)
    report = beside_a_recording(good, bad, batch(shape, (6,)))
    assert [(each.id, each.evidence) for each in report.causes] == [(wanted, "candidate")]


@pytest.mark.parametrize("name", UNTOLD[:2])
def test_a_search_that_ends_without_says_how_much_it_tried(name: str) -> None:
    shape = fitting(name, 1)
    good = sound(*shape, seed=5)
    bad = deepcopy(good)
    FAULTS[name](bad, 0)
    report = beside_a_recording(good, bad, batch(shape, MANY), SHORT)
    assert not report.passed and not report.causes
    assert report.stopped.startswith("search stopped after 0.5 s; ")
    assert " candidates tried" in report.stopped and report.stopped.endswith("; --seconds")


def test_no_second_sentence_is_wrong_where_a_fault_is_proved_by_it() -> None:
    """A recording of which one sentence was changed by hand: nothing explains that."""
    shape = ("GRU", 8, 1, 1)
    good = sound(*shape, seed=5)
    bad = deepcopy(good)
    FAULTS["gates"](bad, 0)
    given = batch(shape, MANY)
    recorded = recording(file(good), given)
    recorded["out__tags"] = recorded["out__tags"].copy()
    recorded["out__tags"][:, 0] *= np.float32(1.01)
    report = verify(read(file(bad)), recorded, seconds=SHORT)
    assert not report.passed and not report.causes


def test_a_batch_is_cut_to_few_sentences_along_the_axes_that_count_them() -> None:
    shape = ("GRU", 8, 2, 2)
    good = sound(*shape, seed=5)
    bad = deepcopy(good)
    FAULTS["gates"](bad, 1)
    given = batch(shape, MANY)
    model = traced(read(file(bad)), given)
    want = {"tags": recording(file(good), given)["out__tags"]}
    tolerances = {"tags": Tolerance(1e-6, 1e-5)}
    trial = Trial(model.graph, model.parts, model.values, want, tolerances, given)
    cut, proves = cut_batch(trial) or (trial, False)
    assert proves
    assert cut.all_inputs["lens"].tolist() == [3, 5, 4]  # type: ignore[union-attr]
    assert np.array_equal(cut.expected["tags"], want["tags"][:, [1, 5, 6]])
    assert np.array_equal(cut.all_inputs["h0"], given["h0"][:, [1, 5, 6]])
