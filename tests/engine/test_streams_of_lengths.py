"""Recurrent layers with lengths as streams: what ONNX Runtime computes of each client alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onernn import Session, UnsupportedError

onnxruntime = pytest.importorskip("onnxruntime")
WIDTH, H = 4, 5


def written(path: Path, cell: str, direction: str = "forward", states: bool = True) -> str:
    """A layer with sequence_lens, an operator between two, and a layer that has them too."""
    rng = np.random.default_rng(0)
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[cell] * H
    sides = 2 if direction == "bidirectional" else 1
    names = ["h", "c"][: 1 + (cell == "LSTM")] if states else []
    nodes, arrays, x = [], {}, "x"
    for layer, width in enumerate((WIDTH, H * sides)):
        arrays[f"W{layer}"] = rng.uniform(-0.4, 0.4, (sides, gates, width)).astype("f4")
        arrays[f"R{layer}"] = rng.uniform(-0.4, 0.4, (sides, gates, H)).astype("f4")
        inputs = [x, f"W{layer}", f"R{layer}", "", "lengths", *(f"{n}{layer}" for n in names)]
        ends = [f"{n}{layer}N" for n in names]
        nodes.append(
            helper.make_node(
                cell,
                inputs,
                [f"tdnh{layer}", *ends],
                f"r{layer}",
                hidden_size=H,
                direction=direction,
            )
        )
        nodes.append(
            helper.make_node("Transpose", [f"tdnh{layer}"], [f"tndh{layer}"], perm=[0, 2, 1, 3])
        )
        nodes.append(helper.make_node("Reshape", [f"tndh{layer}", "flat"], [f"flat{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"flat{layer}"], [x := f"y{layer}"]))
    arrays["flat"] = np.array([0, 0, -1])
    value = helper.make_tensor_value_info
    carried = [f"{name}{layer}" for layer in range(2) for name in names]
    graph = helper.make_graph(
        nodes,
        "lengths",
        [
            value("x", TensorProto.FLOAT, ["T", "N", WIDTH]),
            value("lengths", TensorProto.INT32, ["N"]),
            *(value(name, TensorProto.FLOAT, [sides, "N", H]) for name in carried),
        ],
        [
            value("y1", TensorProto.FLOAT, ["T", "N", H * sides]),
            *(value(f"{name}N", TensorProto.FLOAT, [sides, "N", H]) for name in carried),
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.save(model, path)
    return str(path)


def client(seed: int, batch: int, count: int = 6) -> list[dict[str, Any]]:
    """Chunks of one client, some steps of which are padding; a length may be 0."""
    rng = np.random.default_rng(seed)
    chunks = []
    for _ in range(count):
        steps = int(rng.integers(1, 6))
        lengths = rng.integers(0, steps + 1, batch).astype(np.int32)
        x = rng.uniform(-1, 1, (steps, batch, WIDTH)).astype("f4")
        chunks.append({"x": x, "lengths": lengths})
    return chunks


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("cell", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("batch", [1, 3])
def test_layers_with_lengths_are_as_each_client_alone(
    cell: str, direction: str, batch: int, tmp_path: Path
) -> None:
    """float32 apart by the order of sums: 1e-5 of numbers below 1."""
    path = written(tmp_path / "m.onnx", cell, direction)
    runtime = onnxruntime.InferenceSession(path)
    session = Session(path)
    states = {v.name: f"{v.name}N" for v in session.inputs if v.name[0] in "hc"}
    sides = 2 if direction == "bidirectional" else 1
    first = dict.fromkeys(states, np.zeros((sides, batch, H), np.float32))
    streams = session.streams(5, states, first=first)
    clients = {streams.open(): client(seed, batch) for seed in range(5)}
    for at in range(6):
        for stream, chunks in clients.items():
            streams.push(stream, chunks[at])
    for stream, chunks in clients.items():
        state = dict(first)
        for chunk, got in zip(chunks, streams.pull(stream), strict=True):
            names = [value.name for value in runtime.get_outputs()]
            want = dict(zip(names, runtime.run(names, {**chunk, **state}), strict=True))
            state = {name: want[after] for name, after in states.items()}
            np.testing.assert_allclose(got["y1"], want["y1"], atol=1e-5)


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_chunks_of_a_model_with_lengths_are_parts_of_the_whole(cell: str, tmp_path: Path) -> None:
    """The lengths of a chunk count its valid steps; only the last chunk has padding."""
    path = written(tmp_path / "m.onnx", cell, states=False)
    x = np.random.default_rng(1).uniform(-1, 1, (12, 1, WIDTH)).astype("f4")
    (whole,) = onnxruntime.InferenceSession(path).run(["y1"], {"x": x, "lengths": np.int32([10])})
    streams = Session(path).streams(2)
    stream = streams.open()
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        streams.push(stream, {"x": x[begin:end], "lengths": np.int32([min(end, 10) - begin])})
    got = np.concatenate([each["y1"] for each in streams.pull(stream)])
    np.testing.assert_allclose(got, whole, atol=1e-5)


def test_a_layer_with_lengths_that_looks_ahead_is_named_when_streams_are_made(
    tmp_path: Path,
) -> None:
    session = Session(written(tmp_path / "m.onnx", "GRU", "reverse", states=False))
    with pytest.raises(UnsupportedError) as caught:
        session.streams(2)
    assert "'r0' (GRU)" in caught.value.refusal.where
