"""What is said of a model that is written as C++: steps, sizes, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.emitting import assert_computes, build
from support.graphs import constants, graph, new_node, reference, rnn_node, small

from onernn import Cell, Graph, RnnSpec, ShapeError, UnsupportedError
from onernn.engine.emit import write_cpp
from onernn.engine.emit.pipeline import read_declared, read_static
from onernn.ir.graph import Node, Value


def test_a_model_that_looks_at_all_words_has_no_step(tmp_path: Path) -> None:
    write_cpp(padded_graph("Softmax", {"axis": 0}), tmp_path, name="m")
    assert "// No step(): node 'z' (Softmax) reads all steps." in (tmp_path / "m.hpp").read_text()


def test_a_step_goes_on_where_sizes_are_fixed(tmp_path: Path) -> None:
    made = padded_graph("Tanh", {}, layers=2)
    x = uniform(5, 2, 4)
    want = reference(made, {"x": x})
    emitted = build({"fixed": made}, tmp_path, static={"T": 5, "N": 2})["fixed"]
    for mode in ("infer", "step"):
        assert_computes(emitted, {"x": x}, want, mode)
    header = (tmp_path / "fixed.hpp").read_text()
    assert "// Fixed: T = 5, N = 2." in header and "struct Sizes" not in header


def padded_graph(op: str, attributes: dict[str, Any], *rest: str, **more: Any) -> Graph:
    """Z = op(GRU(x), rest...), x (T, N, 4)."""
    spec = RnnSpec(Cell.GRU, 4, 4, **more)
    rnn = rnn_node("y = Rnn x", spec)
    last = Node(op, ("y", *rest), ("z",), attributes)
    return small((rnn, last), {"x": (None, None, 4)}, "z")


@pytest.mark.parametrize(
    "made, reason",
    [
        (padded_graph("Unsupported", {"reason": "hyperbolic"}), "node 'z' .*hyperbolic"),
        (padded_graph("Foreign", {}), "node 'z' .Foreign.: operator Foreign is not generated"),
        (padded_graph("TopK", {}, "x"), "node 'z' .TopK.: k 'x' is computed at run time"),
        (padded_graph("Cast", {"to": "uint32"}), "node 'z' .*got uint32"),
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
    with pytest.raises(UnsupportedError, match=r"x: .*pass --input 'x=float32\(T, N, 128\)', for"):
        write_cpp(untold, tmp_path)
    write_cpp(untold, tmp_path, declared=read_declared(["x=float32(T, 2, 4)"]))
    with pytest.raises(UnsupportedError, match="y: no such input; there are x"):
        write_cpp(untold, tmp_path, declared=read_declared(["y=float32(T, 2, 4)"]))
    for wrong in ("x", "x=float(3)", "x=float32(3", "x=float32(a b)"):
        with pytest.raises(ShapeError, match="--input"):
            read_declared([wrong])


def test_static_sizes_are_those_that_the_model_has(tmp_path: Path) -> None:
    with pytest.raises(
        ShapeError, match="--static Q: expected an open size of the model, one of T, N"
    ):
        write_cpp(padded_graph("Tanh", {}), tmp_path, static={"Q": 3})
    for wrong in ("T", "T=x", "T=-1", "=3"):
        with pytest.raises(ShapeError, match="expected NAME=NUMBER"):
            read_static(wrong)
    assert read_static("T=25,N=1") == {"T": 25, "N": 1} and read_static("") == {}


def test_a_half_that_would_overflow_is_refused(tmp_path: Path) -> None:
    numbers = constants()
    made = graph([new_node("z = MatMul x w")], ["z"], w=np.float32(1e6) * numbers["w"])
    with pytest.raises(UnsupportedError, match="up to 65504, got .*; use bf16"):
        write_cpp(made, tmp_path, weights="f16")
