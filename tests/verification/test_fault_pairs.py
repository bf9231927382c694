"""Planted faults, alone and two at a time, are named by what they are; equal files pass.

A cheap part runs with all tests; `make fault-pairs` runs all of them (ONERNN_FAULT_PAIRS=all).
"""

from __future__ import annotations

import os

import pytest
from support.planted import (
    FAULTS,
    Made,
    across,
    compared,
    file,
    fitting,
    pairs,
    read,
    rewritten,
    sound,
)

from onernn.verification.diagnosis.cause import ADVICE, undo_causes
from onernn.verification.references import Against
from onernn.verification.verifying import verify

ALL = os.environ.get("ONERNN_FAULT_PAIRS") == "all"
CHEAP = ("-4-", "-8-", "-12-", "-16-1")


def some(found: dict[str, Made], step: int) -> list[str]:
    """The names of all, or of every so many-th one that is small."""
    small = [name for name in found if any(size in name for size in CHEAP)]
    return list(found) if ALL else small[::step]


PAIRS, ACROSS, EQUAL = pairs(), across(), rewritten()


@pytest.mark.parametrize("name", [*some(PAIRS, 4), *some(ACROSS, 13)])
def test_planted_faults_are_named_all_of_them_and_nothing_else(name: str) -> None:
    pair = (PAIRS | ACROSS)[name]()
    report = compared(pair.wrong, pair.sound, seconds=600)
    assert not report.passed
    assert sorted(each.id for each in report.causes) == sorted(pair.causes), report.causes
    assert all(each.evidence == "proved" and each.advice for each in report.causes)
    assert all(each.after < 1e-5 < each.before for each in report.causes)
    fixed = undo_causes(read(pair.wrong), report.causes)
    assert verify(fixed, against=Against(read(pair.sound)), diagnose=False).passed


@pytest.mark.parametrize("name", some(EQUAL, 3))
def test_files_that_are_written_otherwise_are_equal(name: str) -> None:
    report = compared(*EQUAL[name]()[:2])
    assert report.passed and not report.causes


def test_there_are_at_least_sixty_faults_and_ten_equal_pairs() -> None:
    assert len(PAIRS) >= 60 and len(EQUAL) >= 10
    assert sum("+" in name for name in PAIRS) >= 10


def test_every_cause_is_planted_somewhere() -> None:
    """A tagger returns no states; test_minimal_causes.py plants the fault of these."""
    planted = {plant(sound(*fitting(name))) for name, plant in FAULTS.items()}
    assert planted | {"state_returned"} == set(ADVICE)


TURNED = {
    "bias_zeroed": "bias_changed",
    "operator_added": "operator_missing",
    "operator_missing": "operator_added",
}
"""Causes with another id where the reference has the fault."""


@pytest.mark.parametrize("name", [name for name in some(PAIRS, 2) if "+" not in name])
def test_what_the_reference_has_and_the_model_has_not_is_named_as_well(name: str) -> None:
    pair = PAIRS[name]()
    (wanted,) = pair.causes
    if wanted != "weights_rounded":  # the model's numbers are others, by no rule
        (cause,) = compared(pair.sound, pair.wrong, seconds=600).causes
        assert (cause.id, cause.evidence) == (TURNED.get(wanted, wanted), "proved"), cause.text


@pytest.mark.parametrize(
    "faults, causes",
    [
        ("hard_sigmoid+directions_exchanged", ["activation_changed", "direction_swapped"]),
        ("gates+candidate_biases_merged", ["bias_changed", "gates_swapped"]),
    ],
)
def test_a_fault_of_a_layer_hides_no_other_fault_of_the_layer(
    faults: str, causes: list[str]
) -> None:
    """A model with only the named faults has to have the outputs of the wrong one."""
    good, bad = (sound("GRU", 6, 1, 2, seed=7) for _ in range(2))
    for name in faults.split("+"):
        FAULTS[name](bad)
    report = compared(file(bad), file(good), seconds=600)
    assert sorted(each.id for each in report.causes) == causes
