"""Models that feed each other as one: the numbers of the models one after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.arrays import uniform
from support.emitting import assert_computes, build
from support.graphs import new_node, small_graph, unfused
from support.layers import random_layer
from typer.testing import CliRunner

import onernn
from onernn import Cell, Graph, RnnSpec, Session, ShapeError, UnsupportedError, Value, join
from onernn.cli import app
from onernn.engine.chunks import expose

WIDE, UNITS, T = 6, 4, 13
numbers = partial(uniform, bound=0.5)
GRU = random_layer(RnnSpec(Cell.LBR_GRU, UNITS * WIDE, UNITS), 3)
ENCODER = Graph(  # a causal window, and a layer
    "folder/enc.onnx",
    (Value("feat", "float32", (1, 1, None, WIDE)),),
    (Value("e"), Value("emb"), Value("level")),
    (
        new_node("inner = Pad feat front"),
        new_node("e = Conv inner k", kernel_shape=(3, 1)),
        new_node("t = Transpose e", perm=(2, 0, 1, 3)),
        new_node("x = Reshape t flat"),
        new_node("emb = Rnn x", **GRU),
        new_node("level = ReduceMean emb last", keepdims=1),
    ),
    {
        "front": np.array([0, 0, 2, 0, 0, 0, 0, 0]),
        "k": numbers(UNITS, 1, 3, 1),
        "flat": np.array([0, 1, UNITS * WIDE]),
        "last": np.array([2]),
    },
)
DECODER = Graph(  # its steps have other names; a transposed convolution over the other axis
    "folder/dec.onnx",
    (
        Value("emb", "float32", (None, 1, UNITS)),
        Value("e", "float32", (1, UNITS, None, WIDE)),
        Value("gain", "float32", (1, 1, None, 1)),
    ),
    (Value("m"),),
    (
        new_node("inner = Transpose emb", perm=(1, 2, 0)),
        new_node("column = Unsqueeze inner last"),
        new_node("sum = Add e column"),
        new_node("wide = ConvTranspose sum up", kernel_shape=(1, 3), strides=(1, 2)),
        new_node("m = Mul wide gain"),
    ),
    {"last": np.array([3]), "up": numbers(UNITS, 1, 1, 3)},
)
FEED = {"feat": numbers(1, 1, T, WIDE), "gain": numbers(1, 1, T, 1)}


def one_by_one(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    first = unfused(ENCODER, {"feat": feed["feat"]})
    given = {"emb": first["emb"], "e": first["e"], "gain": feed["gain"]}
    return {"level": first["level"], **unfused(DECODER, given)}


@pytest.mark.parametrize("models", [(ENCODER, DECODER), (DECODER, ENCODER)])
def test_one_model_gives_what_they_give_one_after_the_other(models: tuple[Graph, ...]) -> None:
    """Their inner values have the same names, and stay apart."""
    whole = join(*models)
    assert {value.name for value in whole.inputs} == FEED.keys()
    want = one_by_one(FEED)
    got = Session(whole).run(FEED)
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6)


def test_it_goes_frame_by_frame_in_chunks_and_in_streams() -> None:
    whole, want = join(ENCODER, DECODER), one_by_one(FEED)
    made = expose(whole)
    assert made.time == {"feat": 2, "gain": 2, "level": 0, "m": 2}
    assert not any(made.delay.values()) and made.least == 1
    session, streams = Session(made.graph), Session(whole).streams(3)
    stream = [streams.open() for _ in range(3)][1]
    for size in (1, 2, 5, T):
        state, parts = dict(made.first), list[Any]()
        for begin in range(0, T, size):
            chunk = {name: array[:, :, begin : begin + size] for name, array in FEED.items()}
            parts.append(session.run({**chunk, **state}))
            state = {name: parts[-1][after] for name, after in made.states.items()}
            if size == 1:
                streams.push(stream, chunk)
        for each in [parts, streams.pull(stream)] if size == 1 else [parts]:
            for name, axis in (("level", 0), ("m", 2)):
                joined = np.concatenate([part[name] for part in each], axis)
                np.testing.assert_allclose(joined, want[name], rtol=0, atol=1e-6)


def test_its_cpp_goes_step_by_step(tmp_path: Path) -> None:
    emitted = build({"whole": join(ENCODER, DECODER)}, tmp_path)["whole"]
    for mode in ("infer", "step"):
        assert_computes(emitted, FEED, one_by_one(FEED), mode)


def test_the_command_writes_a_file_that_onnx_runtime_runs_as_the_files(tmp_path: Path) -> None:
    files = [tmp_path / "dec.onnx", tmp_path / "enc.onnx"]
    for graph, file in zip((DECODER, ENCODER), files, strict=True):
        onernn.convert(graph, file)
    out = tmp_path / "whole.onnx"
    done = CliRunner().invoke(app, ["join", *map(str, files), "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    values = dict(FEED)
    for file in files[::-1]:
        session = onnxruntime.InferenceSession(file)
        feed = {value.name: values[value.name] for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        values |= dict(zip(names, session.run(names, feed), strict=True))
    session = onnxruntime.InferenceSession(out)
    for name in ("level", "m"):
        (got,) = session.run([name], FEED)
        np.testing.assert_allclose(got, values[name], rtol=0, atol=1e-6)
    assert {value.name for value in onnx.load(out).graph.output} == {"level", "m"}


def tanh(name: str, x: Value, y: str) -> Graph:
    return replace(small_graph([new_node(f"{y} = Tanh {x.name}")], y, x=x), name=name)


A = tanh("a", Value("x", "float32", (2, None)), "y")


@pytest.mark.parametrize(
    "models, error, where",
    [
        ((A,), UnsupportedError, "got 1"),
        ((A, tanh("b", Value("z", "float32", (2,)), "y")), UnsupportedError, "y: .*from a and b"),
        ((A, tanh("b", Value("y"), "x")), UnsupportedError, "x: .*a, b feed"),
        *(
            (
                (A, tanh("b", Value(name, *known), "z")),
                ShapeError,
                f"b: expected {name}: {known[0]}",
            )
            for name, *known in (
                ("y", "float32", (3, None)),
                ("y", "float32", (2,)),
                ("y", "float64", (2, None)),
                ("x", "float64", (2, None)),
                ("y", "float32", (None,), 1),
            )
        ),
    ],
)
def test_what_does_not_fit_is_refused(models: Any, error: type[Exception], where: str) -> None:
    with pytest.raises(error, match=where):
        join(*models)


def test_inputs_of_one_name_are_one_with_what_both_declare() -> None:
    both = join(A, tanh("b", Value("x", "float32", (None, 5)), "z"))
    assert [(v.name, v.shape) for v in both.inputs] == [("x", (2, 5))]
    x = numbers(2, 5)
    got = Session(both).run({"x": x})
    assert np.array_equal(got["y"], got["z"])
