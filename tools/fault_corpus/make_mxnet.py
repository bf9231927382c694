"""Writes the MXNet half of the corpus: saved models, inputs and float64 expectations.

    python -m fault_corpus.make_mxnet

Run with MXNet 1.9.1. Nothing here is computed by MXNet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from fault_corpus.oracle import F64, mxnet_rnn

HERE = Path(__file__).parent / "mxnet"
STEPS, SENTENCES, CHANNELS, SIZE = 6, 3, 4, 5


def save(
    name: str, parameters: F64, given: dict[str, F64], expected: list[F64], **attrs: Any
) -> None:
    """Writes ``model-symbol.json`` and ``model-0000.params`` of one RNN, and ``io.npz``."""
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    dtype = None if parameters.dtype == np.float32 else "float64"
    inputs = {key: mx.sym.Variable(key, dtype=dtype) for key in ("parameters", *given)}
    node = mx.sym.RNN(inputs.pop("data"), inputs.pop("parameters"), **inputs, name="rnn", **attrs)
    node = mx.sym.Group(list(node)) if attrs.get("state_outputs") else node
    node.save(str(folder / "model-symbol.json"))
    mx.nd.save(
        str(folder / "model-0000.params"),
        {"arg:parameters": mx.nd.array(parameters, dtype=parameters.dtype)},
    )
    arrays = {f"in__{key}": array for key, array in given.items()}
    arrays |= {f"out__{k}": array for k, array in enumerate(expected)}
    np.savez_compressed(folder / "io.npz", **arrays)


def lstm(
    name: str,
    seed: int,
    *,
    directions: int = 1,
    projection: int | None = None,
    lengths: list[int] | None = None,
    clip: tuple[float, float] | None = None,
    state_outputs: bool = True,
) -> None:
    rng = np.random.default_rng(seed)

    def uniform(bound: float, *shape: int) -> F64:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    width = projection or SIZE
    count = 4 * SIZE * (CHANNELS + width + 2) + (width * SIZE if projection else 0)
    given = {
        "data": uniform(2, STEPS, SENTENCES, CHANNELS),
        "state": uniform(1, directions, SENTENCES, width),
        "state_cell": uniform(1, directions, SENTENCES, SIZE),
    }
    parameters = uniform(1 / np.sqrt(SIZE), directions * count)
    attrs: dict[str, Any] = {"bidirectional": directions == 2, "state_outputs": state_outputs}
    if projection:
        attrs["projection_size"] = projection
    if clip:
        attrs |= {"lstm_state_clip_min": clip[0], "lstm_state_clip_max": clip[1]}
    states = [given["state"], given["state_cell"]]
    y, final = mxnet_rnn(
        "lstm",
        given["data"],
        parameters,
        states,
        size=SIZE,
        directions=directions,
        projection=projection,
        lengths=lengths,
        clip=clip,
    )
    if lengths:
        given["sequence_length"] = np.array(lengths, np.float32)
        attrs["use_sequence_length"] = True
    expected = [y, *final] if state_outputs else [y]
    save(name, parameters, given, expected, mode="lstm", state_size=SIZE, num_layers=1, **attrs)


def dropout(name: str, size: int = 8) -> None:
    """Writes two layers: the first one returns 1 everywhere, the second one returns its input.

    In training with p = 0.5 every value is therefore 0 or 2; ``train__0`` lists both values.
    """
    zeros, eye = np.zeros((size, size), np.float32), np.eye(size, dtype=np.float32)
    ones, nothing = np.ones(size, np.float32), np.zeros(3 * size, np.float32)
    parts = [zeros, zeros, eye, zeros, ones, nothing]
    parameters = np.concatenate([part.reshape(-1) for part in parts])
    data = np.zeros((STEPS, SENTENCES, size), np.float32)
    state = np.zeros((2, SENTENCES, size), np.float32)
    y, _ = mxnet_rnn("rnn_relu", data, parameters, [state], size=size, layers=2)
    given = {"data": data, "state": state}
    save(name, parameters, given, [y], mode="rnn_relu", state_size=size, num_layers=2, p=0.5)
    with np.load(HERE / name / "io.npz") as file:
        np.savez_compressed(HERE / name / "io.npz", **file, train__0=np.array([0.0, 2.0]))


def relu_float64(name: str) -> None:
    rng = np.random.default_rng(4)
    count = SIZE * (CHANNELS + SIZE + 2)
    data, state, parameters = (
        rng.uniform(-bound, bound, shape)
        for bound, shape in (
            (2, (STEPS, SENTENCES, CHANNELS)),
            (1, (1, SENTENCES, SIZE)),
            (1 / np.sqrt(SIZE), (count,)),
        )
    )
    y, _ = mxnet_rnn("rnn_relu", data, parameters, [state], size=SIZE)
    given = {"data": data, "state": state}
    save(name, parameters, given, [y], mode="rnn_relu", state_size=SIZE, num_layers=1)


if __name__ == "__main__":
    lstm("lengths_ignored", 1, directions=2, lengths=[6, 1, 3])
    lstm("clip_ignored", 2, clip=(-0.2, 0.3))
    lstm("projection_crashes", 3, projection=3, state_outputs=False)
    relu_float64("relu_float64_rounded")
    dropout("dropout_ignored")
