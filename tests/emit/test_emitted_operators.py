"""The operators around recurrent layers: many nodes in one model, ONNX Runtime as the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from support.checking import assert_close
from support.emitting import build
from support.graphs import constants, graph, projected_gru
from support.layers import random_weights
from support.onnx_models import model, read, theirs

from onernn import Cell, Graph, RnnSpec, Session, ShapeError, UnsupportedError
from onernn.engine.emit import write_cpp
from onernn.engine.emit.pipeline import read_declared, read_static
from onernn.engine.program import namespace
from onernn.ir.graph import Node, Value

QUICK = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
T, N, WIDTH = 4, 3, 6
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (T, N, WIDTH)).astype(np.float32)
TABLES: dict[str, np.ndarray] = {
    "w": RNG.uniform(-1, 1, (WIDTH, 5)).astype(np.float32),
    "wide": RNG.uniform(-1, 1, (70, WIDTH)).astype(np.float32),
    "row": RNG.uniform(-1, 1, WIDTH).astype(np.float32),
    "b": RNG.uniform(-1, 1, 70).astype(np.float32),
    "table": RNG.uniform(-1, 1, (9, WIDTH)).astype(np.float32),
    "picked": np.array([2, -1, 0, 2], np.int64),
    "to_rows": np.array([-1, WIDTH], np.int64),
    "back": np.array([0, -1, 2, 3], np.int64),
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "last": np.array([-1], np.int64),
    "four": np.array([4], np.int64),
    "halves": np.array([2, 4], np.int64),
    "low": np.array(-0.5, np.float32),
    "high": np.array(0.75, np.float32),
    "scale": RNG.uniform(0.5, 1.5, WIDTH).astype(np.float32),
    "stretched": np.array([2, 1, WIDTH], np.int64),
}


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


NODES = [
    node("MatMul", "x w", "product"),
    node("Reshape", "x to_rows", "rows"),
    node("Gemm", "rows wide b", "gemm", transB=1, alpha=0.5, beta=2.0),
    node("Gemm", "rows rows", "grown", transA=1, alpha=0.25),
    node("Transpose", "x", "turned", perm=[1, 2, 0]),
    node("MatMul", "turned x_major", "batched"),
    node("Transpose", "x", "x_major", perm=[1, 0, 2]),
    node("Add", "x row", "added"),
    node("Mul", "x row", "times"),
    node("Sub", "row x", "less"),
    node("Div", "x scale", "divided"),
    node("Max", "x row", "larger"),
    node("Min", "x row", "smaller"),
    node("Clip", "x low high", "clipped"),
    helper.make_node("Clip", ["x", "low", ""], ["raised"]),
    node("Softmax", "x", "soft", axis=-1),
    node("Softmax", "x", "soft_time", axis=0),
    node("LogSoftmax", "x", "logs", axis=1),
    node("ArgMax", "x", "best", axis=2, keepdims=0),
    node("ArgMin", "x", "worst", axis=0),
    node("ReduceMean", "x", "mean", axes=[0, 1], keepdims=0),
    node("ReduceMax", "x", "top", axes=[2]),
    node("ReduceSum", "x last", "total", keepdims=0),
    node("Gather", "table picked", "taken", axis=0),
    node("Gather", "x picked_columns", "columns", axis=2),
    node("Abs", "picked", "picked_columns"),
    node("Concat", "x added times", "joined", axis=2),
    node("Concat", "x added", "longer", axis=0),
    node("Slice", "x one four two one", "cut"),
    node("Slice", "x last zero two last", "backwards"),
    node("Split", "x halves", "left right", axis=2),
    node("Unsqueeze", "x one", "deeper"),
    node("Squeeze", "deeper one", "flat_again"),
    node("Flatten", "x", "flattened", axis=1),
    node("Greater", "x row", "above"),
    node("Where", "above x row", "chosen"),
    node("Cast", "x", "whole", to=7),
    node("Cast", "above", "number", to=1),
    node("LeakyRelu", "x", "leaky", alpha=0.2),
    node("Elu", "x", "elu"),
    node("HardSigmoid", "x", "hard"),
    node("Softplus", "x", "plus"),
    node("Softsign", "x", "sign"),
    node("Sigmoid", "x", "sigmoid"),
    node("Tanh", "x", "tanh"),
    node("Relu", "x", "relu"),
    node("Exp", "x", "exp"),
    node("Erf", "x", "erf"),
    node("LayerNormalization", "x scale row", "normed"),
    node("Expand", "row stretched", "expanded"),
    node("Shape", "x", "sizes"),
    node("ConstantOfShape", "sizes", "zeros"),
    node("Gather", "sizes zero", "time"),
    node("Cast", "time", "time_number", to=1),
]


def ordered(nodes: list[Any], known: set[str]) -> list[Any]:
    """In an order in which they can run."""
    left, out = list(nodes), []
    while left:
        ready = next(n for n in left if set(n.input) <= known)
        left.remove(ready)
        out.append(ready)
        known |= set(ready.output)
    return out


def test_every_operator_is_right_with_sizes_at_run_time_and_with_fixed_ones(
    tmp_path: Path,
) -> None:
    nodes = ordered(NODES, {"x", "", *TABLES})
    names = [name for each in nodes for name in each.output]
    proto = model(nodes, {"x": X}, names, constants=TABLES)
    want = dict(zip(names, theirs(proto, {"x": X}), strict=True))
    declared = read_declared([f"x=float32(T, N, {WIDTH})"])
    for static in ({}, {"T": T, "N": N}):
        folder = tmp_path / str(len(static))
        emitted = build({"many": read(proto)}, folder, QUICK, declared=declared, static=static)
        status, got = emitted["many"].run({"x": X}, want)
        assert status == 0, got
        for name, expected in want.items():
            if expected.dtype.kind == "f":
                assert_close(got[name], expected.reshape(-1))
            else:
                assert got[name].tolist() == expected.reshape(-1).tolist(), name


def test_a_model_that_looks_at_all_words_has_no_step(tmp_path: Path) -> None:
    write_cpp(padded_graph("Softmax", {"axis": 0}), tmp_path, name="m")
    assert (
        "// No step(): node 'z' (Softmax) looks at all steps." in (tmp_path / "m.hpp").read_text()
    )
    write_cpp(padded_graph("Softmax", {"axis": 2}), tmp_path, name="m")
    assert "Status step(" in (tmp_path / "m.hpp").read_text()
    backwards = padded_graph("Tanh", {}, direction="right2left")
    write_cpp(backwards, tmp_path, name="m")
    assert "// No step(): node 'y' (Rnn) looks at all steps." in (tmp_path / "m.hpp").read_text()


def test_a_step_goes_on_where_sizes_are_fixed(tmp_path: Path) -> None:
    made = padded_graph("Tanh", {}, layers=2)
    x = RNG.uniform(-1, 1, (5, 2, 4)).astype(np.float32)
    want = Session(made, backend="reference").run({"x": x})
    emitted = build({"fixed": made}, tmp_path, QUICK, static={"T": 5, "N": 2})["fixed"]
    for mode in ("infer", "step"):
        status, got = emitted.run({"x": x}, want, mode)
        assert status == 0, got
        assert_close(got["z"], want["z"].reshape(-1))
    header = (tmp_path / "fixed.hpp").read_text()
    assert "// Fixed: T = 5, N = 2." in header and "struct Sizes" not in header


def padded_graph(op: str, attributes: dict[str, Any], *rest: str, **more: Any) -> Graph:
    """Z = op(GRU(x), rest...), x (T, N, 4)."""
    spec = RnnSpec(Cell.GRU, 4, 4, **more)
    rnn = Node("Rnn", ("x",), ("y",), {"spec": spec, "weights": random_weights(spec, 0)})
    last = Node(op, ("y", *rest), ("z",), attributes)
    x = Value("x", "float32", (None, None, 4))
    return Graph("small", (x,), (Value("z"),), (rnn, last), {})


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (padded_graph("Unsupported", {"reason": "hyperbolic"}), "node 'z' .*hyperbolic"),
        (padded_graph("Foreign", {}), "node 'z' .Foreign.: operator Foreign is not generated"),
        (padded_graph("TopK", {}, "x"), "node 'z' .TopK.: k 'x' is computed at run time"),
        (padded_graph("Cast", {"to": "int16"}), "node 'z' .*is of int16"),
    ],
    ids=["reason", "operator", "attribute", "type"],
)
def test_what_cannot_be_generated_is_refused_by_name(
    made: Graph, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        write_cpp(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_without_a_type_are_refused_with_what_to_say(tmp_path: Path) -> None:
    made = padded_graph("Tanh", {})
    untold = Graph("m", (Value("x"),), made.outputs, made.nodes, {})
    with pytest.raises(UnsupportedError, match=r"x: .*say --input 'x=float32\(T, N, 128\)', for"):
        write_cpp(untold, tmp_path)
    write_cpp(untold, tmp_path, declared=read_declared(["x=float32(T, 2, 4)"]))
    with pytest.raises(ShapeError, match=r"--input \['y'\]: the model takes \['x'\]"):
        write_cpp(untold, tmp_path, declared=read_declared(["y=float32(T, 2, 4)"]))
    for wrong in ("x", "x=float(3)", "x=float32(3", "x=float32(a b)"):
        with pytest.raises(ShapeError, match="--input"):
            read_declared([wrong])


def test_static_sizes_are_those_that_the_model_has(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="--static Q: the model has T, N"):
        write_cpp(padded_graph("Tanh", {}), tmp_path, static={"Q": 3})
    for wrong in ("T", "T=x", "T=-1", "=3"):
        with pytest.raises(ShapeError, match="expected NAME=NUMBER"):
            read_static(wrong)
    assert read_static("T=25,N=1") == {"T": 25, "N": 1} and read_static("") == {}


def test_a_half_that_would_overflow_is_refused(tmp_path: Path) -> None:
    numbers = constants()
    made = graph([Node("MatMul", ("x", "w"), ("z",))], ["z"], w=np.float32(1e6) * numbers["w"])
    with pytest.raises(UnsupportedError, match="beyond 65504; use bf16"):
        write_cpp(made, tmp_path, weights="f16")
    with pytest.raises(UnsupportedError, match="expected one of f32, f16, bf16"):
        write_cpp(made, tmp_path, weights="u8")


def test_names_are_those_of_c() -> None:
    assert namespace("My model-1.2") == "my_model_1_2" and namespace("2x") == "model_2x"
    assert namespace("class") == "model_class" and namespace("") == namespace("--") == "model"
    made = projected_gru("y", "x")
    with pytest.raises(ShapeError, match="expected a C.. name"):
        write_cpp(graph(made, ["y"]), "unused", name="a b")
