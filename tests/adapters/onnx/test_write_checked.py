"""A file is written only if it is a model: loops whose states grow, and what no rule foresaw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.graphs import new_node
from support.onnx_models import parsed, read, theirs
from support.onnx_written import graph_over

import onernn
from onernn import UnsupportedError
from onernn.adapters.onnx.write import check_written, to_onnx
from onernn.adapters.paddle.writer import RULES, Rule
from onernn.ir.graph import Value
from onernn.ir.types import Type, dense

HIDDEN = 4
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
    join = {
        "sequence": "all_ = SequenceInsert (all, h_)",
        "steps": "h3 = Unsqueeze (h_, axis) all_ = Concat <axis = 0> (all, h3)",
        "rows": "all_ = Concat <axis = 0> (all, h_)",
        "columns": "all_ = Concat <axis = 1> (all, h_)",
    }[how]
    sequence, rank = how == "sequence", 3 if how in ("steps", "sequence") else 2
    kind, sizes = "seq(float[])" if sequence else "float[]", ", ".join("?" * rank)
    loop = f"""
        {"all0 = SequenceEmpty <dtype = 1> ()" if sequence else ""}
        sizes = Shape (x)
        T = Gather <axis = 0> (sizes, first)
        hn, cn, {"parts" if sequence else "y"} = Loop (T, on, h0, c0, all0) <body = body
            (int64 turn, bool going, float[] h, float[] c, {kind} all)
            => (bool going_, float[] h_, float[] c_, {kind} all_) {{
            xt = Gather <axis = 0> (x, turn)
            xt1 = Unsqueeze (xt, axis)
            h1 = Unsqueeze (h, axis)
            c1 = Unsqueeze (c, axis)
            Y, h2, c2 = LSTM <hidden_size = {HIDDEN}> (xt1, W, R, , , h1, c1)
            h_ = Squeeze (h2, axis)
            c_ = Squeeze (c2, axis)
            going_ = Identity (going)
            {join}
        }}>
        {"y = ConcatFromSequence <axis = 0, new_axis = 1> (parts)" if sequence else ""}
        """
    feed: dict[str, Any] = {"x": X, **dict.fromkeys(("h0", "c0"), np.zeros((2, HIDDEN), "f4"))}
    constants = {**CONSTANTS, "x0": np.ones((1,) * rank, "f4")}
    if fed:
        feed["all0"] = np.ones((3, 2, HIDDEN) if how == "steps" else EMPTY[how].shape, "f4")
    elif not sequence:
        constants["all0"] = EMPTY[how]
    results = f"float[{sizes}] y, float[?, ?] hn"
    if inner:
        other = results.replace(" y,", " y_,").replace(" hn", " hn_")
        loop = f"""y, hn = If (on) <then_branch = branch () => ({results}) {{ {loop} }},
            else_branch = other () => ({other}) {{ y_ = Neg (x0) hn_ = Neg (h0) }}>"""
    given = ", ".join(
        f"float[{', '.join(map(str, array.shape))}] {name}" for name, array in feed.items()
    )
    built = parsed(f"({given}) => ({results}) {{ {loop} }}", constants)
    for value in built.graph.input:
        if value.name in ("all0", "x"):
            value.type.tensor_type.shape.dim[0].dim_param = f"{value.name}_rows"
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


INPUT = Value("x", "float32", (None, 4))
MIXED = graph_over(INPUT, new_node("y = Where c x x"), c=np.arange(4))
"""NumPy takes integers for truth values, ONNX does not."""


def test_what_onnxs_checker_refuses_is_no_file_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for old in (None, b"an older model"):
        if old is not None:
            path.write_bytes(old)
        with pytest.raises(UnsupportedError, match="m.onnx .*checker"):
            onernn.convert(MIXED, path)
        assert [each.read_bytes() for each in tmp_path.iterdir()] == [old] * (old is not None)


def test_without_the_onnx_package_ours_checks_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    relu = graph_over(INPUT, new_node("y = Relu x"))
    onernn.convert(relu, tmp_path / "m.onnx", note=told.append)
    assert not told
    with monkeypatch.context() as patched:
        patched.setattr(onnx.defs, "onnx_opset_version", lambda: 8)
        onernn.convert(relu, tmp_path / "m.onnx", note=told.append)
    assert "only onernn checked" in told[0] and "is older" in told.pop()
    monkeypatch.setitem(sys.modules, "onnx", None)
    onernn.convert(relu, tmp_path / "m.onnx", note=told.append)
    assert "only onernn checked" in told[0] and "pip install onnx" in told[0]
    x = np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4)
    (y,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_ours_finds_wrong_types_shapes_and_operators_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    turned = graph_over(INPUT, new_node("y = Transpose x", perm=(1, 0)))
    written = to_onnx(turned)

    def check(want: Type) -> None:
        check_written(written, Path("m.onnx"), [want], lambda _: None)

    check(turned.types["y"])
    for dtype, shape in (("float32", (2, 4)), ("float64", (4, 2)), ("float32", (4, 2, 1))):
        with pytest.raises(UnsupportedError, match="m.onnx .*'y'"):
            check(dense(dtype, shape))
    for op, told in (("Nonsense", "not known"), ("Gemm", "input 1 is missing")):
        written.graph.node[0].op_type = op
        with pytest.raises(UnsupportedError, match=f"m.onnx(.|\n)*{told}"):
            check(turned.types["y"])


def test_a_paddle_program_that_ours_finds_wrong_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a rule writes: here, another shape."""
    relu = graph_over(INPUT, new_node("y = Relu x"))
    onernn.convert(relu, tmp_path / "m.pdmodel")
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    assert {each.suffix for each in before} == {".pdmodel", ".pdiparams"}

    monkeypatch.setitem(RULES, "Relu", Rule(lambda x: x.reduce_sum()))
    with pytest.raises(UnsupportedError, match="cannot be written:(.|\n)*node 'y'.* from Paddle"):
        onernn.convert(relu, tmp_path / "m.pdmodel")
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
