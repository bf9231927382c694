"""Other projects' cases and exporters' models, with our layers inside ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases
from support.checking import assert_close
from support.machine import SATURATES
from support.onnx_models import quiet
from support.onnx_rnn import array_of, ort_case

from onernn.adapters.onnx import optimize

pytestmark = [
    pytest.mark.usefixtures("built"),
    pytest.mark.filterwarnings(
        "ignore::RuntimeWarning"
    ),  # onnx computes its numbers, infinities too
]
DATA = Path(__file__).parents[2] / "data" / "onnx"


def replaced(model: Any) -> Any:
    return optimize(model, backend="kernels", session_options=quiet())


def test_the_cases_of_onnx_runtime_are_right_or_refused_as_there(peer_suites: Path) -> None:
    cases = json.loads((peer_suites / "ort_rnn_cases.json").read_text())["cases"]
    right = refused = 0
    for found in cases:
        case = ort_case(found)
        session = replaced(case.model())
        if not session.replaced:  # its directions have functions of their own, or clip=0
            continue
        if found["expect_failure"]:
            with pytest.raises(Exception, match="sequence_lens: expected"):
                session.run(None, case.feed())
            refused += 1
            continue
        outputs = zip(filter(None, found["outputs"]), session.run(None, case.feed()), strict=True)
        for tensor, got in outputs:
            error = 2e-5 + found["ort_1_31_max_abs_err"]
            assert_close(got, array_of(tensor), atol=error)
        right += 1
    assert right >= 110 and refused == 2


def test_the_recurrent_cases_of_onnx_are_right() -> None:
    right = 0
    for case in collect_testcases(None):
        if not case.name.startswith(("test_rnn", "test_lstm", "test_gru", "test_simple_rnn")):
            continue
        made = onnx.ModelProto()
        made.CopyFrom(case.model)
        for inputs, outputs in case.data_sets or ():
            feed = dict(zip((value.name for value in made.graph.input), inputs, strict=True))
            constants = [n for n in ("W", "R", "B", "P") if n in feed]
            made.graph.initializer.extend(
                onnx.numpy_helper.from_array(feed.pop(n), n) for n in constants
            )
            kept = [value for value in made.graph.input if value.name not in constants]
            del made.graph.input[:]
            made.graph.input.extend(kept)
            session = replaced(made)
            assert session.replaced, session.explain()
            for got, want in zip(session.run(None, feed), outputs, strict=True):
                np.testing.assert_allclose(got, want, 1e-3, 1e-6, err_msg=case.name)
            right += 1
    assert right == 18


def test_exported_models_give_the_recorded_outputs() -> None:
    """Of PyTorch and TensorFlow, as these computed them; most have their layers as nodes."""
    replacements = {}
    for file in sorted(DATA.glob("*/model.onnx")):
        if SATURATES and file.parent.name.startswith("onnxruntime_quantized"):
            continue  # ONNX Runtime's own products differ from the recorded ones here
        session = replaced(file)
        replacements[file.parent.name] = len(session.replaced)
        assert not session.refusals
        with np.load(file.with_name("io.npz")) as recorded:
            feed = {value.name: recorded[f"in__{value.name}"] for value in session.get_inputs()}
            wanted = [recorded[name] for name in recorded if name.startswith("out__")]
            for got, want in zip(session.run(None, feed), wanted, strict=True):
                assert_close(got, want, rtol=2e-5, atol=2e-5)
    assert sum(map(bool, replacements.values())) >= 8, replacements
