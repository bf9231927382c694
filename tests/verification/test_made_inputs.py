"""Inputs that are made for two models fit both; where none do, the message says what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import planted
from support.command_line import failed
from support.command_line import onernn as onernn_
from support.planted import model, read, reordered

import onernn
from onernn.ir.errors import UnsupportedError
from onernn.verification.input_generation import make_inputs
from onernn.verification.references import Against
from onernn.verification.verifying import verify

FIXED: dict[str, dict[str, list[int]]] = {
    "T": {"X": [6, 0, 4]},
    "N": {"X": [0, 3, 4], "lens": [3], "h0": [1, 3, 4]},
    "T and N": {"X": [9, 2, 4], "lens": [2], "h0": [1, 2, 4]},
}
"""Sizes that an exporter wrote down; 0 is open."""


def _sized(data: bytes, sizes: dict[str, list[int]], names: dict[str, str] | None = None) -> bytes:
    """The file with these sizes of its inputs, and with other names of them."""
    made = onnx.load_from_string(data)
    for value in made.graph.input:
        for at, size in enumerate(sizes.get(value.name, [])):
            if size:
                value.type.tensor_type.shape.dim[at].dim_value = size
    for old, new in (names or {}).items():
        for value in made.graph.input:
            value.name = new if value.name == old else value.name
        for node in made.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
    return made.SerializeToString()


def _pair() -> tuple[bytes, bytes]:
    arrays = planted.weights("GRU")
    return model("GRU", arrays), model("GRU", reordered(arrays, (1, 0, 2)))


@pytest.mark.parametrize("swap", [False, True], ids=["model", "reference"])
@pytest.mark.parametrize("fixed", FIXED)
def test_a_size_that_one_file_fixes_holds_for_the_other(fixed: str, swap: bool) -> None:
    sound, wrong = _pair()
    one, other = (
        (_sized(sound, FIXED[fixed]), wrong) if swap else (sound, _sized(wrong, FIXED[fixed]))
    )
    report = verify(read(other), against=Against(read(one)))
    assert [(each.id, each.evidence) for each in report.causes] == [("gates_swapped", "proved")]
    assert report.evidence is not None
    for value in (*read(one).inputs, *read(other).inputs):
        got = np.shape(report.evidence.inputs[value.name])
        assert all(a in (None, b) for a, b in zip(value.shape or (), got, strict=True)), value


def test_inputs_of_other_names_are_united_in_order() -> None:
    sound, wrong = _pair()
    names = {"X": "words", "lens": "sizes", "h0": "begin"}
    report = verify(read(wrong), against=Against(read(_sized(sound, FIXED["T and N"], names))))
    assert report.cause is not None and report.cause.id == "gates_swapped"


def test_sizes_that_contradict_each_other_are_told_with_what_to_type() -> None:
    sound, wrong = _pair()
    files = read(_sized(sound, {"X": [5, 0, 4]})), read(_sized(wrong, {"X": [7, 0, 4]}))
    with pytest.raises(UnsupportedError, match=r"expected|got") as caught:
        verify(files[1], against=Against(files[0]))
    line = "give --data inputs.npz, made by numpy.savez('inputs.npz', **{'in__X': ..., 'in__lens'"
    assert line in str(caught.value)


def _sound_model(folder: Path, window: int = 64, rate: int = 16000) -> Path:
    """As models of speech are: samples, a state, a rate that a branch asks; one step of an LSTM.

    The window of each branch's convolution is longer than any usual T.
    """
    rng = np.random.default_rng(0)
    hidden = 4

    def branch(name: str, wide: int) -> onnx.GraphProto:
        """An encoder of samples (N, 1, S) to (1, N, hidden)."""
        kernel = rng.normal(0, 0.1, (hidden, 1, wide)).astype(np.float32)
        nodes = [
            helper.make_node("Conv", ["row", f"{name}k"], [f"{name}c"], strides=[wide]),
            helper.make_node("ReduceMean", [f"{name}c"], [f"{name}m"], axes=[2], keepdims=0),
            helper.make_node("Unsqueeze", [f"{name}m", "zero"], [f"{name}out"]),
        ]
        out = helper.make_tensor_value_info(f"{name}out", TensorProto.FLOAT, [1, None, hidden])
        return helper.make_graph(
            nodes, name, [], [out], [numpy_helper.from_array(kernel, f"{name}k")]
        )

    shapes: dict[str, Any] = {
        "W": rng.normal(0, 0.4, (1, 4 * hidden, hidden)),
        "R": rng.normal(0, 0.4, (1, 4 * hidden, hidden)),
        "B": rng.normal(0, 0.2, (1, 8 * hidden)),
    }
    constants = [numpy_helper.from_array(a.astype(np.float32), k) for k, a in shapes.items()]
    constants += [
        numpy_helper.from_array(np.array(v), k) for k, v in (("rate", rate), ("half", [1, 1]))
    ]
    constants += [numpy_helper.from_array(np.array([v]), k) for k, v in (("zero", 0), ("one", 1))]
    nodes = [
        helper.make_node("Unsqueeze", ["input", "one"], ["row"]),
        helper.make_node("Equal", ["sr", "rate"], ["fast"]),
        helper.make_node(
            "If",
            ["fast"],
            ["words"],
            then_branch=branch("a", 2 * window),
            else_branch=branch("b", window),
        ),
        helper.make_node("Split", ["state", "half"], ["h", "c"], axis=0),
        helper.make_node(
            "LSTM", ["words", "W", "R", "B", "", "h", "c"], ["", "hn", "cn"], hidden_size=hidden
        ),
        helper.make_node("Concat", ["hn", "cn"], ["stateN"], axis=0),
        helper.make_node("Sigmoid", ["hn"], ["output"]),
    ]
    info = helper.make_tensor_value_info
    inputs = [
        info("input", TensorProto.FLOAT, [None, None]),
        info("state", TensorProto.FLOAT, [2, None, hidden]),
        info("sr", TensorProto.INT64, []),
    ]
    outputs = [info(name, TensorProto.FLOAT, None) for name in ("output", "stateN")]
    graph = helper.make_graph(nodes, "speech", inputs, outputs, constants)
    file = folder / "speech.onnx"
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), file
    )
    return file


def test_samples_of_sound_and_their_rate_are_made(tmp_path: Path) -> None:
    file = _sound_model(tmp_path)
    made = make_inputs(onernn.load(file))
    assert made["sr"] == 16000 and np.shape(made["input"])[1] >= 128
    assert np.shape(made["state"])[1] == np.shape(made["input"])[0] > 1
    done = onernn_("verify", file, "--against", f"onnxruntime:{file}")
    assert done.returncode == 0 and "'sr' is 16000" in done.stdout, done.stdout


def test_repair_takes_data_where_no_inputs_can_be_made(tmp_path: Path) -> None:
    """A length that no attempt has: 316 numbers."""
    arrays = planted.weights("GRU")
    for name, each in (("right", arrays), ("wrong", reordered(arrays, (1, 0, 2)))):
        made = onnx.load_from_string(model("GRU", each, lengths=False, states=False))
        graph = made.graph
        del graph.input[:]
        flat = helper.make_tensor_value_info("flat", TensorProto.FLOAT, [None])
        graph.input.append(flat)
        shape = numpy_helper.from_array(np.array([79, 1, 4]), "shape")
        graph.initializer.append(shape)
        graph.node.insert(0, helper.make_node("Reshape", ["flat", "shape"], ["X"]))
        onnx.save(made, tmp_path / f"{name}.onnx")
    right, wrong, fixed = (tmp_path / f"{k}.onnx" for k in ("right", "wrong", "fixed"))
    command = ["repair", wrong, "--against", right, "-o", fixed]
    assert "--data inputs.npz" in failed(onernn_(*command))
    rng = np.random.default_rng(1)
    given = rng.uniform(-1, 1, 79 * 4).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", in__flat=given)
    done = onernn_(*command, "--data", tmp_path / "inputs.npz")
    assert done.returncode == 0 and fixed.is_file(), done.stdout
