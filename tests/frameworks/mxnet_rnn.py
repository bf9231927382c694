"""The RNN operator of MXNet: small arrays for each mode, and symbols of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from onernn.ir.arrays import Array

MODES = ["rnn_tanh", "rnn_relu", "lstm", "gru"]
T, N, C, H = 6, 3, 5, 4
OPTIONS: dict[str, Any] = {"state_size": H, "num_layers": 2, "bidirectional": True}
"""Of what `arrays` gives parameters for."""


def arrays(mode: str, layers: int = 2, sides: int = 2, dtype: str = "float32") -> dict[str, Array]:
    rng = np.random.default_rng(7)
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    rows = gates * H
    count = sum(sides * rows * ((H * sides if layer else C) + H + 2) for layer in range(layers))
    made = {
        "data": rng.uniform(-1, 1, (T, N, C)),
        "parameters": rng.uniform(-0.4, 0.4, count),
        "state": rng.uniform(-1, 1, (layers * sides, N, H)),
    }
    if mode == "lstm":
        made["state_cell"] = rng.uniform(-1, 1, (layers * sides, N, H))
    return {name: array.astype(dtype) for name, array in made.items()}


def operator_of(mode: str, data: Any, dtype: str = "float32", **attributes: Any) -> Any:
    """The operator over a symbol; its other inputs are variables."""
    slots = ["parameters", "state", *["state_cell"] * (mode == "lstm")]
    slots += ["sequence_length"] * bool(attributes.get("use_sequence_length"))
    variables = {name: mx.sym.Variable(name, dtype=dtype) for name in slots}
    return mx.sym.RNN(data, **variables, **{"mode": mode, "state_size": H, **attributes})


def symbol_of(mode: str, dtype: str = "float32", **attributes: Any) -> Any:
    data = mx.sym.Variable("data", dtype=dtype)
    options = {**OPTIONS, "state_outputs": True, "name": "net", **attributes}
    return mx.sym.Group([*operator_of(mode, data, dtype, **options)])


def ndarrays(given: Mapping[str, Array]) -> dict[str, Any]:
    return {name: mx.nd.array(array, dtype=array.dtype) for name, array in given.items()}


def close(ours: Array, theirs: Array, scale: float = 1e-5, name: str = "") -> None:
    atol = 1e-6 + scale * np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=name)


def all_close(ours: Sequence[Array], theirs: Sequence[Array], scale: float = 1e-5) -> None:
    for mine, want in zip(ours, theirs, strict=True):
        assert mine.dtype == want.dtype
        close(mine, want, scale)


def trained(symbol: Any, given: Mapping[str, Array], dtype: str = "float32") -> dict[str, Array]:
    """Outputs and all gradients, of random gradients of the outputs."""
    made = {name: mx.nd.array(a, dtype=dtype) for name, a in given.items()}
    grads = {name: mx.nd.zeros(a.shape, dtype=dtype) for name, a in given.items()}
    bound = symbol.bind(mx.cpu(), made, args_grad=grads)
    outputs = bound.forward(is_train=True)
    rng = np.random.default_rng(9)
    bound.backward([mx.nd.array(rng.uniform(-1, 1, o.shape), dtype=dtype) for o in outputs])
    found = {name: grad.asnumpy() for name, grad in grads.items()}
    return {**found, **{str(k): out.asnumpy() for k, out in enumerate(outputs)}}


def train_alike(
    ours: Any, theirs: Any, given: Mapping[str, Array], scale: float = 3e-5, dtype: str = "float32"
) -> dict[str, Array]:
    """Compares what two symbols give when they are `trained`; returns that of the second."""
    found, expected = (trained(symbol, given, dtype) for symbol in (ours, theirs))
    for name, want in expected.items():
        close(found[name], want, scale, name)
    return expected


def recorded(function: Callable[..., Any], given: Mapping[str, Array]) -> list[Array]:
    """The output of a function of NDArrays by name, and its gradients, of a random one of the
    output."""
    made = ndarrays(given)
    for array in made.values():
        array.attach_grad()
    with mx.autograd.record():
        y = function(**made)
    heads = np.random.default_rng(1).uniform(-1, 1, y.shape).astype(np.float16)  # in any type
    y.backward(mx.nd.array(heads, dtype=y.dtype))
    return [y.asnumpy(), *(array.grad.asnumpy() for array in made.values())]
