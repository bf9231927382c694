"""Random RNN, GRU and LSTM models against the float64 oracle and ONNX Runtime.

ONERNN_RANDOM_MODELS tells how many; 1000 take ten seconds.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import onnx
import pytest
from support.checking import assert_close
from support.onnx_models import read, session_of
from support.onnx_rnn import KNOWN, Case, random_case, run_oracle
from support.onnx_written import run, written

from onernn import Session, fuse

MODELS = int(os.environ.get("ONERNN_RANDOM_MODELS", "120"))


def tolerance(case: Case) -> float:
    """A few roundings a step, in the dtype that the case asks for."""
    return 1e-12 if case.arrays["X"].dtype == np.float64 else 1e-5


def by_onnx_runtime(case: Case) -> list[np.ndarray] | None:
    """None where it refuses: layout=1, clip=0, float64, no hidden_size, RELU for Relu."""
    if case.attributes.get("clip") == 0:  # its RNN takes that for clipping everything to zero
        return None
    try:
        return session_of(case.model()).run(None, case.feed())
    except Exception as error:
        refused = case.batch_major or "hidden_size" not in case.attributes
        refused |= case.arrays["X"].dtype == np.float64
        refused |= not set(case.attributes.get("activations", ())) <= set(KNOWN)
        assert refused, error
        return None


def test_random_models_are_right() -> None:
    seen: Counter[str] = Counter()
    for seed in range(MODELS):
        case = random_case(seed)
        want = run_oracle(case)
        session = Session(read(case.model()))
        got = session.run(case.feed())
        assert list(got) == case.outputs
        for name, array in got.items():
            assert array.dtype == case.arrays["X"].dtype
            rtol = tolerance(case)
            assert_close(array, want[name], rtol, rtol / 10)
        theirs = by_onnx_runtime(case)
        for name, array in zip(case.outputs, theirs or (), strict=False):
            assert_close(array, want[name])  # the oracle means what ONNX Runtime does
        seen["onnxruntime" if theirs else "oracle"] += 1
    assert min(seen["onnxruntime"], seen["oracle"]) >= MODELS // 4


def test_random_models_survive_being_read_and_written() -> None:
    """layout=1, clip=0, float64 and input_forget too, in forms that ONNX Runtime runs."""
    tried = 0
    for seed in range(MODELS // 3):
        case = random_case(seed)
        want = run_oracle(case)
        if max(np.abs(want[name]).max() for name in case.outputs) > 50:
            continue  # unbounded functions: where gates explode, so do roundings
        got = run(written(fuse(read(case.model())).model), case.feed())
        for name in case.outputs:
            assert got[name].dtype == case.arrays["X"].dtype
            rtol = 1e-9 if got[name].dtype == np.float64 else 2e-5
            assert_close(got[name], want[name], rtol, rtol / 10)
        tried += 1
    assert tried > MODELS // 4


@pytest.mark.parametrize("seed", range(40))
def test_types_and_shapes_are_those_that_onnx_infers(seed: int) -> None:
    case = random_case(seed)
    model = case.model()
    graph = read(model)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    for value, info in zip(graph.outputs, inferred.output, strict=True):
        tensor = info.type.tensor_type
        sizes = tuple(dim.dim_value for dim in tensor.shape.dim)
        assert value.dtype == onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        # Without hidden_size onnx leaves a size open that W tells.
        assert len(value.shape) == len(sizes)
        assert all(theirs in (0, mine) for mine, theirs in zip(value.shape, sizes, strict=True))
        assert "hidden_size" not in case.attributes or value.shape == sizes
