"""What a model does not tell of its inputs and a writer has to know: inferred, never tried out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.counting import calls_of
from support.graphs import new_node
from support.onnx_written import assert_same, graph_over

import onernn
from onernn import UnsupportedError
from onernn.adapters.common.writing import declare
from onernn.ir.graph import Node, Value
from onernn.verification.recording import read_arrays, read_inputs, read_outputs

DATA = Path(__file__).parents[1] / "data" / "mxnet"
X = Value("x")


@pytest.mark.parametrize(
    "name",
    "gluon_bidirectional_ntc gluon_foreach gluon_language_model gluon_unrolled_stack"
    " legacy_unfused".split(),
)
def test_an_mxnet_model_that_tells_no_ranks_is_written_without_a_recording(
    name: str, tmp_path: Path
) -> None:
    model, arrays = onernn.load(DATA / name), read_arrays(DATA / name / "io.npz")
    assert any(value.shape is None for value in model.inputs)
    onernn.convert(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    feed = read_inputs(arrays, model.inputs)
    written = {each.name: each for each in session.get_inputs()}
    for name, value in feed.items():
        assert len(written[name].shape) == np.ndim(value)
    got = dict(zip((v.name for v in session.get_outputs()), session.run(None, feed), strict=True))
    for name, want in read_outputs(arrays, model.outputs).items():
        assert_same(got[name], want)


def test_a_recording_tells_rank_and_dtype() -> None:
    relu = graph_over(X, new_node("y = Relu x"))
    (x,) = declare(relu, {"x": np.zeros((2, 3), np.float64)}).inputs
    assert x == Value("x", "float64", (None, None))
    told = graph_over(Value("x", "float32", (None, 3)), *relu.nodes)
    assert declare(told, {"x": np.zeros((2, 3))}).inputs == told.inputs


def test_the_rank_is_one_with_which_every_type_is_known() -> None:
    gemm = graph_over(X, new_node("y = Gemm x w"), w=np.zeros((4, 5), np.float32))
    assert declare(gemm).inputs == (Value("x", "float32", (None, None)),)
    taken = graph_over(
        X,
        new_node("m = Gemm x w"),
        new_node("n = MatMul x v"),
        new_node("y = Add m n"),
        w=np.zeros((4, 5), np.float32),
        v=np.zeros((3, 5), np.float32),
    )
    with pytest.raises(
        UnsupportedError, match="of node .m. .Gemm. for float32.*; pass inputs or a recording"
    ):
        declare(taken)  # x has 4 columns, and 3


def test_of_ranks_that_differ_in_axes_that_are_merged_the_smallest_is_taken() -> None:
    """As MXNet's FullyConnected flattens all axes but the first."""
    flat = graph_over(
        X,
        new_node("f = Reshape x shape"),
        new_node("y = Gemm f w"),
        shape=np.array([0, -1]),
        w=np.zeros((4, 5), np.float32),
    )
    assert declare(flat).inputs == (Value("x", "float32", (None, None)),)


def test_many_inputs_without_ranks_are_refused_at_once() -> None:
    names = [f"x{n}" for n in range(12)]
    graph = graph_over([*map(Value, names)], Node("Sum", tuple(names), ("y",)))

    def refused() -> None:
        with pytest.raises(
            UnsupportedError,
            match="x0, x1",
        ):
            declare(graph)

    assert calls_of(refused) < 100_000  # four inputs, which are tried, take as many


@pytest.mark.parametrize("size", [2**32 - 1, 2**62])
def test_a_size_that_fills_the_memory_is_only_a_number(size: int) -> None:
    wide = graph_over(Value("x", "float32", (size, None)), new_node("y = Relu x"))
    assert declare(wide).types["y"].counts == (size, None)
