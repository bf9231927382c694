"""Other projects' recurrent tests: ONNX Runtime's, ROOT's SOFIE's, and onnx's own backend suite."""

from __future__ import annotations

import json
import re
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from support.checking import assert_close
from support.onnx_models import read
from support.onnx_rnn import array_of, ort_case

from onernn import OnernnError, Session, ShapeError, load
from onernn.adapters.onnx import backend

# onnx computes the expected numbers of its cases when they are collected, infinities included.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_every_case_of_onnx_runtime_is_right_or_refused_as_there(peer_suites: Path) -> None:
    cases = json.loads((peer_suites / "ort_rnn_cases.json").read_text())["cases"]
    right = refused = 0
    for found in cases:
        case = ort_case(found)
        session = Session(read(case.model()))
        if found["expect_failure"]:
            with pytest.raises(ShapeError, match="lengths: (expected 2|sequence 1 has 5)"):
                session.run(case.feed())
            refused += 1
            continue
        outputs = session.run(case.feed())
        for tensor in filter(None, found["outputs"]):
            # The numbers stand there with six digits, and came from other implementations.
            error = 2e-5 + found["ort_1_31_max_abs_err"]
            assert_close(outputs[tensor["name"]], array_of(tensor), atol=error)
        right += 1
    assert (right, refused) == (133, 2)


def test_every_model_of_sofie_is_right_as_its_authors_saved_it(peer_suites: Path) -> None:
    cases = json.loads((peer_suites / "sofie" / "cases.json").read_text())["cases"]
    ran = set()
    for case in cases.values():
        x = np.array(case["X"], np.float32).reshape(case["X_shape"])
        for file in filter(None, {case["model"], case["original"]}):
            graph = load(peer_suites / "sofie" / file)
            outputs = list(Session(graph).run({graph.inputs[0].name: x}).values())
            for name, numbers in case["reference"].items():
                got = outputs[case["outputs"].index(name)]
                # The references' own distance from a float64 oracle is told beside them.
                error = 1e-6 + case["oracle_max_abs_err"][name]
                assert_close(got.reshape(-1), np.array(numbers), atol=error)
            ran.add(file)
    assert ran == {file.name for file in (peer_suites / "sofie").glob("*.onnx")} and len(ran) == 22


@pytest.mark.long
def test_the_recurrent_cases_of_onnx_pass_through_its_own_runner() -> None:
    suite = onnx.backend.test.BackendTest(backend.OnernnBackend, __name__)
    suite.include(r"^test_(simple_)?(rnn|lstm|gru)_.*_cpu$")
    results = unittest.TestResult()
    suite.test_suite.run(results)
    assert results.wasSuccessful(), results.errors or results.failures
    assert results.testsRun - len(results.skipped) == 18


AROUND_LAYERS = (
    "Conv ConvTranspose MaxPool AveragePool GlobalMaxPool GlobalAveragePool BatchNormalization"
    " InstanceNormalization GroupNormalization PRelu Pad Resize Upsample DFT STFT"
    " QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger"
    " QLinearConv QLinearMatMul"
    " ScatterElements ScatterND TopK NonZero GatherND GatherElements CausalConvWithState"
).split()
"""Operators of which every case is run, but for those below."""
REFUSED = {
    r"batchnorm_.*_training_mode": "training_mode=1: only 0 is supported",
    r"resize_.*_linear_antialias": "antialias=1: expected 0",
    r"resize_.*_cubic": "mode='cubic': expected nearest or linear",
    # ONNX's cases divide by 1.4 here, its specification and ONNX Runtime by 1.
    r"resize_downsample_scales_linear_align_corners": "implementations round it differently",
    r"e4m3fn|e5m2|float4|int4|int2": "dtype (float8.*|float4.*|u?int4|u?int2) is not supported",
}


def _array(value: Any) -> np.ndarray:
    """An expected result, which some cases store as a tensor's message."""
    is_message = isinstance(value, onnx.TensorProto)
    return numpy_helper.to_array(value) if is_message else np.asarray(value)


@pytest.mark.long
def test_every_operator_case_of_onnx_is_right_or_refused() -> None:
    """All of onnx's cases, not only recurrent ones: what is run at all is run right.

    The newest opset adds types to QuantizeLinear and its inverse: they are read as of opset 25.
    """
    right = 0
    refused = set()
    for case in collect_testcases(None):
        kinds = {node.op_type for node in case.model.graph.node}
        for domain in (
            case.model.opset_import if any("quantize" in k.lower() for k in kinds) else ()
        ):
            domain.version = min(domain.version, 25)
        for inputs, outputs in case.data_sets or ():
            try:
                got = backend.prepare(case.model).run(inputs)
            except OnernnError as error:
                if kinds & {*AROUND_LAYERS}:
                    name = next(name for name in REFUSED if re.search(name, case.name))
                    assert re.search(REFUSED[name], str(error)), case.name
                    refused.add(name)
                continue
            for mine, theirs in zip(got, map(_array, outputs), strict=True):
                if theirs.dtype.name == "bfloat16":  # ours are float32, rounded at casts only
                    np.testing.assert_allclose(mine, theirs.astype("f4"), 2e-2, err_msg=case.name)
                    continue
                assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, case.name
                if theirs.dtype.kind != "f":
                    np.testing.assert_array_equal(mine, theirs, case.name)
                    continue
                # The cases' own tolerances; halves are rounded after every operator.
                rtol, atol = (1e-2, 1e-3) if theirs.dtype == np.float16 else (1e-3, 1e-7)
                if kinds & {"DFT", "STFT"}:  # a zero among sums is as exact as the largest of them
                    atol = 2**-24 * np.abs(theirs).max()
                np.testing.assert_allclose(mine, theirs, rtol, atol, err_msg=case.name)
            right += 1
    assert refused == {*REFUSED}
    assert right >= 990
