"""Any bytes give a result or an error of ours: real files of every kind, damaged at random.

A few of each kind in every run; ONERNN_DAMAGED=1000 tries so many. tests/fuzz searches on.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from support.graphs import new_node

from fuzz import targets
from fuzz.mutate import damaged
from onernn import Graph, ModelFormatError, OnernnError, convert
from onernn.ir.graph import Value

RELU = new_node("Relu", "x", "y")
FILES = int(os.environ.get("ONERNN_DAMAGED", 2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", targets.KINDS)
@pytest.mark.long
def test_any_bytes_give_a_result_or_an_error_of_ours(kind: str, tmp_path: Path) -> None:
    place = targets.Place(tmp_path)
    for number in range(FILES):
        seed, data = damaged(kind, number)
        path = targets.steps(place.model(seed, data), tmp_path)
        found = [each for each in targets.attempt(path) if not isinstance(each, str)]
        assert not found, (number, seed, found)


@pytest.mark.parametrize(
    "kind", [kind for kind in targets.KINDS if kind not in ("npz", "torch_weights")]
)
@pytest.mark.long
def test_the_real_files_run_so_that_the_damage_is_what_is_tried(kind: str, tmp_path: Path) -> None:
    seed = targets.seeds(kind)[0]
    model = targets.Place(tmp_path).model(seed, seed.read_bytes())
    assert {"fuse", "run", "verify"} <= {*targets.attempt(targets.steps(model, tmp_path))}


def test_what_is_no_error_of_ours_is_found() -> None:
    def foreign() -> None:
        raise KeyError("inside")

    def ours() -> None:
        raise ModelFormatError("inside")

    (found,) = targets.attempt([("first", foreign), ("second", ours)])
    assert isinstance(found, targets.Finding) and found.what == "KeyError: 'inside'"


@pytest.mark.parametrize("suffix", [".pdmodel", ".onnx"])
def test_an_output_that_is_named_twice_is_written_or_refused(suffix: str, tmp_path: Path) -> None:
    value = Value("y", "float32", (2,))
    twice = Graph("g", (Value("x", "float32", (2,)),), (value, value), (RELU,), {})
    with contextlib.suppress(OnernnError):
        convert(twice, tmp_path / f"model{suffix}")
