"""A file is written only if it is a model: loops whose states grow, and what no rule foresaw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.graphs import new_node
from support.onnx_models import model, read, theirs

import onernn
from onernn import Graph, UnsupportedError
from onernn.adapters.onnx.write import check_written, to_onnx
from onernn.adapters.paddle.writer import RULES
from onernn.ir.graph import Node, Value
from onernn.ir.types import Type, dense

HIDDEN, FLOAT = 4, TensorProto.FLOAT
node, info = helper.make_node, helper.make_tensor_value_info
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (5, 2, 3)).astype("f4")
CONSTANTS = {
    "W": RNG.uniform(-0.4, 0.4, (1, 16, 3)).astype("f4"),
    "R": RNG.uniform(-0.4, 0.4, (1, 16, HIDDEN)).astype("f4"),
    "first": np.array(0),
    "axis": np.array([0]),
    "on": np.array(True),
}
EMPTY = {
    "steps": np.zeros((0, 2, HIDDEN), "f4"),
    "rows": np.zeros((0, HIDDEN), "f4"),
    "columns": np.zeros((2, 0), "f4"),
}


def collecting(how: str, *, fed: bool, inner: bool) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A loop over an LSTM's steps that collects h itself, as a scripted one with torch.cat does.

    ``fed``: what it begins with is an input, of open sizes; ``inner``: it stands in a branch.
    """
    nodes = [
        node("Gather", ["x", "turn"], ["xt"], axis=0),
        *(node("Unsqueeze", [name, "axis"], [f"{name}1"]) for name in ("xt", "h", "c")),
        node("LSTM", ["xt1", "W", "R", "", "", "h1", "c1"], ["", "h2", "c2"], hidden_size=HIDDEN),
        *(node("Squeeze", [f"{name}2", "axis"], [f"{name}_"]) for name in ("h", "c")),
        node("Identity", ["going"], ["going_"]),
    ]
    all_in = info("all", FLOAT, None)
    all_out = info("all_", FLOAT, None)
    if how == "sequence":
        nodes.append(node("SequenceInsert", ["all", "h_"], ["all_"]))
        all_in, all_out = (
            helper.make_tensor_sequence_value_info(name, FLOAT, None) for name in ("all", "all_")
        )
    elif how == "steps":
        nodes.append(node("Unsqueeze", ["h_", "axis"], ["h3"]))
        nodes.append(node("Concat", ["all", "h3"], ["all_"], axis=0))
    else:
        nodes.append(node("Concat", ["all", "h_"], ["all_"], axis=1 if how == "columns" else 0))
    states = [info(name, FLOAT, None) for name in ("h", "c")]
    given = [info("turn", TensorProto.INT64, []), info("going", TensorProto.BOOL, [])]
    made = [info("going_", TensorProto.BOOL, []), *(info(f"{n}_", FLOAT, None) for n in "hc")]
    body = helper.make_graph(nodes, "body", [*given, *states, all_in], [*made, all_out])
    feed: dict[str, Any] = {"x": X, **dict.fromkeys(("h0", "c0"), np.zeros((2, HIDDEN), "f4"))}
    constants = dict(CONSTANTS)
    outer = [node("Shape", ["x"], ["sizes"]), node("Gather", ["sizes", "first"], ["T"], axis=0)]
    if how == "sequence":
        outer.append(node("SequenceEmpty", [], ["all0"], dtype=FLOAT))
    elif fed:
        feed["all0"] = np.ones((3, 2, HIDDEN) if how == "steps" else EMPTY[how].shape, "f4")
    else:
        constants["all0"] = EMPTY[how]
    outer.append(node("Loop", ["T", "on", "h0", "c0", "all0"], ["hn", "cn", "y"], body=body))
    rank = 3 if how in ("steps", "sequence") else 2
    if how == "sequence":
        outer[-1].output[2] = "parts"
        outer.append(node("ConcatFromSequence", ["parts"], ["y"], axis=0, new_axis=1))
    results = {"y": info("y", FLOAT, [None] * rank), "hn": info("hn", FLOAT, [None, None])}
    if inner:
        branch = helper.make_graph(outer, "branch", [], list(results.values()))
        other = [node("Neg", ["x0"], ["y_"]), node("Neg", ["h0"], ["hn_"])]
        shapes = [info("y_", FLOAT, [None] * rank), info("hn_", FLOAT, [None, None])]
        constants["x0"] = np.ones((1,) * rank, "f4")
        outer = [
            node(
                "If", ["on"], ["y", "hn"], then_branch=branch,
                else_branch=helper.make_graph(other, "other", [], shapes),
            )
        ]  # fmt: skip
    built = model(outer, feed, list(results), constants=constants)
    for value in built.graph.input:
        if value.name in ("all0", "x"):
            value.type.tensor_type.shape.dim[0].dim_param = f"{value.name}_rows"
    for value in built.graph.output:
        value.CopyFrom(results[value.name])
    return built, feed


@pytest.mark.parametrize("inner", [False, True], ids=["", "in a branch"])
@pytest.mark.parametrize(
    "how, fed",
    [("sequence", False), *((how, fed) for how in EMPTY for fed in (False, True))],
)
def test_a_loop_that_collects_its_steps_runs_in_onnx_runtime(
    how: str, fed: bool, inner: bool, tmp_path: Path
) -> None:
    built, feed = collecting(how, fed=fed, inner=inner)
    want, path = theirs(built, feed), tmp_path / "m.onnx"
    onernn.convert(read(built), path)
    onnx.checker.check_model(str(path), full_check=True)
    for length in (len(X), 2):
        given = {**feed, "x": X[:length]}
        got = onnxruntime.InferenceSession(path).run(None, given)
        for mine, expected in zip(got, theirs(built, given), strict=True):
            np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-6)
    assert want


def graph(*nodes: Node, **constants: Any) -> Graph:
    inputs = (Value("x", "float32", (None, 4)),)
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    return Graph("test", inputs, (Value("y"),), nodes, arrays)


MIXED = graph(new_node("Where", "c x x", "y"), c=np.arange(4))
"""NumPy takes integers for truth values, ONNX does not."""


def test_what_onnxs_checker_refuses_is_no_file_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for old in (None, b"an older model"):
        if old is not None:
            path.write_bytes(old)
        with pytest.raises(UnsupportedError, match="m.onnx is not written, onnx's checker says: "):
            onernn.convert(MIXED, path)
        assert [each.read_bytes() for each in tmp_path.iterdir()] == [old] * (old is not None)


def test_without_the_onnx_package_ours_checks_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    relu = graph(new_node("Relu", "x", "y"))
    onernn.convert(relu, tmp_path / "m.onnx", note=told.append)
    assert not told
    with monkeypatch.context() as patched:
        patched.setattr(onnx.defs, "onnx_opset_version", lambda: 17)
        onernn.convert(relu, tmp_path / "m.onnx", note=told.append)
    assert "checked by onernn alone" in told[0] and "is older" in told.pop()
    monkeypatch.setitem(sys.modules, "onnx", None)
    onernn.convert(relu, tmp_path / "m.onnx", note=told.append)
    assert "checked by onernn alone" in told[0] and "pip install onnx" in told[0]
    x = np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4)
    (y,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_ours_finds_wrong_types_shapes_and_operators_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    turned = graph(new_node("Transpose", "x", "y", perm=(1, 0)))
    written = to_onnx(turned)

    def check(want: Type) -> None:
        check_written(written, Path("m.onnx"), [want], lambda _: None)

    check(turned.types["y"])
    for dtype, shape in (("float32", (2, 4)), ("float64", (4, 2)), ("float32", (4, 2, 1))):
        with pytest.raises(UnsupportedError, match="m.onnx is not written, it would be wrong: 'y'"):
            check(dense(dtype, shape))
    for op, told in (("Nonsense", "not known"), ("Gemm", "input 1 is missing")):
        written.graph.node[0].op_type = op
        with pytest.raises(UnsupportedError, match=f"m.onnx is not written(.|\n)*{told}"):
            check(turned.types["y"])


def test_a_paddle_program_that_ours_finds_wrong_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a rule writes: here, another shape."""
    relu = graph(new_node("Relu", "x", "y"))
    onernn.convert(relu, tmp_path / "m.pdmodel")
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    assert {each.suffix for each in before} == {".pdmodel", ".pdiparams"}

    def wrong(w: Any, node: Node, inputs: list[str]) -> None:
        w.give(node, w.emit("reduce_sum", {"X": inputs[0]}))

    monkeypatch.setitem(RULES, "Relu", wrong)
    with pytest.raises(UnsupportedError, match="cannot be written: node 'y'.* Paddle gives"):
        onernn.convert(relu, tmp_path / "m.pdmodel")
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
