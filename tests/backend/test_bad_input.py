"""What a caller may get wrong, or odd: a right result, or an error that says what and where."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_close, assert_same, check_layer
from support.gradients import by_name
from support.interpreters import printed
from support.layers import (
    CELLS,
    attention_for,
    prepare_on,
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
everywhere = pytest.mark.parametrize("backend, dtype", DTYPES)
SPEC = RnnSpec(Cell.LSTM, 3, 4, direction="bidirectional_concat")
X = uniform(5, 2, 3)


def prepared(backend: str, spec: RnnSpec = SPEC, **more: Any) -> Any:
    return prepare_on(backend, spec, **more)


def with_values(weights: RnnWeights, name: str, value: float) -> RnnWeights:
    array = getattr(weights, name).copy()
    array.reshape(-1)[1] = value
    return replace(weights, **{name: array})


@both
def test_not_a_number_stays_in_its_sentence(backend: str) -> None:
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
        assert_same(np.isnan(words(y)), np.isnan(words(want)))
        assert np.isnan(words(y)[6:9]).any() and np.isfinite(words(y)[[0, 1, 2, 3, 9]]).all()


H, C = random_state(SPEC, 2, 0)
NARROW, AUGRU = RnnSpec(Cell.LSTM, 3, 4, projection_size=2), RnnSpec(Cell.AUGRU, 3, 4)
LIKE_X = np.ones((5, 2, 1), np.float32)
PAIR = random_ragged([3, 2], 3, 0)
# What is wrong, and the argument and the value that the message names.
RUNS: list[tuple[RnnSpec, Any, str, str]] = [
    *(
        (SPEC, {"x": x}, "x", value)
        for x, value in (
            (np.float32(1), "()"),
            (X[0], "(2, 3)"),
            (X[None], "(1, 5, 2, 3)"),
            (X[..., :2], "(5, 2, 2)"),
            (X[..., :0], "(5, 2, 0)"),
            (Ragged(X[:, 0, :2], [0, 5]), "(5, 2)"),
            (Ragged(X, [0, 5]), "(5, 2, 3)"),
            *((X.astype(kind), np.dtype(kind).name) for kind in ("i8", "f2", "c16", "O", "?")),
            (X.astype(">f4"), ">f4"),
        )
    ),
    (SPEC, {"x": X, "layout": "nct"}, "layout", "'nct'"),
    (SPEC, {"x": X.transpose(2, 0, 1), "layout": "ntc"}, "x", "(3, 5, 2)"),
    *(
        (SPEC, {"x": x, "state": state}, f"state{part}", value)
        for x, state, part, value in (
            (X[:1], (H[..., :3], C), " h", "(1, 2, 2, 3)"),
            (X, (H[..., :3], C), " h", "(1, 2, 2, 3)"),
            (X, (H, C[..., :3]), " c", "(1, 2, 2, 3)"),
            (X, (H,), "", "1 arrays"),
            (X, (H, C, C), "", "3 arrays"),
            (X, (H[:, :, :1], C), " h", "(1, 2, 1, 4)"),
            (X, (H[:, :1], C), " h", "(1, 1, 2, 4)"),
            (X, (np.concatenate([H, H]), C), " h", "(2, 2, 2, 4)"),
            (X, (H[0], C), " h", "(2, 2, 4)"),
            (X, (H, C.astype(int)), " c", "int64"),
        )
    ),
    (NARROW, {"x": X, "state": random_state(NARROW, 2, 0)[::-1]}, "state h", "(1, 1, 2, 4)"),
    (SPEC, {"x": X, "attention": LIKE_X}, "attention", "LSTM"),
    (AUGRU, {"x": X}, "attention", "AUGRU"),
    *(
        (AUGRU, {"x": x, "attention": attention}, "attention", value)
        for x, attention, value in (
            (X, LIKE_X[..., 0], "(5, 2)"),
            (X, LIKE_X.swapaxes(0, 1), "(2, 5, 1)"),
            (X, np.ones((5, 2, 2), np.float32), "(5, 2, 2)"),
            (X, Ragged(LIKE_X[:, 0], [0, 5]), "(5, 1)"),
            (PAIR, LIKE_X[:, 0], "(5, 1)"),
            (PAIR, Ragged(LIKE_X[:4, 0], [0, 2, 4]), "(4, 1)"),
            (PAIR, Ragged(LIKE_X[:, 0], [0, 2, 5]), "offsets"),
            (X, LIKE_X.astype(int), "int64"),
        )
    ),
]


@both
def test_wrong_arguments_of_a_run_are_named(backend: str) -> None:
    for spec, arguments, place, value in RUNS:
        with pytest.raises(ShapeError) as error:
            prepared(backend, spec).run(**arguments)
        assert str(error.value).startswith(f"{place}: ") and value in str(error.value)


def changed(spec: RnnSpec, at: int, **arrays: Any) -> list[RnnWeights]:
    weights = random_weights(spec, 0)
    weights[at] = replace(weights[at], **arrays)
    return weights


def stacked(layers: int) -> RnnWeights:
    (first,) = random_weights(RnnSpec(Cell.GRU, 3, 4), 0)
    return RnnWeights(*(np.repeat(array, layers, 0) for array in (first.layer, first.iter)))


TWO = RnnSpec(Cell.GRU, 3, 4, layers=2)
JOINED = replace(TWO, direction="bidirectional_concat")
ADDED = replace(TWO, direction="bidirectional_sum")
APART = replace(TWO, stacking="onednn")
EVERY = RnnSpec(Cell.LSTM, 3, 4, peephole=True, projection_size=2)
ARRAYS = random_weights(EVERY, 0)[0].arrays
WIDER, DOUBLE = np.zeros((1, 1, 8, 3, 4), np.float32), random_weights(TWO, 0)[1].map(np.float64)
# The guide's conditions on channels that weights can break: a layer reads what the one below gives.
LAYERS: list[tuple[RnnSpec, Any, str, str]] = [
    (TWO, changed(TWO, 1, layer=WIDER), "weights layer", "(1, 1, 8, 3, 4)"),
    (ADDED, changed(ADDED, 1, layer=WIDER.repeat(2, 1)), "weights layer", "(1, 2, 8, 3, 4)"),
    (
        JOINED,
        changed(JOINED, 1, layer=np.zeros((1, 2, 4, 3, 4), "f4")),
        "weights layer",
        "(1, 2, 8",
    ),
    (APART, random_weights(APART, 0), "input_size", "4 channels, got 3"),
    (APART, stacked(2), "input_size", "4 channels, got 3"),
    (TWO, stacked(2), "input_size", "4 channels, got 3"),
    (TWO, [random_weights(TWO, 0)[0], DOUBLE], "weights", "float64"),
    (TWO, random_weights(TWO, 0)[:1], "weights", "got 1"),
    *(
        (EVERY, changed(EVERY, 0, **{name: array[..., :-1]}), f"weights {name}", "(1, 1, ")
        for name, array in ARRAYS.items()
    ),
]


@both
def test_weights_that_do_not_fit_are_named(backend: str) -> None:
    for spec, weights, place, value in LAYERS:
        with pytest.raises(ShapeError) as error:
            prepare_on(backend, spec, weights)
        assert str(error.value).startswith(f"{place}: ") and value in str(error.value)


@both
@pytest.mark.parametrize("name", ARRAYS)
def test_weights_that_are_not_finite_are_refused(backend: str, name: str) -> None:
    for value in (np.nan, np.inf, -np.inf):
        bad = with_values(random_weights(EVERY, 0)[0], name, value)
        with pytest.raises(UnsupportedError, match=rf"weights {name}: .*, 1 of "):
            prepare_on(backend, EVERY, bad)


@pytest.mark.parametrize(
    "backend, dtype", [of for of in DTYPES if of[0] != "kernels" or of[1] == "f32"]
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
        layer = prepare_on(backend, spec, weights, dtype=dtype)
        exact = reference_stack(spec, weights, "f64")
        with np.errstate(invalid="ignore", over="ignore"):
            (y, ends), (want, last) = (each.run(x, None, attention) for each in (layer, exact))
        for got, expected in zip((words(y), *ends), (words(want), *last), strict=True):
            assert_same(np.isnan(got), np.isnan(expected))
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
        assert_same(np.isnan(y), np.isnan(want))


class Untouchable:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"C was called: {name}")


def test_everything_is_checked_before_any_call_of_c() -> None:
    backend: Any = open_backend("onednn")
    layer = prepared("onednn")
    broken = replace(backend.library, lib=Untouchable(), ffi=Untouchable())
    backend.library, layer._stack_kernel._within = broken, broken.threads
    h, c = random_state(SPEC, 2, 0)
    for x, *state in ((X[..., :2],), (X[0],), (X, h[..., :3], c), (X, h, c[..., :3]), (X, h)):
        with pytest.raises(ShapeError):
            layer.run(x, tuple(state) or None)
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
    assert_same(z, y)
    assert_same(ends, final)
    ragged = Ragged(X.reshape(10, 3), [0, 4, 4, 10])
    flat = strided(ragged.data[None])[kind][0]
    again, _ = layer.run(ragged.with_data(flat))
    assert_same(again, layer.run(ragged)[0])
    if dtype == "f32":
        tapes = (layer.run_training(*given)[-1] for given in ((X, state), (odd, odd_state)))
        diffs = ((y, final), (strided(y)[kind], tuple(strided(s)[kind] for s in final)))
        pairs = zip(tapes, diffs, strict=True)
        assert_same(*(by_name(layer.backward(tape, *diff)) for tape, diff in pairs))


@both
def test_weights_may_have_any_strides(backend: str) -> None:
    (good,) = random_weights(SPEC, 0)
    for kind in ("gaps", "negative strides", "fortran", "unaligned"):
        odd = RnnWeights(
            *(strided(a)[kind] for a in (good.layer, good.iter, good.bias) if a is not None)
        )
        layer = prepare_on(backend, SPEC, odd)
        assert_same(layer.run(X)[0], prepared(backend).run(X)[0])


@both
def test_float64_input_is_taken_and_lists_too(backend: str) -> None:
    layer, state = prepared(backend), random_state(SPEC, 2, 1)
    y, _ = layer.run(X, state)
    mixed = (state[0].astype(np.float64), state[1])
    assert_same(layer.run(X.astype(np.float64), mixed)[0], y)
    assert_same(layer.run(X.tolist(), state)[0], y)


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
        assert_same(end, begin)
        assert not np.shares_memory(end, begin)


@both
@pytest.mark.parametrize("cell, more", CELLS)
def test_nothing_is_written_into_the_callers_arrays_nor_shared_with_them(
    backend: str, cell: Cell, more: dict[str, Any]
) -> None:
    spec = RnnSpec(cell, 3, 4, direction="bidirectional_sum", **more)
    weights = random_weights(spec, 0)
    kept = [getattr(w, f.name) for w in weights for f in fields(w)]
    before = [None if a is None else a.copy() for a in kept]
    layer = prepare_on(backend, spec, weights)
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
    assert_same(kept, before)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
def test_weights_written_to_afterwards_change_nothing_of_a_prepared_layer(backend: str) -> None:
    spec = replace(SPEC, layers=2)
    arrays = [{k: a.copy() for k, a in w.arrays.items()} for w in random_weights(spec, 0)]
    weights = [RnnWeights(**each) for each in arrays]
    kept = random_weights(spec, 0)
    layer = prepare_on(backend, spec, weights)
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
    assert printed(code).count("Unable") == 4


@pytest.mark.parametrize("device", ["gpu", "cuda", "GPU"])
def test_other_devices_are_refused_with_the_guides_limits(device: str) -> None:
    with pytest.raises(UnsupportedError, match=f"device '{device}': .*GRU"):
        open_backend("onednn", device=device)
    open_backend("onednn", device="cpu")


def test_the_comparison_of_this_file_can_fail() -> None:
    spec = RnnSpec(Cell.GRU, 3, 4)
    weights, x = random_weights(spec, 0), random_ragged([3, 2], 3, 0)
    layer = prepare_on("onednn", spec, 1)
    with pytest.raises(AssertionError, match="apart"):
        check_layer(layer, spec, weights, x, random_state(spec, 2, 0))
    with pytest.raises(AssertionError, match="apart"):
        assert_close(np.ones(2), np.zeros(2))
