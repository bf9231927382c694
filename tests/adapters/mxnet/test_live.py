"""MXNet's RNN operator on arrays, as the plug-in runs it: the layer that all frameworks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from fault_corpus.oracle import mxnet_rnn

from onernn import MissingDependencyError, ShapeError, UnsupportedError
from onernn.adapters.common.live import Repacked
from onernn.adapters.mxnet.live_layer import LINEAR, LiveRnn, Options
from onernn.backend import TapeError
from onernn.ir.arrays import Array
from onernn.reorders import mxnet

T, N, C, H = 5, 3, 4, 2
LENGTHS = {"use_sequence_length": "True"}
PROJECTED = {f"{LINEAR}num_hidden": "3"}
CLIPPED = {"lstm_state_clip_min": "-0.3", "lstm_state_clip_max": "0.25"}


def operator(mode: str = "gru", layers: int = 2, both: bool = True, **more: Any) -> LiveRnn:
    """``more``: attributes, which are text, and options."""
    told = {"mode": mode, "state_size": str(H), "num_layers": str(layers)}
    told |= {"bidirectional": str(both), "state_outputs": "True"}
    names = {"semantics", "dtype", "backend", "threads", "frozen"} & more.keys()
    options = {"backend": "reference", **{name: more.pop(name) for name in names}}
    return LiveRnn({**told, **more}, Options(**options))


def arrays(live: LiveRnn, dtype: str = "float64", steps: int = T) -> dict[str, Array]:
    rng, state = np.random.default_rng(3), (live.stack.layers * live.stack.directions, N, H)
    units = 3 if live.linear else C
    shapes = {"data": (steps, N, C), "parameters": (live.stack.elements(units),)}
    shapes |= dict.fromkeys(live.states, state)
    shapes |= {"linear_weight": (units, C), "linear_bias": (units,)}
    made = {name: rng.uniform(-0.6, 0.6, shape).astype(dtype) for name, shape in shapes.items()}
    made["sequence_length"] = np.array([5, 0, 3], "f4")
    return {name: made[name] for name in live.arguments}


def expected(live: LiveRnn, given: dict[str, Array]) -> list[Array]:
    """What MXNet documents."""
    states, stack = [given[name] for name in live.states], live.stack
    shape: Any = {"size": H, "layers": stack.layers, "directions": stack.directions}
    shape["lengths"] = given.get("sequence_length")
    y, ends = mxnet_rnn(stack.mode, given["data"], given["parameters"], states, **shape)
    return [y, *ends]


@pytest.mark.parametrize("more", [{}, LENGTHS, PROJECTED], ids=["whole", "lengths", "projected"])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("mode", mxnet.CELLS)
def test_gradients_are_the_derivatives(mode: str, both: bool, more: dict[str, str]) -> None:
    """Central differences in float64: error h**2, rounding 1e-16 / h; relu's kinks are not met."""
    live = operator(mode, both=both, **more)
    given, rng = arrays(live), np.random.default_rng(4)
    outputs, recorded = live.run_training(given)
    assert all(map(np.array_equal, outputs, live.run(given)))
    heads = [rng.uniform(-1, 1, out.shape) for out in outputs]
    grads = live.backward(given, recorded, heads)
    assert {k: g.shape for k, g in grads.items()} == {k: a.shape for k, a in given.items()}
    for name, grad in grads.items():
        if name == "sequence_length":
            assert not grad.any()
            continue
        way, step = rng.uniform(-1, 1, grad.shape), 1e-5
        sides = [live.run({**given, name: given[name] + at * way}) for at in (step, -step)]
        losses = [sum((o * h).sum() for o, h in zip(side, heads, strict=True)) for side in sides]
        slope = (losses[0] - losses[1]) / (2 * step)
        assert abs(slope - (grad * way).sum()) <= 1e-6 * max(1, abs(slope)), name


def test_a_tape_serves_once_and_outputs_that_are_left_out_count_as_zeros() -> None:
    live = operator()
    short, given = operator(state_outputs="False"), arrays(live)
    outputs, recorded = live.run_training(given)
    whole = live.backward(given, recorded, [outputs[0], np.zeros_like(outputs[1])])
    with pytest.raises(TapeError):
        live.backward(given, recorded, outputs)
    _, recorded = short.run_training(given)
    found = short.backward(given, recorded, outputs[:1])
    assert all(np.array_equal(found[name], right) for name, right in whole.items())


def test_nothing_is_read_behind_the_lengths_and_they_may_change_before_backward() -> None:
    live = operator(**LENGTHS)
    given = arrays(live)
    noisy, found = given["data"].copy(), []
    for n, length in enumerate([5, 0, 3]):
        noisy[length:, n] = np.nan
    for x in (given["data"], noisy):
        made = {**given, "data": x, "sequence_length": given["sequence_length"].copy()}
        outputs, recorded = live.run_training(made)
        made["sequence_length"][:] = 0
        grads = live.backward(made, recorded, [np.ones_like(out) for out in outputs])
        found.append([*outputs, *grads.values()])
    assert all(map(np.array_equal, *found))
    y, h = found[0][:2]
    assert not y[3:, 2].any() and np.array_equal(h[:, 1], given["state"][:, 1])


def test_a_batch_of_no_sequences_and_one_of_no_steps() -> None:
    live = operator()
    given = arrays(live)
    none = {**given, "data": given["data"][:, :0], "state": given["state"][:, :0]}
    assert [out.shape for out in live.run(none)] == [(T, 0, 2 * H), (4, 0, H)]
    y, state = live.run({**given, "data": given["data"][:0]})
    assert y.shape == (0, N, 2 * H) and np.array_equal(state, given["state"])


def test_stacks_are_made_again_only_for_other_numbers_or_other_addresses() -> None:
    packed, reading = operator(), operator(backend="kernels")
    given = arrays(packed)
    first, place = packed.prepare(given), reading.prepare(given)
    copies = {name: array.copy() for name, array in given.items()}
    assert packed.prepare(copies) is first and reading.prepare(copies) is not place
    given["parameters"][-1] += 1  # in place, as a trainer does it
    second = packed.prepare(given)
    assert second is not first and packed.prepare(given) is second
    assert reading.prepare(given) is place
    assert packed.prepare({"parameters": given["parameters"].astype("f4")}) is not second


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("state", lambda a: a[:, :2]),
        ("state", lambda a: a[:2]),
        ("state", lambda a: a.astype("f4")),
        ("sequence_length", lambda a: a[:2]),
        ("sequence_length", lambda a: a + 9),
        ("parameters", lambda a: a[:-1]),
        ("parameters", lambda a: a[None]),
    ],
)
def test_what_does_not_belong_together_is_refused_by_name(name: str, wrong: Any) -> None:
    live = operator(**LENGTHS)
    given = arrays(live)
    with pytest.raises(ShapeError, match=name.removeprefix("sequence_")):
        live.run({**given, name: wrong(given[name])})
    with pytest.raises(UnsupportedError, match="data: expected .*, got int32"):
        live.run({**given, "data": given["data"].astype(np.int32)})


@pytest.mark.parametrize(
    "options, value",
    [
        ({"dtype": "f8"}, "f8"),
        ({"backend": "cuda"}, "cuda"),
        ({"backend": "onednn", "threads": 0}, "0"),
        ({"semantics": "cpu"}, "cpu"),
    ],
)
def test_options_that_cannot_be_met_are_refused_at_once(options: Any, value: str) -> None:
    with pytest.raises((UnsupportedError, ValueError), match=value):
        Options(**options)


def test_gradients_that_there_are_not_are_refused_with_the_reason() -> None:
    narrow = operator("lstm", backend="auto", dtype="f16")
    given = arrays(narrow, "float32")
    outputs, recorded = narrow.run_training(given)
    with pytest.raises(UnsupportedError, match="f16"):
        narrow.backward(given, recorded, outputs)


# Parameters that change.


def test_parameters_count_as_changed_when_a_number_a_shape_or_their_count_does() -> None:
    calls = list[str]()

    def add_up(key: str, parameters: Sequence[Array]) -> tuple[str, float]:
        calls.append(key)
        assert not any(each.flags.writeable for each in parameters)  # copies of the caller's
        return key, float(sum(each.sum() for each in parameters))

    packed, weights, bias = Repacked(add_up), np.ones((2, 3)), np.zeros(3)
    assert [packed(key, [weights, bias]) for key in "abab"] == [("a", 6.0), ("b", 6.0)] * 2
    assert packed("a", [weights.copy(), bias.copy()]) == ("a", 6.0) and len(calls) == 2
    bias[1] = 4
    assert [packed(key, [weights, bias]) for key in "ab"] == [("a", 10.0), ("b", 10.0)]
    assert packed("a", [weights]) == ("a", 6.0) == packed("a", [weights.reshape(3, 2)])
    assert len(calls) == 6
    constant = Repacked(add_up, constant=True)
    constant("a", [weights])
    assert constant("b", [weights + 1]) == ("b", 6.0)


def _writes(vector: Array) -> Iterator[None]:
    """Writes to all of it, some neighbours, and single numbers, one write a turn."""
    rng, size = np.random.default_rng(3), vector.size
    ends = [(0, size), *((at, at + 1) for at in (0, size // 2, size - 1))]
    ends += [(at, at + size // 8) for at in range(0, size, size // 4)]
    for begin, end in ends:
        vector[begin:end] = rng.uniform(-0.6, 0.6, vector[begin:end].shape)
        yield


@pytest.mark.parametrize("more", [{}, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("backend", ["auto", "kernels", "onednn", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("mode", mxnet.CELLS)
def test_every_call_gives_what_the_cell_defines_with_the_parameters_as_they_are(
    mode: str, dtype: str, backend: str, more: dict[str, str]
) -> None:
    """In the type of its input; float16 is computed in float32 and rounded once."""
    live = operator(mode, backend=backend, **more)
    given = arrays(live, dtype)
    rtol, atol = {"float32": (0, 2e-6), "float64": (0, 1e-14), "float16": (2**-11, 2e-6)}[dtype]
    for _ in _writes(given["parameters"]):
        kept = {name: array.copy() for name, array in given.items()}
        for got, want in zip(live.run(given), expected(live, given), strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        assert all(np.array_equal(given[name], kept[name]) for name in kept)


@pytest.mark.parametrize("steps", [1, 3, 60])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("mode", mxnet.CELLS)
def test_weights_that_are_read_in_place_give_the_bits_of_packed_ones(
    mode: str, dtype: str, threads: int, steps: int
) -> None:
    options: Any = {"backend": "kernels", "dtype": dtype, "threads": threads}
    live, frozen = (operator(mode, **options, frozen=frozen) for frozen in (False, True))
    given = arrays(live, "float32", steps)
    gaps = np.full(2 * given["parameters"].size, np.nan, np.float32)
    gaps[::2] = given["parameters"]
    results = [each.run(given) for each in (live, live, frozen, frozen)]
    results.append(live.run({**given, "parameters": gaps[::2]}))  # a bias with gaps is packed
    for result in results:
        assert all(map(np.array_equal, result, results[0]))
    given["parameters"] *= 0.5
    assert not np.array_equal(live.run(given)[0], results[0][0])
    assert all(map(np.array_equal, frozen.run(given), results[0]))


# What MXNet's operator says.


def test_mxnet_cpu_ignores_lengths_and_dropout() -> None:
    assert operator("lstm", **LENGTHS).only_ours
    plain = operator("lstm", semantics="mxnet-cpu")
    given = arrays(plain)
    want = plain.run(given)
    lengths = {"sequence_length": np.array([5, 1, 3], "f4")}
    for more, also in ((LENGTHS, lengths), ({"p": "0.3"}, {})):
        live = operator("lstm", semantics="mxnet-cpu", **more)
        assert not live.only_ours
        assert all(map(np.array_equal, live.run({**given, **also}), want))


@pytest.mark.parametrize("backend", ["reference", "onednn", "kernels"])
def test_a_nan_that_a_clip_has_stopped_reaches_no_gradient(backend: str) -> None:
    """It trains as a cell state does that is far below the range: neither has a slope."""
    found = []
    for start, stops in ((np.nan, "True"), (-1e30, "True"), (-np.inf, "True"), (np.nan, "False")):
        live = operator("lstm", backend=backend, **CLIPPED, lstm_state_clip_nan=stops)
        given = arrays(live, "float32")
        given["state_cell"][2, 1, 0] = start
        outputs, recorded = live.run_training(given)
        found.append(live.backward(given, recorded, [np.ones_like(out) for out in outputs]))
    stopped, below, infinite, free = found
    for name, right in below.items():
        np.testing.assert_array_equal(stopped[name], right)
        np.testing.assert_array_equal(infinite[name], right)
    assert np.abs(stopped["parameters"]).max() > 0.1 and np.isnan(free["parameters"]).any()


def test_only_documented_dropout_between_layers_counts_and_is_a_part_of_one() -> None:
    with pytest.raises(UnsupportedError, match="p=1"):
        operator(p="1")
    made = operator(p="0.3"), operator(p="0.3", semantics="mxnet-cpu"), operator(layers=1, p="0.3")
    assert [live.drops for live in made] == [True, False, False]


def test_types_are_completed_from_that_of_the_data() -> None:
    live = operator("lstm", **LENGTHS)
    known = {**dict.fromkeys(live.arguments), "data": np.float64, "sequence_length": np.int32}
    types, kinds = live.types(known)
    assert types == {**dict.fromkeys(live.arguments, np.float64), "sequence_length": np.int32}
    assert kinds == [np.float64] * 3


@pytest.mark.skipif(find_spec("mxnet") is not None, reason="mxnet is installed")
def test_without_mxnet_the_plug_in_says_what_to_install() -> None:
    from onernn.adapters.mxnet import optimize, rnn

    with pytest.raises(MissingDependencyError, match=r"onernn\[mxnet\]"):
        optimize(object())
    with pytest.raises(MissingDependencyError, match="numpy 1.23.5"):
        rnn(None, None, None, state_size=1, num_layers=1, mode="gru")
