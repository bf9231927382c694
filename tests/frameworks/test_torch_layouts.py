"""torch.nn's RNN, LSTM and GRU against ours on the same weights, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import onernn
from onernn import Cell, RnnSpec, UnsupportedError
from onernn.adapters.weight_conversion import read_layer
from onernn.backend import open_backend

SIZES = {"input_size": 3, "hidden_size": 4}
LAYERS = [
    (kind, {**SIZES, "num_layers": layers, "bidirectional": both, "bias": bias, **more})
    for kind, more in (
        (nn.RNN, {}),
        (nn.RNN, {"nonlinearity": "relu"}),
        (nn.LSTM, {}),
        (nn.LSTM, {"proj_size": 2}),
        (nn.GRU, {}),
    )
    for layers in (1, 2)
    for both in (False, True)
    for bias in (True, False)
]


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


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
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
    with pytest.raises(UnsupportedError, match="PyTorch has no GRU"):
        onernn.convert_weights((spec, weights), "torch")
    with pytest.raises(UnsupportedError, match="Linear"):
        onernn.convert_weights(nn.Linear(3, 4), "onnx")


class OnlyOutputs(nn.LSTM):
    """What people write: an LSTM that drops its states."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return super().forward(x)[0]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"rnn": OnlyOutputs(3, 4, 2, bidirectional=True)})
        self.head = nn.Linear(8, 2)


def equal(found: dict[str, np.ndarray], layer: nn.Module) -> bool:
    """Weights as they are, and the sum of both biases, which is all that an LSTM knows of them."""
    wanted = {name: value.detach().float().numpy() for name, value in layer.named_parameters()}
    for arrays in (found, wanted):
        for name in [name for name in arrays if name.startswith("bias_ih")]:
            arrays[name] = arrays[name] + arrays.pop(name.replace("_ih", "_hh"))
    return found.keys() == wanted.keys() and all(
        a.dtype == np.float32 and np.array_equal(a, wanted[name]) for name, a in found.items()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_halves_subclasses_modules_and_parameters_are_read_exactly(dtype: Any) -> None:
    model = Tagger().to(dtype)
    rnn = model.encoder["rnn"]
    for given in (rnn, model, rnn.state_dict(), rnn.named_parameters(), model.named_parameters()):
        assert equal(onernn.convert_weights(given, "torch"), rnn), type(given)
    arrays = {name: value.detach().float().numpy() for name, value in rnn.named_parameters()}
    assert equal(onernn.convert_weights(arrays, "torch", source="torch"), rnn)


def test_the_option_of_a_plain_rnn_reaches_parameters_of_a_module_around_it() -> None:
    plain = nn.ModuleDict({"a": nn.RNN(3, 4, nonlinearity="relu")})
    layer = read_layer(plain.named_parameters(), "torch", nonlinearity="relu")
    assert layer.spec.cell is Cell.RNN_RELU


@pytest.mark.filterwarnings("ignore")
def test_of_several_layers_the_names_are_told() -> None:
    two = nn.ModuleDict({"a": nn.GRU(3, 4), "b": nn.GRU(4, 4)})
    normed = nn.ModuleDict({"a": weight_norm(nn.GRU(3, 4), "weight_hh_l0"), "b": nn.GRU(4, 4)})
    states = normed.state_dict(), normed.named_parameters()
    scripted = torch.jit.script(two)
    for given in (two, two.named_parameters(), normed, *states, scripted):
        with pytest.raises(UnsupportedError, match="'a', 'b'"):
            onernn.convert_weights(given, "torch")


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda x: x.to("meta"), "meta"),
        (lambda x: x.to_sparse(), "to_dense"),
        (lambda x: (100 * x).to(torch.int16), "expected float32 or float64, got int16"),
    ],
    ids=["meta", "sparse", "int16"],
)
def test_tensors_without_floats_in_memory_are_refused(change: Any, error: str) -> None:
    state = {name: change(value) for name, value in nn.LSTM(3, 4).state_dict().items()}
    with pytest.raises(onernn.OnernnError, match=error):
        read_layer(state)
    with pytest.raises(UnsupportedError, match="named_parameters"):
        read_layer(nn.LSTM(3, 4).parameters())


class Normed(nn.LSTMCell):
    def __init__(self) -> None:
        super().__init__(3, 4)
        self.norm = nn.LayerNorm(4)


def test_a_subclass_with_parameters_of_its_own_is_refused_by_their_names() -> None:
    with pytest.raises(onernn.OnernnError, match=r"norm\.weight"):
        onernn.convert_weights(Normed(), "torch")
