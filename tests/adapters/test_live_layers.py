"""The layer that runs inside frameworks, on the arrays of MXNet's own layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.oracle import run_oracle

from onernn import ShapeError, UnsupportedError
from onernn.adapters.common.live import Call, LiveLayer, Repacked
from onernn.adapters.mxnet.live_layer import LiveRnn, Options
from onernn.backend import TapeError
from onernn.ir.arrays import Array
from onernn.ir.spec import RnnSpec
from onernn.reorders import mxnet

T, N, I, O = 4, 3, 3, 2  # noqa: E741
LENGTHS = np.array([2, 4, 0], np.int32)


class Case(NamedTuple):
    """A layer, and a call of it. ``weights``: of parameters, for the oracle."""

    layer: LiveLayer
    call: Call
    spec: RnnSpec
    weights: Callable[[Sequence[Array]], Any]

    def expected(self) -> list[Array]:
        """Sequence by sequence, by the oracle."""
        x = self.call.x if self.call.time_major else self.call.x.swapaxes(0, 1)
        lengths = [T] * N if self.call.lengths is None else self.call.lengths.tolist()
        sentences = [x[:length, n] for n, length in enumerate(lengths)]
        states = tuple(s.reshape(self.spec.layers, -1, *s.shape[1:]) for s in self.call.states)
        weights = list(self.weights([array.astype(float) for array in self.call.parameters]))
        outputs, ends = run_oracle(self.spec, weights, sentences, states)
        y = np.zeros((T, N, self.spec.output_size))
        for n, out in enumerate(outputs):
            y[: len(out), n] = out
        y = y if self.call.time_major else y.swapaxes(0, 1)
        return [y, *(end.reshape(-1, *end.shape[2:]) for end in ends)]


def case(
    mode: str,
    dtype: str = "float64",
    *,
    layers: int = 2,
    directions: int = 2,
    seed: int = 3,
    options: Any = (("backend", "reference"),),
    **call: Any,
) -> Case:
    told = {"mode": mode, "state_size": O, "num_layers": layers, "state_outputs": True}
    told["bidirectional"] = directions == 2
    live = LiveRnn({k: str(v) for k, v in told.items()}, Options(**dict(options)))
    layer, spec, shapes = live.layer, live.stack.spec(I), [(live.stack.elements(I),)]

    def weights(parameters: Sequence[Array]) -> Any:
        return mxnet.weights(mxnet.split(parameters[0], live.stack), live.stack)

    rng, state = np.random.default_rng(seed), (layers * directions, N, O)
    given = Call(
        rng.uniform(-1, 1, (T, N, I)).astype(dtype),
        [rng.uniform(-1, 1, state).astype(dtype) for _ in spec.cell.states],
        [rng.uniform(-0.6, 0.6, shape).astype(dtype) for shape in shapes],
    )
    given = given._replace(**call)
    x = given.x if given.time_major else given.x.swapaxes(0, 1).copy()
    return Case(layer, given._replace(x=x), spec, weights)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("time_major", [True, False], ids=["time-major", "batch-major"])
@pytest.mark.parametrize(
    ("backend", "dtype", "rtol", "atol"),
    [
        ("onednn", "float32", 0, 2e-6),
        ("reference", "float32", 0, 2e-6),
        ("reference", "float64", 0, 1e-14),
        ("reference", "float16", 2**-11, 2e-6),  # computed in float32 and rounded once
    ],
)
@pytest.mark.parametrize("mode", mxnet.CELLS)
def test_a_layer_gives_what_its_cell_defines_in_the_type_and_axes_of_its_input(
    mode: str,
    backend: str,
    dtype: str,
    rtol: float,
    atol: float,
    time_major: bool,
    lengths: Array | None,
) -> None:
    options = (("backend", backend),)
    one = case(mode, dtype, options=options, time_major=time_major, lengths=lengths)
    given = [one.call.x, *one.call.states, *one.call.parameters]
    kept = [array.copy() for array in given]
    for got, want in zip(one.layer.run(one.call), one.expected(), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    assert all(map(np.array_equal, given, kept))


def halves(shape: tuple[int, ...]) -> Array:
    """A mask between layers: the same in each run."""
    return np.random.default_rng(len(shape)).integers(0, 2, shape) * 2.0


@pytest.mark.parametrize("mask", [None, halves], ids=["all", "masked"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("mode", mxnet.CELLS)
def test_gradients_are_the_derivatives(
    mode: str, directions: int, lengths: Array | None, mask: Any
) -> None:
    """Central differences in float64: error h**2, rounding 1e-16 / h; relu's kinks are not met."""
    layer, call, *_ = case(mode, directions=directions, lengths=lengths, time_major=directions == 2)
    rng = np.random.default_rng(4)
    outputs, recorded = layer.run_training(call, mask)
    if mask is None:
        assert all(map(np.array_equal, outputs, layer.run(call)))
    else:
        assert np.abs(outputs[0] - layer.run(call)[0]).max() > 1e-3
    heads = [rng.uniform(-1, 1, out.shape) for out in outputs]
    given = [call.x, *call.states, *call.parameters]

    def loss(arrays: Sequence[Array]) -> float:
        count = 1 + len(call.states)
        moved = call._replace(x=arrays[0], states=arrays[1:count], parameters=arrays[count:])
        results, _ = layer.run_training(moved, mask)
        return float(sum((out * head).sum() for out, head in zip(results, heads, strict=True)))

    grads = layer.backward(recorded, heads, call.parameters)
    assert [grad.shape for grad in grads] == [array.shape for array in given]
    for k, grad in enumerate(grads):
        way, step = rng.uniform(-1, 1, grad.shape), 1e-5
        sides = [
            loss([*given[:k], given[k] + sign * step * way, *given[k + 1 :]]) for sign in (1, -1)
        ]
        slope = (sides[0] - sides[1]) / (2 * step)
        assert abs(slope - (grad * way).sum()) <= 1e-6 * max(1, abs(slope)), k


def test_a_result_without_gradient_counts_as_zeros_and_a_tape_serves_once() -> None:
    layer, call, *_ = case("gru", lengths=LENGTHS)
    outputs, recorded = layer.run_training(call)
    whole = layer.backward(
        recorded, [outputs[0], *map(np.zeros_like, outputs[1:])], call.parameters
    )
    with pytest.raises(TapeError, match="used already"):
        layer.backward(recorded, outputs, call.parameters)
    for grads in ([outputs[0]], [outputs[0], *[None] * len(outputs[1:])]):
        _, again = layer.run_training(call)
        assert all(map(np.array_equal, layer.backward(again, grads, call.parameters), whole))


def test_nothing_is_read_behind_the_lengths_and_they_may_change_before_backward() -> None:
    layer, call, *_ = case("gru", lengths=LENGTHS.copy())
    noisy = call.x.copy()
    for n, length in enumerate(LENGTHS):
        noisy[length:, n] = np.nan
    found = []
    for x in (call.x, noisy):
        outputs, recorded = layer.run_training(call._replace(x=x))
        call.lengths[:] = 0  # type: ignore[index]
        found.append(
            [*outputs, *layer.backward(recorded, [np.ones_like(outputs[0])], call.parameters)]
        )
        call.lengths[:] = LENGTHS  # type: ignore[index]
    assert all(map(np.array_equal, *found))
    y, h = found[0][:2]
    assert not y[2:, 0].any() and np.array_equal(h[:, 2], call.states[0][:, 2])


def test_a_batch_of_no_sequences_and_one_of_no_steps() -> None:
    layer, call, *_ = case("gru")
    none = call._replace(x=call.x[:, :0], states=[state[:, :0] for state in call.states])
    assert [out.shape for out in layer.run(none)][:2] == [(T, 0, 2 * O), (4, 0, O)]
    y, *states = layer.run(call._replace(x=call.x[:0]))
    assert y.shape == (0, N, 2 * O) and all(map(np.array_equal, states, call.states))


def test_stacks_are_made_again_only_for_other_numbers_or_other_addresses() -> None:
    packed, call, *_ = case("gru")
    in_place = case("gru", options=(("backend", "kernels"),)).layer
    first, reading = packed.stack(call.parameters), in_place.stack(call.parameters)
    copies = [array.copy() for array in call.parameters]
    assert packed.stack(copies) is first and in_place.stack(copies) is not reading
    for array in call.parameters:
        array.flat[-1] += 1  # in place, as a trainer does it
        second = packed.stack(call.parameters)
        assert second is not first and packed.stack(call.parameters) is second
        assert in_place.stack(call.parameters) is reading
        first = second
    assert packed.stack([array.astype(np.float32) for array in call.parameters]) is not first


def test_what_does_not_belong_together_is_refused_by_name() -> None:
    layer, call, *_ = case("gru")
    wrong: dict[str, dict[str, Any]] = {
        r"state: expected \(4, 3, 2\), got \(4, 2, 2\)": {
            "states": [state[:, :2] for state in call.states]
        },
        r"state: expected \(4, 3, 2\), got \(2, 3, 2\)": {
            "states": [state[:2] for state in call.states]
        },
        r"x: expected \(T, N, 3\)": {"x": call.x[..., :2]},
        "lengths: expected 3": {"lengths": LENGTHS[:2]},
        "lengths: sequence 0 has 9": {"lengths": np.array([9, 1, 1])},
        "fit no input size": {"parameters": [a[:-1] for a in call.parameters][:9]},
    }
    for reason, more in wrong.items():
        with pytest.raises(ShapeError, match=reason):
            layer.run(call._replace(**more))


def test_what_no_backend_trains_is_refused_and_float64_runs_anywhere() -> None:
    wide = case("lstm", options=(("backend", "onednn"),))
    assert wide.layer.run(wide.call)[0].dtype == np.float64
    narrow = case("lstm", "float32", options=(("dtype", "f16"),))
    with pytest.raises(UnsupportedError, match="f16"):
        narrow.layer.run_training(narrow.call)


@pytest.mark.parametrize(
    "options", [{"dtype": "f8"}, {"backend": "cuda"}, {"backend": "onednn", "threads": 0}]
)
def test_options_that_cannot_be_met_are_refused_at_once(options: dict[str, Any]) -> None:
    name, value = list(options.items())[-1]
    with pytest.raises((UnsupportedError, ValueError), match=f"{name}.*{value}"):
        Options(**options)


class Counted:
    """Sums parameters, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, key: str, parameters: Sequence[Array]) -> tuple[str, float]:
        self.calls += 1
        assert not any(each.flags.writeable for each in parameters)  # copies of the caller's
        return key, float(sum(each.sum() for each in parameters))


def test_parameters_count_as_changed_when_a_number_a_shape_or_their_count_does() -> None:
    make, weights, bias = Counted(), np.ones((2, 3)), np.zeros(3)
    packed = Repacked(make)
    assert [packed(key, [weights, bias]) for key in "abab"] == [("a", 6.0), ("b", 6.0)] * 2
    assert packed("a", [weights.copy(), bias.copy()]) == ("a", 6.0) and make.calls == 2
    bias[1] = 4
    assert [packed(key, [weights, bias]) for key in "ab"] == [("a", 10.0), ("b", 10.0)]
    assert packed("a", [weights]) == ("a", 6.0) == packed("a", [weights.reshape(3, 2)])
    assert make.calls == 6


def test_constant_parameters_are_those_of_the_first_call() -> None:
    weights = np.ones(3)
    packed = Repacked(Counted(), constant=True)
    packed("a", [weights])
    weights += 1
    assert [packed(key, given) for key, given in (("a", [weights]), ("b", []))] == [
        ("a", 3.0),
        ("b", 3.0),
    ]


def _writes(parameters: Sequence[Array], seed: int) -> Iterator[None]:
    """Writes to a whole parameter, some neighbours in it, and single numbers, one write a turn."""
    rng = np.random.default_rng(seed)
    for array in parameters:
        flat = array.reshape(-1)
        ends = [(0, flat.size), *((at, at + 1) for at in (0, flat.size // 2, flat.size - 1))]
        for begin in range(0, flat.size, max(1, flat.size // 4)):
            ends.append((begin, begin + max(1, flat.size // 8)))
        for begin, end in ends:
            flat[begin:end] = rng.uniform(-0.6, 0.6, flat[begin:end].shape)
            yield


@pytest.mark.parametrize("backend", ["auto", "kernels", "onednn", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("mode", mxnet.CELLS)
def test_every_call_reads_the_parameters_as_they_are(mode: str, dtype: str, backend: str) -> None:
    if (backend, dtype) == ("onednn", "float64"):
        pytest.skip("oneDNN has no float64")
    one = case(mode, dtype, options=(("backend", backend),))
    off = {"float32": 2e-6, "float64": 1e-14, "float16": 2**-9}[dtype]
    for _ in _writes(one.call.parameters, 3):
        for got, want in zip(one.layer.run(one.call), one.expected(), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=off)


@pytest.mark.parametrize("steps", [1, 3, 60])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("mode", mxnet.CELLS)
def test_weights_that_are_read_in_place_give_the_bits_of_packed_ones(
    mode: str, dtype: str, threads: int, steps: int
) -> None:
    options = {"backend": "kernels", "dtype": dtype, "threads": threads}
    x = np.random.default_rng(1).uniform(-1, 1, (steps, N, I)).astype(np.float32)
    live, frozen = (
        case(mode, "float32", options=tuple({**options, "frozen": frozen}.items()), x=x)
        for frozen in (False, True)
    )
    for _ in range(2):
        results = [each.layer.run(each.call) for each in (live, frozen)]
        assert all(map(np.array_equal, *results))
    for array in live.call.parameters:
        array *= 0.5
    changed = live.layer.run(live.call)
    assert not np.array_equal(changed[0], results[0][0])
    again = frozen.layer.run(frozen.call)
    assert all(map(np.array_equal, again, results[1]))
