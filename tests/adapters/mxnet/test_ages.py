"""What MXNet wrote from 0.8 to 2.0: one net, and MXNet 2's recurrent layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fault_corpus.oracle import mxnet_rnn
from support.arrays import uniform
from support.graphs import reference
from support.mxnet_ages import AGES, old_symbol
from support.mxnet_files import save_model, symbol_text, var

from onernn import load
from onernn.adapters.mxnet import rnn_param_size

SHAPES = {
    "arg:fc1_weight": (4, 3),
    "arg:fc1_bias": (4,),
    "arg:bn_gamma": (4,),
    "arg:bn_beta": (4,),
    "aux:bn_moving_mean": (4,),
    "aux:bn_moving_var": (4,),
}


@pytest.mark.parametrize("age", AGES)
def test_one_net_is_the_same_in_the_files_of_every_age(age: str, tmp_path: Path) -> None:
    """Beside the formula in float64; what MXNet made of such files: tests/frameworks."""
    rng = np.random.default_rng(0)
    params = {key: rng.uniform(0.1, 1, shape).astype(np.float32) for key, shape in SHAPES.items()}
    x = uniform(5, 3)
    model = load(save_model(tmp_path, old_symbol(age), params, numpy=age == "2.0"))
    assert [value.name for value in model.inputs] == ["data"]
    (got,) = reference(model, {"data": x}).values()
    weight, bias, gamma, beta, mean, variance = (params[key].astype(np.float64) for key in SHAPES)
    y = (x @ weight.T + bias - mean) / np.sqrt(variance + 1e-3) * gamma + beta + 0.5
    want = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("states", [False, True])
def test_a_recurrent_layer_of_mxnet_2_is_read(states: bool, tmp_path: Path) -> None:
    """Its parameters are one vector, named by its block; a zero state has the batch of tracing."""
    options = {"mode": "lstm", "state_size": "3", "num_layers": "2", "bidirectional": "True"}
    options |= {"state_outputs": "True", "projection_size": "None", "p": "0.0"}
    swap, begin = {"dim1": "0", "dim2": "1"}, ["data1", "data2"]
    zeros = {"shape": "(4, 7, 3)", "dtype": "float32", "ctx": "cpu(0)"}
    text = symbol_text(
        var("data0", __storage_type__="0"),
        ("_npi_swapaxes", "swap0", swap, ["data0"]),
        var("encoder.rnn_param", __dtype__="0", __shape__="(-1,)"),
        *(var(name) if states else ("_npi_zeros", name, zeros, []) for name in begin),
        ("_npx_rnn", "rnn0", options, ["swap0", "encoder.rnn_param", *begin]),
        mxnet_version=["int", 20000],
        is_np_shape=["int", 1],
    )
    size = rnn_param_size("lstm", 5, 3, 2, bidirectional=True)
    vector, data = uniform(size, bound=0.5), uniform(2, 6, 5)
    model = load(save_model(tmp_path, text, {"arg:encoder.rnn_param": vector}, numpy=True))
    begun = {name: uniform(4, 2, 3, seed=k) * states for k, name in enumerate(begin)}
    (got,) = reference(model, {"data0": data, **(begun if states else {})}).values()
    shape = {"size": 3, "layers": 2, "directions": 2}
    want, _ = mxnet_rnn("lstm", data.swapaxes(0, 1), vector, [*begun.values()], **shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)
