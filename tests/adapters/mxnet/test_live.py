"""MXNet's RNN operator on arrays, as the plug-in runs it; and the plug-in where MXNet is not.

What it shares with other frameworks' layers: tests/adapters/test_live_layers.py.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from onernn import MissingDependencyError, ShapeError, UnsupportedError
from onernn.adapters.mxnet.live_layer import LiveRnn, Options

T, N, C, H = 5, 3, 4, 2
REFERENCE = Options(backend="reference")
LENGTHS = {"use_sequence_length": "True"}


def operator(mode: str, options: Options = REFERENCE, layers: int = 2, **more: str) -> LiveRnn:
    told = {"mode": mode, "state_size": str(H), "num_layers": str(layers), "bidirectional": "True"}
    return LiveRnn({**told, "state_outputs": "True", **more}, options)


def arrays(live: LiveRnn, dtype: str = "float32") -> dict[str, np.ndarray]:
    rng, state = np.random.default_rng(3), (live.stack.layers * 2, N, H)
    shapes = {"data": (T, N, C), "parameters": (live.stack.elements(C),)}
    shapes |= dict.fromkeys(live.states, state)
    made = {name: rng.uniform(-0.5, 0.5, shape).astype(dtype) for name, shape in shapes.items()}
    made["sequence_length"] = np.array([5, 1, 3], "f4")
    return {name: made[name] for name in live.arguments}


def test_mxnet_cpu_ignores_lengths_and_dropout() -> None:
    options = Options(semantics="mxnet-cpu", backend="reference")
    assert operator("lstm", **LENGTHS).only_ours
    plain = operator("lstm", options)
    given = arrays(plain)
    want = plain.run(given)
    lengths = {"sequence_length": np.array([5, 1, 3], "f4")}
    for more, also in ((LENGTHS, lengths), ({"p": "0.3"}, {})):
        live = operator("lstm", options, **more)
        assert not live.only_ours
        assert all(map(np.array_equal, live.run({**given, **also}), want))


def test_lengths_get_gradients_of_zero() -> None:
    live = operator("gru", **LENGTHS)
    given = arrays(live)
    outputs, recorded = live.run_training(given)
    grads = live.backward(given, recorded, outputs)
    assert {k: g.shape for k, g in grads.items()} == {k: a.shape for k, a in given.items()}
    assert not grads["sequence_length"].any() and grads["parameters"].any()


@pytest.mark.parametrize("backend", ["reference", "onednn", "kernels"])
def test_a_nan_that_a_clip_has_stopped_reaches_no_gradient(backend: str) -> None:
    """It trains as a cell state does that is far below the range: neither has a slope."""
    clips = {"lstm_state_clip_min": "-0.3", "lstm_state_clip_max": "0.25"}
    found = []
    for start, stops in ((np.nan, "True"), (-1e30, "True"), (-np.inf, "True"), (np.nan, "False")):
        live = operator("lstm", Options(backend=backend), **clips, lstm_state_clip_nan=stops)
        given = arrays(live)
        given["state_cell"][2, 1, 0] = start
        outputs, recorded = live.run_training(given)
        found.append(live.backward(given, recorded, [np.ones_like(out) for out in outputs]))
    stopped, below, infinite, free = found
    for name, right in below.items():
        np.testing.assert_array_equal(stopped[name], right)
        np.testing.assert_array_equal(infinite[name], right)
    assert np.abs(stopped["parameters"]).max() > 0.1 and np.isnan(free["parameters"]).any()


def test_gradients_that_there_are_not_are_refused_with_the_reason() -> None:
    narrow = operator("lstm", Options(dtype="f16"))
    given = arrays(narrow)
    outputs, recorded = narrow.run_training(given)
    with pytest.raises(UnsupportedError, match="no gradients: .*f16"):
        narrow.backward(given, recorded, outputs)


def test_only_documented_dropout_between_layers_counts_and_is_a_part_of_one() -> None:
    with pytest.raises(UnsupportedError, match="p=1"):
        operator("lstm", p="1")
    cpu = Options(semantics="mxnet-cpu", backend="reference")
    found = [operator("lstm", *more, p="0.3").drops for more in ((), (cpu,), (REFERENCE, 1))]
    assert found == [True, False, False]


def test_shapes_are_completed_from_those_of_the_data() -> None:
    live = operator("lstm", **LENGTHS)
    given = dict(zip(live.arguments, [[7, 0, C], [], [], [4, 0, H], []], strict=True))
    shapes, outputs = live.shapes(given)
    wanted = [[7, 0, C], [live.stack.elements(C)], [4, 0, H], [4, 0, H], [0]]
    assert [*shapes.values()] == wanted and [*shapes] == live.arguments
    assert outputs == [[7, 0, 2 * H], [4, 0, H], [4, 0, H]]
    _, outputs = live.shapes(dict.fromkeys(given, []))  # MXNet would crash over one without axes
    assert outputs == [[-1, -1, 2 * H], [4, -1, H], [4, -1, H]]


def test_types_are_those_of_the_data_but_for_lengths() -> None:
    live = operator("gru", **LENGTHS)
    given = {**dict.fromkeys(live.arguments), "data": np.float64, "sequence_length": np.int32}
    types, outputs = live.types(given)
    assert types == {**dict.fromkeys(live.arguments, np.float64), "sequence_length": np.int32}
    assert outputs == [np.float64] * 2


def test_arrays_of_other_types_are_refused_by_name() -> None:
    live = operator("gru")
    given = arrays(live)
    with pytest.raises(UnsupportedError, match="data: int32"):
        live.run({**given, "data": given["data"].astype(np.int32)})
    with pytest.raises(ShapeError, match="state: expected float32 as data"):
        live.run({**given, "state": given["state"].astype(float)})
    with pytest.raises(ShapeError, match="parameters: expected a vector"):
        live.run({**given, "parameters": given["parameters"][None]})


def test_a_meaning_that_is_none_of_the_two_is_refused() -> None:
    with pytest.raises(ValueError, match="semantics: documented or mxnet-cpu, got 'cpu'"):
        Options(semantics="cpu")


@pytest.mark.skipif(find_spec("mxnet") is not None, reason="mxnet is installed")
def test_without_mxnet_the_plug_in_says_what_to_install() -> None:
    from onernn.adapters.mxnet import optimize, rnn

    with pytest.raises(MissingDependencyError, match=r"pip install 'onernn\[mxnet\]'"):
        optimize(object())
    with pytest.raises(MissingDependencyError, match="numpy 1.23.5"):
        rnn(None, None, None, state_size=1, num_layers=1, mode="gru")
