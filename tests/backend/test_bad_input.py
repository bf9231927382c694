"""What a caller may get wrong, or odd: a right result, or an error that says what and where."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields, replace
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from support.checking import assert_close, check_layer
from support.layers import (
    CELLS,
    attention_for,
    random_ragged,
    random_state,
    random_weights,
    words,
)

from onernn import Cell, Ragged, RnnSpec, RnnWeights, ShapeError, UnsupportedError
from onernn.backend import open_backend, reference_stack

BACKENDS = ["reference", "onednn", "kernels"]
pytestmark = pytest.mark.usefixtures("built")
both = pytest.mark.parametrize("backend", BACKENDS)
DTYPES = [
    ("reference", "f32"),
    *((name, dtype) for name in ("onednn", "kernels") for dtype in ("f32", "bf16", "u8")),
]
everywhere = pytest.mark.parametrize(("backend", "dtype"), DTYPES)
SPEC = RnnSpec(Cell.LSTM, 3, 4, direction="bidirectional_concat")
X = np.random.default_rng(0).uniform(-1, 1, (5, 2, 3)).astype(np.float32)


def prepared(backend: str, spec: RnnSpec = SPEC, **more: Any) -> Any:
    return open_backend(backend).prepare(spec, random_weights(spec, 0), **more)


def with_values(weights: RnnWeights, name: str, value: float) -> RnnWeights:
    array = getattr(weights, name).copy()
    array.reshape(-1)[1] = value
    return replace(weights, **{name: array})


@both
class TestX:
    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (np.float32(1), r"x: expected \(T, N, 3\), got \(\)"),
            (X[0], r"x: expected \(T, N, 3\), got \(2, 3\)"),
            (X[None], r"x: expected \(T, N, 3\), got \(1, 5, 2, 3\)"),
            (X[..., :2], r"x: expected \(T, N, 3\), got \(5, 2, 2\)"),
            (X[..., :0], r"x: expected \(T, N, 3\), got \(5, 2, 0\)"),
            (Ragged(X[:, 0, :2], [0, 5]), r"x: expected \(W, 3\), got \(5, 2\)"),
            (Ragged(X, [0, 5]), r"x: expected \(W, 3\), got \(5, 2, 3\)"),
            (X.astype(np.int64), "x: expected float32 numbers, got int64"),
            (X.astype(np.float16), "x: expected float32 numbers, got float16"),
            (X.astype(complex), "x: expected float32 numbers, got complex128"),
            (X.astype(">f4"), "x: expected float32 numbers, got >f4"),
            (X.astype(object), "x: expected float32 numbers, got object"),
            (X > 0, "x: expected float32 numbers, got bool"),
        ],
    )
    def test_rank_channels_and_type_are_named(self, backend: str, x: Any, message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            prepared(backend).run(x)

    def test_an_unknown_layout_is_named(self, backend: str) -> None:
        with pytest.raises(ShapeError, match=r"layout: expected one of .'tnc', 'ntc'., got 'nct'"):
            prepared(backend).run(X, layout="nct")
        with pytest.raises(ShapeError, match=r"x: expected \(N, T, 3\), got \(3, 5, 2\)"):
            prepared(backend).run(X.transpose(2, 0, 1), layout="ntc")

    def test_not_a_number_stays_in_its_sentence(self, backend: str) -> None:
        """Exactly where float64 has it: from its word on, for every cell."""
        for cell, more in CELLS:
            spec = RnnSpec(cell, 3, 4, **more)
            x = random_ragged([4, 5, 3], 3, 0)
            broken = x.with_data(x.data.copy())
            broken.data[6] = [0.5, np.nan, np.inf]
            attention = attention_for(spec, x, 0)
            layer, exact = prepared(backend, spec), prepared("reference", spec, dtype="f64")
            with np.errstate(invalid="ignore", over="ignore"):
                y, _ = layer.run(broken, None, attention)
                want, _ = exact.run(broken, None, attention)
            np.testing.assert_array_equal(np.isnan(words(y)), np.isnan(words(want)))
            assert np.isnan(words(y)[6:9]).any() and np.isfinite(words(y)[[0, 1, 2, 3, 9]]).all()


@pytest.mark.parametrize(
    ("backend", "dtype"), [of for of in DTYPES if of[0] != "kernels" or of[1] == "f32"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
def test_what_is_not_finite_goes_through_a_projected_input(
    backend: str, dtype: str, value: float
) -> None:
    """Infinity saturates a gate, NaN goes on from its unit: both where float64 has them."""
    for cell, more in CELLS:
        spec = RnnSpec(cell, len(cell.gates) * 20, 20, **more)
        weights = random_weights(spec, 0, projected=True)
        x = random_ragged([4, 5, 3], spec.input_size, 0)
        x.data[6, [1, -2]] = value
        attention = attention_for(spec, x, 0)
        layer = open_backend(backend).prepare(spec, weights, dtype=dtype)
        exact = reference_stack(spec, weights, "f64")
        with np.errstate(invalid="ignore", over="ignore"):
            (y, ends), (want, last) = (each.run(x, None, attention) for each in (layer, exact))
        for got, expected in zip((words(y), *ends), (words(want), *last), strict=True):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
            with np.errstate(invalid="ignore"):
                known = np.abs(expected) < 1e30
            np.testing.assert_allclose(got[known], expected[known], rtol=0, atol=3e-2)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_in_the_last_channel_saturates_gates(dtype: str, value: float) -> None:
    """bf16 is multiplied in pairs: the last of three channels has a zero beside it."""
    for cell, more in CELLS:
        spec = RnnSpec(cell, 3, 4, **more)
        x = np.zeros((2, 1, 3), np.float32)
        x[0, 0, -1] = value
        attention = np.ones((2, 1, 1), np.float32) / 2 if cell.has_attention else None
        with np.errstate(invalid="ignore"):
            y, _ = prepared("onednn", spec, dtype=dtype).run(x, None, attention)
            want, _ = prepared("reference", spec, dtype="f64").run(x, None, attention)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(want))


@both
class TestState:
    """src_iter = dst_iter, also where T = 1; src_iter_c = dst_iter_c."""

    @pytest.mark.parametrize("time", [1, 5])
    def test_channels_of_h_are_those_of_dst_iter(self, backend: str, time: int) -> None:
        h, c = random_state(SPEC, 2, 0)
        message = r"state h: expected \(L, D, N, O\) = \(1, 2, 2, 4\), got \(1, 2, 2, 3\)"
        with pytest.raises(ShapeError, match=message):
            prepared(backend).run(X[:time], (h[..., :3], c))

    def test_channels_of_c_are_those_of_dst_iter_c(self, backend: str) -> None:
        h, c = random_state(SPEC, 2, 0)
        message = r"state c: expected \(L, D, N, O\) = \(1, 2, 2, 4\), got \(1, 2, 2, 3\)"
        with pytest.raises(ShapeError, match=message):
            prepared(backend).run(X, (h, c[..., :3]))

    def test_h_of_a_projected_lstm_is_narrow_and_c_is_not(self, backend: str) -> None:
        spec = RnnSpec(Cell.LSTM, 3, 4, projection_size=2)
        h, c = random_state(spec, 2, 0)
        assert (h.shape[-1], c.shape[-1]) == (2, 4)
        with pytest.raises(ShapeError, match=r"state h: .*\(1, 1, 2, 2\), got \(1, 1, 2, 4\)"):
            prepared(backend, spec).run(X, (c, h))

    @pytest.mark.parametrize("number", [1, 3])
    def test_another_number_of_states_is_named(self, backend: str, number: int) -> None:
        h, _ = random_state(SPEC, 2, 0)
        with pytest.raises(ShapeError, match=rf"state: expected \(h, c\), got {number} arrays"):
            prepared(backend).run(X, (h,) * number)

    def test_sentences_layers_and_type_are_named(self, backend: str) -> None:
        h, c = random_state(SPEC, 2, 0)
        for wrong in (h[:, :, :1], h[:, :1], np.concatenate([h, h]), h[0]):
            with pytest.raises(ShapeError, match=r"state h: expected \(L, D, N, O\)"):
                prepared(backend).run(X, (wrong, c))
        with pytest.raises(ShapeError, match="state c: expected float32 numbers, got int64"):
            prepared(backend).run(X, (h, c.astype(np.int64)))


@both
class TestAttention:
    SPEC = RnnSpec(Cell.AUGRU, 3, 4)

    def test_it_must_be_there_where_the_cell_has_it(self, backend: str) -> None:
        with pytest.raises(ShapeError, match="attention: AUGRU needs attention"):
            prepared(backend, self.SPEC).run(X)
        with pytest.raises(ShapeError, match="attention: LSTM takes no attention"):
            prepared(backend).run(X, None, np.ones((5, 2, 1), np.float32))

    def test_it_must_be_like_x(self, backend: str) -> None:
        layer, x = prepared(backend, self.SPEC), random_ragged([3, 2], 3, 0)
        one = np.ones((5, 1), np.float32)
        for given_x, attention in [
            (X, np.ones((5, 2), np.float32)),
            (X, np.ones((2, 5, 1), np.float32)),
            (X, np.ones((5, 2, 2), np.float32)),
            (X, Ragged(one, [0, 5])),
            (x, one),
            (x, Ragged(one[:4], [0, 2, 4])),
        ]:
            with pytest.raises(ShapeError, match=r"attention: expected \(.*1\), like x, got"):
                layer.run(given_x, None, attention)
        with pytest.raises(ShapeError, match="attention: expected the offsets of x, got others"):
            layer.run(x, None, Ragged(one, [0, 2, 5]))
        with pytest.raises(ShapeError, match="attention: expected float32 numbers, got int64"):
            layer.run(X, None, np.ones((5, 2, 1), np.int64))


@both
class TestWeights:
    """The guide's conditions on channels that weights can break, each by its own message."""

    def refused(self, backend: str, spec: RnnSpec, weights: Any, message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            open_backend(backend).prepare(spec, weights)

    @pytest.mark.parametrize("direction", ["left2right", "bidirectional_sum"])
    def test_dst_layer_is_dst_iter(self, backend: str, direction: Any) -> None:
        """One direction and sum: a second layer reads O channels."""
        spec = RnnSpec(Cell.GRU, 3, 4, layers=2, direction=direction)
        first, second = random_weights(spec, 0)
        d = spec.directions
        wide = replace(second, layer=np.zeros((1, d, 8, 3, 4), np.float32))
        message = rf"weights layer: expected \(1, {d}, 4, 3, 4\), got \(1, {d}, 8, 3, 4\)"
        self.refused(backend, spec, [first, wide], message)

    def test_dst_layer_is_twice_dst_iter_where_directions_are_concatenated(
        self, backend: str
    ) -> None:
        spec = RnnSpec(Cell.GRU, 3, 4, layers=2, direction="bidirectional_concat")
        first, second = random_weights(spec, 0)
        narrow = replace(second, layer=np.zeros((1, 2, 4, 3, 4), np.float32))
        message = r"weights layer: expected \(1, 2, 8, 3, 4\), got \(1, 2, 4, 3, 4\)"
        self.refused(backend, spec, [first, narrow], message)

    @pytest.mark.parametrize("as_list", [True, False])
    def test_src_layer_is_dst_layer_where_onednn_stacks(self, backend: str, as_list: bool) -> None:
        spec = RnnSpec(Cell.GRU, 3, 4, layers=2, stacking="onednn")
        one = RnnSpec(Cell.GRU, 3, 4)
        weights: Any = random_weights(spec, 0)
        if not as_list:
            (first,) = random_weights(one, 0)
            weights = RnnWeights(*(np.repeat(a, 2, 0) for a in (first.layer, first.iter)))
        message = (
            "stacking='onednn' needs src_layer = dst_layer in every direction, 4 channels, got 3"
        )
        self.refused(backend, spec, weights, message)

    def test_src_layer_is_dst_layer_in_one_array_of_layers(self, backend: str) -> None:
        (first,) = random_weights(RnnSpec(Cell.GRU, 3, 4), 0)
        stacked = RnnWeights(*(np.repeat(a, 2, 0) for a in (first.layer, first.iter)))
        message = "need src_layer = dst_layer, 4 channels, got 3; give the layers as a list"
        self.refused(backend, RnnSpec(Cell.GRU, 3, 4, layers=2), stacked, message)

    @pytest.mark.parametrize("name", ["layer", "iter", "bias", "peephole", "projection"])
    def test_every_array_is_named(self, backend: str, name: str) -> None:
        spec = RnnSpec(Cell.LSTM, 3, 4, peephole=True, projection_size=2)
        (good,) = random_weights(spec, 0)
        array = getattr(good, name)
        wrong = replace(good, **{name: array[..., :-1]})
        self.refused(backend, spec, wrong, rf"weights {name}: expected \(1, 1, .*\), got \(1, 1, ")
        with pytest.raises(ShapeError, match=f"weights {name}: expected .* axes, got"):
            replace(good, **{name: array[0]})
        if name != "iter":
            with pytest.raises(ShapeError, match=f"weights {name}: expected float32 as weights"):
                replace(good, **{name: array.astype(np.float64)})

    def test_layers_of_two_types_are_refused(self, backend: str) -> None:
        spec = RnnSpec(Cell.GRU, 4, 4, layers=2)
        first, second = random_weights(spec, 0)
        arrays = {f.name: getattr(second, f.name) for f in fields(second)}
        double: Any = {k: None if a is None else a.astype(float) for k, a in arrays.items()}
        self.refused(
            backend, spec, [first, RnnWeights(**double)], "layer 0 is float32, layer 1 is float64"
        )

    def test_another_number_of_layers_is_refused(self, backend: str) -> None:
        spec = RnnSpec(Cell.GRU, 4, 4, layers=2)
        self.refused(
            backend, spec, random_weights(spec, 0)[:1], "weights: expected 2 layers, got 1"
        )

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("name", ["layer", "iter", "bias", "peephole", "projection"])
    def test_what_is_not_finite_is_refused(self, backend: str, name: str, value: float) -> None:
        spec = RnnSpec(Cell.LSTM, 3, 4, peephole=True, projection_size=2)
        (good,) = random_weights(spec, 0)
        bad = with_values(good, name, value)
        size = getattr(bad, name).size
        message = f"weights {name}: expected finite numbers, 1 of {size} are not"
        with pytest.raises(UnsupportedError, match=message):
            open_backend(backend).prepare(spec, bad)


class Untouchable:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"C was called: {name}")


def test_everything_is_checked_before_any_call_of_c() -> None:
    backend: Any = open_backend("onednn")
    layer = prepared("onednn")
    broken = replace(backend.library, lib=Untouchable(), ffi=Untouchable())
    backend.library, layer._stack_kernel._within = broken, broken.threads
    h, c = random_state(SPEC, 2, 0)
    for arguments in [
        (X[..., :2],),
        (X[0],),
        (X, (h[..., :3], c)),
        (X, (h, c[..., :3])),
        (X, (h,)),
    ]:
        with pytest.raises(ShapeError):
            layer.run(*arguments)
    (good,) = random_weights(SPEC, 0)
    for name in ("layer", "iter", "bias"):
        with pytest.raises(ShapeError):
            backend.prepare(SPEC, replace(good, **{name: getattr(good, name)[..., :-1]}))
    with pytest.raises(AssertionError, match="C was called"):  # the test can fail
        backend.prepare(SPEC, good)
    with pytest.raises(AssertionError, match="C was called"):
        layer.run(X)


def strided(array: np.ndarray) -> dict[str, np.ndarray]:
    """The same numbers at other addresses."""
    gaps = np.full((*array.shape[:-1], 2 * array.shape[-1] + 1), np.nan, array.dtype)
    gaps[..., 1::2] = array
    backwards = array[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1]
    padded = np.full(
        (array.shape[0] + 2, array.shape[1] + 1, *array.shape[2:]), np.nan, array.dtype
    )
    padded[1:-1, :-1] = array
    return {
        "gaps": gaps[..., 1::2],
        "negative strides": backwards,
        "fortran": np.asfortranarray(array),
        "padded": padded[1:-1, :-1],
        "unaligned": np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
        .view(array.dtype)
        .reshape(array.shape),
        "read-only": np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    }


@everywhere
@pytest.mark.parametrize("kind", list(strided(X)))
def test_arrays_may_have_any_strides(backend: str, dtype: str, kind: str) -> None:
    layer = prepared(backend, dtype=dtype)
    state = random_state(SPEC, 2, 1)
    y, final = layer.run(X, state)
    odd = strided(X)[kind]
    odd_state = tuple(strided(s)[kind] for s in state)
    z, ends = layer.run(odd, odd_state)
    np.testing.assert_array_equal(z, y)
    for got, want in zip(ends, final, strict=True):
        np.testing.assert_array_equal(got, want)
    ragged = Ragged(X.reshape(10, 3), [0, 4, 4, 10])
    flat = strided(ragged.data[None])[kind][0]
    again, _ = layer.run(ragged.with_data(flat))
    np.testing.assert_array_equal(words(again), words(layer.run(ragged)[0]))


@both
def test_weights_may_have_any_strides(backend: str) -> None:
    (good,) = random_weights(SPEC, 0)
    for kind in ("gaps", "negative strides", "fortran", "unaligned"):
        odd = RnnWeights(
            *(strided(a)[kind] for a in (good.layer, good.iter, good.bias) if a is not None)
        )
        layer = open_backend(backend).prepare(SPEC, odd)
        np.testing.assert_array_equal(layer.run(X)[0], prepared(backend).run(X)[0])


@both
def test_float64_input_is_taken_and_lists_too(backend: str) -> None:
    layer, state = prepared(backend), random_state(SPEC, 2, 1)
    y, _ = layer.run(X, state)
    mixed = (state[0].astype(np.float64), state[1])
    np.testing.assert_array_equal(layer.run(X.astype(np.float64), mixed)[0], y)
    np.testing.assert_array_equal(layer.run(X.tolist(), state)[0], y)


@everywhere
@pytest.mark.parametrize(
    "x",
    [
        np.zeros((0, 2, 3), np.float32),
        np.zeros((4, 0, 3), np.float32),
        np.zeros((0, 0, 3), np.float32),
        Ragged(np.zeros((0, 3), np.float32), [0]),
        Ragged(np.zeros((0, 3), np.float32), [0, 0, 0]),
    ],
    ids=["T=0", "N=0", "T=N=0", "no sentences", "empty sentences"],
)
def test_nothing_gives_nothing_and_keeps_the_state(backend: str, dtype: str, x: Any) -> None:
    sentences = len(x) if isinstance(x, Ragged) else x.shape[1]
    state = random_state(SPEC, sentences, 1)
    y, final = prepared(backend, dtype=dtype).run(x, state)
    assert words(y).shape == (*words(x).shape[:-1], 8) and words(y).dtype == np.float32
    for end, begin in zip(final, state, strict=True):
        np.testing.assert_array_equal(end, begin)
        assert not np.shares_memory(end, begin)


@both
@pytest.mark.parametrize(("cell", "more"), CELLS)
def test_nothing_is_written_into_the_callers_arrays_nor_shared_with_them(
    backend: str, cell: Cell, more: dict[str, Any]
) -> None:
    spec = RnnSpec(cell, 3, 4, direction="bidirectional_sum", **more)
    weights = random_weights(spec, 0)
    kept = [getattr(w, f.name) for w in weights for f in fields(w)]
    before = [None if a is None else a.copy() for a in kept]
    layer = open_backend(backend).prepare(spec, weights)
    for lengths in ([1], [3, 0, 2]):
        x = random_ragged(lengths, 3, 0)
        state = random_state(spec, len(lengths), 1)
        attention = attention_for(spec, x, 2)
        check_layer(layer, spec, weights, x, state, attention)  # compares the arguments, too
        y, final = layer.run(x, state, attention)
        results = [words(y), *final]
        assert all(r.flags.writeable for r in results)
        for r in results:
            r[...] = np.nan  # the results are the caller's: nobody else reads them
        check_layer(layer, spec, weights, x, state, attention)
    for array, old in zip(kept, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
def test_weights_written_to_afterwards_change_nothing_of_a_prepared_layer(backend: str) -> None:
    spec = replace(SPEC, layers=2)
    arrays = [{k: a.copy() for k, a in w.arrays.items()} for w in random_weights(spec, 0)]
    weights = [RnnWeights(**each) for each in arrays]
    kept = random_weights(spec, 0)
    layer = open_backend(backend).prepare(spec, weights)
    for each in arrays:
        for array in each.values():
            array[...] = 7.0
    weights[:] = [with_values(each, "iter", 7.0) for each in weights]
    for other in (layer, pickle.loads(pickle.dumps(layer))):
        for lengths in ([1], [5] * 2, [3, 0, 2], [4] * 40):
            x = random_ragged(lengths, 3, 0)
            check_layer(other, spec, kept, x, random_state(spec, len(lengths), 1), None)
        expected, *_ = other.run(X)
        got, *_ = other.run_training(X)
        assert_close(got, expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_a_request_for_eight_gigabytes_on_four_is_an_error(dtype: str) -> None:
    """An 8 GB output, an 8 GB input, and 8 GB between two layers: MemoryError, and work goes on."""
    code = f"""
    import resource
    import numpy as np
    from onernn import Cell, Ragged, RnnSpec, RnnWeights
    from onernn.backend import open_backend

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    def attempt(inputs, hidden, ragged):
        arrays = [np.zeros((1, 1, n, 4, hidden), np.float32) for n in (inputs, hidden)]
        layer = open_backend("onednn", threads=1).prepare(
            RnnSpec(Cell.LSTM, inputs, hidden), RnnWeights(*arrays), dtype="{dtype}"
        )
        x = np.broadcast_to(np.float32(0), (1_000_000, 1, inputs))
        try:
            layer.run(Ragged(x[:, 0], [0, len(x)]) if ragged else x)
        except MemoryError as error:
            print(error)
        layer.run(x[:3])

    for ragged in (False, True):
        attempt(1, 2000, ragged)
        attempt(2000, 1, ragged)
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == 4 and all("Unable to allocate" in line for line in told)


@pytest.mark.parametrize("device", ["gpu", "cuda", "GPU"])
def test_other_devices_are_refused_with_the_guides_limits(device: str) -> None:
    with pytest.raises(UnsupportedError, match="no GRU, no peephole and no projection"):
        open_backend("onednn", device=device)
    open_backend("onednn", device="cpu")


def test_the_comparison_of_this_file_can_fail() -> None:
    spec = RnnSpec(Cell.GRU, 3, 4)
    weights, x = random_weights(spec, 0), random_ragged([3, 2], 3, 0)
    layer = open_backend("onednn").prepare(spec, random_weights(spec, 1))
    with pytest.raises(AssertionError, match="apart"):
        check_layer(layer, spec, weights, x, random_state(spec, 2, 0))
    with pytest.raises(AssertionError, match="apart"):
        assert_close(np.ones(2), np.zeros(2))
