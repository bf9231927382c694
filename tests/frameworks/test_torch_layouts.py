"""torch.nn's RNN, LSTM and GRU against ours on the same weights, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import onernn
from onernn import Cell, RnnSpec, UnsupportedError
from onernn.adapters.weight_conversion import read_layer
from onernn.backend import open_backend

SIZES = {"input_size": 3, "hidden_size": 4}
LAYERS = [
    (kind, {**SIZES, "num_layers": layers, "bidirectional": both, "bias": bias, **more})
    for kind, more in (
        (torch.nn.RNN, {}),
        (torch.nn.RNN, {"nonlinearity": "relu"}),
        (torch.nn.LSTM, {}),
        (torch.nn.LSTM, {"proj_size": 2}),
        (torch.nn.GRU, {}),
    )
    for layers in (1, 2)
    for both in (False, True)
    for bias in (True, False)
]


@pytest.mark.parametrize("kind, options", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_of_torch_gives_the_same_outputs_in_ours(
    kind: Any, options: dict, dtype: Any
) -> None:
    torch.manual_seed(0)
    theirs = kind(**options).to(dtype)
    layer = read_layer(theirs)
    x = torch.randn(6, 2, 3, dtype=dtype)
    with torch.no_grad():
        want, states = theirs(x)
    y, final = open_backend().prepare(layer.spec, layer.weights).run(x.numpy())
    atol = 1e-6 if dtype == torch.float32 else 1e-14
    np.testing.assert_allclose(y, want.numpy(), rtol=0, atol=10 * atol)
    for mine, given in zip(final, states if isinstance(states, tuple) else (states,), strict=True):
        np.testing.assert_allclose(mine.reshape(given.shape), given.numpy(), rtol=0, atol=10 * atol)


@pytest.mark.parametrize("kind, options", LAYERS)
def test_a_state_dict_of_ours_is_one_that_torch_loads(kind: Any, options: dict) -> None:
    """Through ONNX or oneDNN's layout and back, to the outputs of the layer it came from."""
    torch.manual_seed(1)
    theirs, fresh = kind(**options), kind(**options)
    arrays = onernn.convert_weights(theirs, "torch")
    fresh.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    x = torch.randn(6, 2, 3)
    with torch.no_grad():
        # The sum of two biases is one rounding away from adding both.
        torch.testing.assert_close(fresh(x)[0], theirs(x)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.nn.RNNCell, torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells_are_layers_of_one_step(kind: Any) -> None:
    theirs = kind(3, 4)
    layer = read_layer(theirs)
    x = torch.randn(2, 3)
    with torch.no_grad():
        want = theirs(x)
    y, _ = open_backend().prepare(layer.spec, layer.weights).run(x.numpy()[None])
    first = want[0] if isinstance(want, tuple) else want
    np.testing.assert_allclose(y[0], first.numpy(), rtol=0, atol=1e-6)


def test_what_torch_cannot_say_is_refused() -> None:
    spec = RnnSpec(Cell.GRU, 3, 4)
    weights = onernn.RnnWeights(np.ones((1, 1, 3, 3, 4), "f4"), np.ones((1, 1, 4, 3, 4), "f4"))
    with pytest.raises(UnsupportedError, match="PyTorch has no GRU with the reset gate before"):
        onernn.convert_weights((spec, weights), "torch")
    with pytest.raises(UnsupportedError, match="expected one of torch.nn's"):
        onernn.convert_weights(torch.nn.Linear(3, 4), "onnx")
