"""MXNet's documentation of its operator RNN, sentence by sentence: see design/0054.

The oracle walks the parameter vector with a cursor and computes the equations of the documentation
in float64. It shares no code with the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fault_corpus.oracle import mxnet_rnn
from support.mxnet_files import reasons, symbol, var

from onernn import Graph, Session, ShapeError, UnsupportedError
from onernn.adapters.mxnet import rnn_param_size
from onernn.adapters.mxnet.lower import lower

T, N, C, H = 5, 3, 4, 2
GATES = ["rnn_relu", "rnn_tanh", "lstm", "gru"]
Arrays = dict[str, np.ndarray]
CLIPS = {"lstm_state_clip_min": -0.2, "lstm_state_clip_max": 0.15}
ALONE = {"num_layers": 1, "bidirectional": False}


def documented(
    mode: str, feed: Arrays, flat: np.ndarray, layers: int = 2, sides: int = 2, **more: Any
) -> list[np.ndarray]:
    """Returns out (T, N, D*R), h (L*D, N, R) and, of an LSTM, c (L*D, N, H)."""
    states = [feed[name] for name in ("state", "state_cell") if name in feed]
    more |= {"size": H, "layers": layers, "directions": sides}
    out, final = mxnet_rnn(mode, feed["data"], flat, states, **more)
    return [out, *final]


def graph_of(
    mode: str, flat: np.ndarray, semantics: Any = "documented", **attributes: Any
) -> Graph:
    """A symbol of the operator alone, as a file has it."""
    names = ["data", "parameters", "state", *["state_cell"] * (mode == "lstm")]
    if attributes.get("use_sequence_length"):
        names = [*names, "sequence_length"]
    plain = {"mode": mode, "state_size": H, "num_layers": 2, "bidirectional": True}
    told = {k: str(v) for k, v in (plain | attributes).items() if v != ""}
    count = (3 if mode == "lstm" else 2) if attributes.get("state_outputs") else 1
    heads = [[len(names), k, 0] for k in range(count)]
    built = symbol(*map(var, names), ("RNN", "net", told, names), heads=heads)
    return lower(built, {"parameters": flat}, semantics, "m")


def arrays(mode: str, *, layers: int = 2, sides: int = 2, p: int | None = None) -> tuple[Any, Any]:
    """(what is fed, the parameter vector)."""
    rng = np.random.default_rng(5)
    size = rnn_param_size(mode, C, H, layers, bidirectional=sides == 2, projection_size=p)
    flat = rng.uniform(-0.8, 0.8, size).astype(np.float32)
    made = {"data": rng.uniform(-2, 2, (T, N, C))}
    made["state"] = rng.uniform(-1, 1, (layers * sides, N, p or H))
    if mode == "lstm":
        made["state_cell"] = rng.uniform(-1, 1, (layers * sides, N, H))
    return {name: array.astype(np.float32) for name, array in made.items()}, flat


def ran(graph: Graph, feed: Arrays, backend: str = "auto") -> list[np.ndarray]:
    return [*Session(graph, backend=backend).run(feed).values()]


def assert_equal(ours: list[np.ndarray], right: list[np.ndarray]) -> None:
    for mine, theirs in zip(ours, right, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == np.float32
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)


MODES = [*((mode, None) for mode in GATES), ("lstm", 1), ("lstm", 3)]  # with projections


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("layers, sides", [(1, 1), (1, 2), (3, 1), (2, 2)])
@pytest.mark.parametrize("mode, p", MODES)
def test_each_mode_computes_the_documented_equations(
    mode: str, p: int | None, layers: int, sides: int, backend: str
) -> None:
    feed, flat = arrays(mode, layers=layers, sides=sides, p=p)
    told = {"num_layers": layers, "bidirectional": sides == 2, "projection_size": p}
    graph = graph_of(mode, flat, **told, state_outputs=True)
    right = documented(mode, feed, flat, layers=layers, sides=sides, projection=p)
    assert_equal(ran(graph, feed, backend), right)


def test_the_oracle_tells_gates_signs_and_biases_apart() -> None:
    """What the comparison stands on: parts of the vector changed over give another result."""
    for mode in GATES:
        feed, flat = arrays(mode)
        right = documented(mode, feed, flat)[0]
        for change in (flat[::-1], -flat, np.roll(flat, H * C), np.roll(flat, -H)):
            assert np.abs(documented(mode, feed, change)[0] - right).max() > 1e-3


@pytest.mark.parametrize("mode", GATES)
def test_flags_and_numbers_have_the_documented_defaults(mode: str) -> None:
    """bidirectional, p, state_outputs, projection_size, the clips and use_sequence_length."""
    feed, flat = arrays(mode, layers=1, sides=1)
    plain = graph_of(mode, flat, num_layers=1, bidirectional="")
    none = {"p": 0.0, "projection_size": None, "lstm_state_clip_min": None}
    none |= {"lstm_state_clip_max": None, "lstm_state_clip_nan": False}
    told = graph_of(mode, flat, num_layers=1, bidirectional=False, use_sequence_length=0, **none)
    right = documented(mode, feed, flat, layers=1, sides=1)[:1]
    assert plain.notes == told.notes == ()
    assert_equal(ran(plain, feed), right)
    assert_equal(ran(told, feed), right)


@pytest.mark.parametrize("backend", ["auto", "reference", "onednn"])
@pytest.mark.parametrize("mode", GATES)
def test_lengths_are_an_input_where_the_flag_says_so(mode: str, backend: str) -> None:
    feed, flat = arrays(mode)
    lengths = np.array([5, 1, 3])
    graph = graph_of(mode, flat, use_sequence_length=True, state_outputs=True)
    assert [value.name for value in graph.inputs][-1] == "sequence_length"
    got = ran(graph, {**feed, "sequence_length": lengths.astype(np.float32)}, backend)
    assert_equal(got, documented(mode, feed, flat, lengths=lengths))
    assert any("sequence lengths mask, as documented" in note for note in graph.notes)
    silent = graph_of(mode, flat, state_outputs=True)
    assert "sequence_length" not in {value.name for value in silent.inputs}


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh", "rnn_relu"])
def test_cell_states_are_inputs_of_lstms_only(mode: str) -> None:
    """Lengths come right behind the state."""
    feed, flat = arrays(mode)
    graph = graph_of(mode, flat, use_sequence_length=True)
    assert [value.name for value in graph.inputs] == ["data", "state", "sequence_length"]
    lstm = graph_of("lstm", arrays("lstm")[1], use_sequence_length=True)
    state = (4, None, H)
    assert {value.name: value.shape for value in lstm.inputs} == {
        "data": (None, None, C), "state": state, "state_cell": state, "sequence_length": (None,)
    }  # fmt: skip


def test_dropout_drops_nothing_in_inference_and_is_a_rate() -> None:
    feed, flat = arrays("lstm")
    graph = graph_of("lstm", flat, p=0.5, state_outputs=True)
    assert_equal(ran(graph, feed), documented("lstm", feed, flat))
    assert any("dropout p=0.5 between layers" in note for note in graph.notes)
    for p in (-0.1, 1.5, "nan"):
        assert f"attribute p={float(p):g}: expected 0 <= p <= 1" in refused(p=p)


@pytest.mark.parametrize("projection", [None, 1])
def test_clips_bound_the_cell_state_in_every_step(projection: int | None) -> None:
    feed, flat = arrays("lstm", p=projection)
    graph = graph_of("lstm", flat, state_outputs=True, projection_size=projection, **CLIPS)
    right = documented("lstm", feed, flat, clip=(-0.2, 0.15), projection=projection)
    assert_equal(ran(graph, feed), right)
    assert np.abs(documented("lstm", feed, flat, projection=projection)[0] - right[0]).max() > 0.01
    assert any("clipped to [-0.2, 0.15], as documented" in note for note in graph.notes)
    assert graph_of("gru", arrays("gru")[1], **CLIPS).notes == ()  # of LSTMs only


CPU = {
    "sequence lengths are ignored, as in MXNet 1.9.1 on CPU; documented is: sequence lengths mask"
    " (semantics='documented')": {"use_sequence_length": True},
    "the cell state is not clipped, as in MXNet": CLIPS,
}  # fmt: skip


@pytest.mark.parametrize("said", CPU)
def test_mxnets_cpu_ignores_lengths_and_clips_which_is_noted(said: str) -> None:
    feed, flat = arrays("lstm")
    graph = graph_of("lstm", flat, "mxnet-cpu", state_outputs=True, **CPU[said])
    lengths = {"sequence_length": np.array([5, 1, 3], np.float32)}
    given = {value.name: {**feed, **lengths}[value.name] for value in graph.inputs}
    assert_equal(ran(graph, given), documented("lstm", feed, flat))
    assert any(said in note for note in graph.notes)


@pytest.mark.parametrize("stops", [False, True])
def test_a_nan_in_the_cell_state_is_stopped_where_both_ends_are_given(stops: bool) -> None:
    feed, flat = arrays("lstm", layers=1, sides=1)
    feed["state_cell"][0, 1, 1] = np.nan
    told = {**ALONE, "lstm_state_clip_nan": stops}
    free = ran(graph_of("lstm", flat, **told), feed)[0]
    assert np.isnan(free[:, 1]).any()  # without a range the flag is ignored
    results = ran(graph_of("lstm", flat, state_outputs=True, **told, **CLIPS), feed)
    nan = np.isnan(results[2][0]).any(-1)
    assert nan.tolist() == [False, not stops, False]
    if stops:  # as a state far below the range
        feed["state_cell"][0, 1, 1] = -1e30
        right = documented("lstm", feed, flat, layers=1, sides=1, clip=(-0.2, 0.15))
        assert_equal(results, right)


@pytest.mark.parametrize("backend", ["auto", "reference", "onednn", "kernels"])
def test_an_infinite_cell_state_is_clipped_to_its_own_side(backend: str) -> None:
    """No peephole reads it: its product with zero would be no number, and become the minimum."""
    feed, flat = arrays("lstm", layers=1, sides=1)
    clips = {**CLIPS, "lstm_state_clip_nan": True}
    graph = graph_of("lstm", flat, state_outputs=True, **ALONE, **clips)
    found = []
    for start in (np.inf, 1e30):
        feed["state_cell"][0, 1] = start
        found.append(ran(graph, feed, backend))
    for infinite, large in zip(*found, strict=True):
        np.testing.assert_array_equal(infinite, large)


def refused(**attributes: Any) -> str:
    """Why the operator cannot run."""
    mode = "lstm" if attributes.get("mode") == "lstm" else "gru"
    flat = np.zeros(rnn_param_size(mode, C, H, 2, bidirectional=True))
    return reasons(graph_of(**{"mode": "gru", "flat": flat, **attributes}))


@pytest.mark.parametrize(
    "attributes, reason",
    [
        ({"mode": "lstmp"}, "mode='lstmp': expected one of rnn_relu, rnn_tanh, lstm, gru"),
        ({"mode": ""}, "mode='': expected one of"),
        ({"state_size": ""}, "state_size=0"),
        ({"state_size": 0}, "state_size=0"),
        ({"state_size": -2}, "state_size=-2"),
        ({"num_layers": ""}, "num_layers=0"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"num_layers": 1024}, "1 to 1023 layers"),
        ({"state_size": "2.5"}, "attribute state_size: expected an integer, got '2.5'"),
        ({"bidirectional": "both"}, "expected True or False, got 'both'"),
        ({"projection_size": 2}, "projection_size=2: expected None for mode='gru'"),
        ({"mode": "lstm", "projection_size": 0}, "projection_size=0"),
        ({"mode": "lstm", "projection_size": -1}, "projection_size=-1"),
        ({"mode": "lstm", "lstm_state_clip_min": -1}, "lstm_state_clip_max=None: expected two"),
        ({"mode": "lstm", "lstm_state_clip_max": 1}, "lstm_state_clip_min=None, lstm_state"),
        (
            {"mode": "lstm", "lstm_state_clip_min": 2, "lstm_state_clip_max": 1},
            "lstm_state_clip_min=2, lstm_state_clip_max=1: expected",
        ),
        ({"cell": "peephole"}, "attribute cell"),
    ],
    ids=str,
)
def test_what_the_documentation_does_not_allow_is_refused(
    attributes: dict[str, Any], reason: str
) -> None:
    assert reason in refused(**attributes)


SIZES = {  # recorded: the shape of parameters that MXNet 1.9.1 infers, of 5 channels, 3 units
    ("rnn_relu", 1, False, None): 30, ("rnn_relu", 3, True, None): 192,
    ("rnn_tanh", 1, True, None): 60, ("rnn_tanh", 3, False, None): 78,
    ("gru", 1, False, None): 90, ("gru", 1, True, None): 180,
    ("gru", 3, False, None): 234, ("gru", 3, True, None): 576,
    ("lstm", 1, False, None): 120, ("lstm", 3, True, None): 768,
    ("lstm", 1, False, 2): 114, ("lstm", 3, False, 2): 270, ("lstm", 3, True, 2): 636,
    ("lstm", 1, True, 3): 258, ("lstm", 3, True, 7): 1566,
}  # fmt: skip


@pytest.mark.parametrize("told", SIZES, ids=str)
def test_the_vector_has_the_length_that_mxnet_infers(told: Any) -> None:
    mode, layers, both, p = told
    assert rnn_param_size(mode, 5, 3, layers, bidirectional=both, projection_size=p) == SIZES[told]


@pytest.mark.parametrize(
    "arguments, error",
    [
        (("lstmp", 4, 2), UnsupportedError),
        (("gru", 0, 2), ShapeError),
        (("gru", 4.0, 2), ShapeError),
    ],
)
def test_sizes_of_no_operator_are_refused(arguments: tuple[Any, ...], error: type) -> None:
    with pytest.raises(error):
        rnn_param_size(*arguments)


def test_a_vector_of_another_length_is_refused_with_what_was_expected() -> None:
    size = rnn_param_size("gru", C, H, 2, bidirectional=True) + 1
    assert f"got {size} for" in refused(flat=np.zeros(size))
