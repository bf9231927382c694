"""What MXNet 1.9.1 computed (tests/frameworks/record_mxnet.py), computed without it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.backends import BACKENDS
from support.graphs import reference
from support.recorded_operators import Recorded, differences, operators_of, read_recorded

from onernn import Session, load, verify
from onernn.adapters.mxnet.table import RULES
from onernn.verification.recording import read_arrays

OPERATORS = read_recorded()


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.name)
def test_an_operator_gives_what_mxnet_gave(case: Recorded) -> None:
    actual = reference(case.graph("mxnet-cpu"), case.inputs)
    assert not (found := differences(actual, [*case.outputs.values()], case.outputs)), found


def test_the_comparison_sees_a_wrong_number_and_a_wrong_dtype() -> None:
    case = next(case for case in OPERATORS if case.name == "FullyConnected")
    (name, right), *_ = case.outputs.items()
    assert not differences({name: right}, [right], case.outputs)
    for wrong in (right + np.float32(1e-4), right.astype(np.float64), right[:, :-1]):
        assert differences({name: wrong}, [right], case.outputs)
    assert differences({"another name": right}, [right], case.outputs)


def test_every_operator_of_the_table_has_a_recording(data: Path) -> None:
    """_rnn_param_concat and RNN's other forms are in the recorded models. Numbers that are drawn
    are compared by their moments, here in tests/ops, beside MXNet in tests/frameworks.
    """
    symbols = [case.symbol for case in OPERATORS]
    symbols += [json.loads(file.read_text()) for file in data.glob("mxnet/*/model-symbol.json")]
    without = set(RULES) - set().union(*map(operators_of, symbols))
    assert [name for name in without if not name.startswith(("_random_", "_sample_"))] == []


@pytest.mark.parametrize(
    "name", ["gluon_language_model", "gluon_bidirectional_ntc", "gluon_unrolled_stack"]
)
def test_parameters_saved_by_gluon_are_found_by_their_blocks(name: str, data: Path) -> None:
    """Cells of equal sizes are taken in order, and that is noted."""
    folder = data / "mxnet" / name
    model = load(folder, params=folder / "gluon.params.saved")
    assert verify(model, folder / "io.npz", backend="reference").passed
    noted = any("they were taken in order" in note for note in model.notes)
    assert noted == (name == "gluon_unrolled_stack")


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_shared_model_gives_what_was_recorded(shared_models: Path, backend: str) -> None:
    folder = shared_models / "mxnet"
    listed = json.loads((folder / "manifest.json").read_text())["models"]
    meanings = {"data": "mxnet-cpu", "documented": "documented"}
    cases = [(entry, key) for entry in listed for key in meanings if key in entry]
    assert len(cases) >= 27
    for entry, key in cases:
        model = load(folder / entry["symbol"], semantics=meanings[key])
        report = verify(model, folder / entry[key], backend=backend)
        assert report.passed, (entry["symbol"], key, report.outputs)


def test_float64_models_compute_in_float64(shared_models: Path) -> None:
    folder = shared_models / "mxnet"
    model = load(folder / "op_gru_f64-symbol.json")
    recording = read_arrays(folder / "op_gru_f64.npz")
    given = {value.name: recording[f"in__{value.name}"] for value in model.inputs}
    for at, out in enumerate(Session(model).run(given).values()):
        assert out.dtype == np.float64
        assert np.abs(out - recording[f"out__{at}"]).max() < 1e-14  # some roundings of 2e-16
