"""Our kernels as a backend: right for every cell, the same bits in any batch, refused clearly."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checking import assert_close
from support.layers import DIRECTIONS, attention_for, random_ragged, random_state, random_weights

from onernn import Activation, Cell, Ragged, RnnSpec, RnnWeights, Session, UnsupportedError, load
from onernn.backend import open_backend, reference_stack
from onernn.backend.compiled import library
from onernn.kernels import build

ISAS = list(build.isas())
# Panels that are not full, one, two and four side by side.
SPECS = {
    "rnn": RnnSpec(Cell.RNN_TANH, 3, 50, layers=2),
    "relu": RnnSpec(Cell.RNN_RELU, 5, 64),
    "sigmoid": RnnSpec(Cell.RNN_SIGMOID, 1, 16),
    "gru": RnnSpec(Cell.GRU, 21, 51),
    "gru wide": RnnSpec(Cell.GRU, 16, 64, layers=3),
    "gru replaces": RnnSpec(Cell.GRU, 5, 33, update="replace", gate_clip=0.5),
    "lbr": RnnSpec(Cell.LBR_GRU, 5, 33, layers=2),
    "augru": RnnSpec(Cell.AUGRU, 6, 19),
    "lbr augru": RnnSpec(Cell.LBR_AUGRU, 5, 19, layers=2, update="replace"),
    "lstm": RnnSpec(Cell.LSTM, 7, 19, layers=2),
    "lstm with all": RnnSpec(
        Cell.LSTM, 7, 18, layers=2, projection_size=7, peephole=True, cell_clip=(-0.2, 0.3),
        cell_clip_nan=True, gate_clip=0.8,
    ),
    "lstm coupled": RnnSpec(
        Cell.LSTM, 4, 5, input_forget=True,
        activations=(Activation("hardsigmoid", 0.2, 0.5), Activation("elu"), Activation("relu")),
    ),
    "lstm apart": RnnSpec(Cell.LSTM, 7, 18, layers=3, projection_size=7, stacking="onednn"),
    "lstm open": RnnSpec(
        Cell.LSTM, 4, 20, activations=("softsign", "softplus", Activation("scaledtanh", 0.9, 1.1)),
        gate_clip=1.0,
    ),
}  # fmt: skip
LENGTHS = [40, 0, 3, 1, 17, 2, 3, 9, 9, 1, 0]

pytestmark = pytest.mark.usefixtures("built")


def prepared(spec: RnnSpec, weights: Any, threads: int = 1, dtype: str = "f32") -> Any:
    layer = open_backend("kernels", threads=threads).prepare(
        spec, weights, dtype=dtype, strict=True
    )
    assert layer.backend == "kernels"
    return layer


def rounded(weights: list[RnnWeights], dtype: str) -> list[RnnWeights]:
    """Matrices as they are stored, in float64."""

    def matrix(array: Any) -> Any:
        if array is None or dtype == "f32":
            return array
        if dtype == "f16":
            return array.astype(np.float16).astype(np.float64)
        # To 8 bits behind the first one: ties to even, as NumPy's own rounding has it.
        mantissa, exponent = np.frexp(array.astype(np.float64))
        return np.ldexp(np.round(mantissa * 256) / 256, exponent)

    def wide(array: Any) -> Any:
        return None if array is None else array.astype(np.float64)

    return [
        RnnWeights(
            *map(wide, (matrix(w.layer), matrix(w.iter), w.bias, w.peephole, matrix(w.projection)))
        )
        for w in weights
    ]


def check(made: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for got, expected in zip((made[0], *made[1]), (want[0], *want[1]), strict=True):
        if isinstance(expected, Ragged):
            assert got.lod == expected.lod
            got, expected = got.data, expected.data
        assert_close(got, expected, rtol, atol)


def same(made: Any, want: Any) -> None:
    """The same bits."""
    for got, expected in zip((made[0], *made[1]), (want[0], *want[1]), strict=True):
        got, expected = (a.data if isinstance(a, Ragged) else a for a in (got, expected))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", SPECS)
def test_layers_are_right_on_every_instruction_set(isa: str, name: str, dtype: str) -> None:
    rounds = dtype == "bf16" and isa == "avx512_bf16"  # inputs and states, too: design/0020
    rtol = 2e-2 if rounds else 1e-5
    for direction in DIRECTIONS:
        spec = replace(SPECS[name], direction=direction)
        weights = random_weights(spec, 3)
        layer = prepared(spec, weights, dtype=dtype)
        exact = reference_stack(spec, rounded(weights, dtype), "f64")
        for lengths in (LENGTHS, [2], [], [5, 5, 5, 5]):  # the room grows, and stays
            x, state = (
                random_ragged(lengths, spec.input_size, 1),
                random_state(spec, len(lengths), 2),
            )
            attention = attention_for(spec, x, 5)
            check(layer.run(x, state, attention), exact.run(x, state, attention), rtol)


@pytest.mark.parametrize("name", ["gru", "lstm with all", "rnn", "lbr augru"])
def test_float64_models_stay_float64(isa: str, name: str) -> None:
    spec = replace(SPECS[name], direction="bidirectional_concat")
    weights = rounded(random_weights(spec, 3), "f32")
    layer, exact = prepared(spec, weights), reference_stack(spec, weights, "f64")
    x, state = random_ragged(LENGTHS, spec.input_size, 1), random_state(spec, len(LENGTHS), 2)
    x = x.with_data(x.data.astype(np.float64))
    made = layer.run(x, state, attention_for(spec, x, 5))
    assert made[0].data.dtype == np.float64 and layer.dtype == "f64"
    check(made, exact.run(x, state, attention_for(spec, x, 5)), 1e-12, 1e-13)


@pytest.mark.parametrize("projected", [(True, True), (True, False), (False, True)])
def test_any_layer_may_have_an_input_that_is_projected_already(projected: tuple[bool]) -> None:
    spec = RnnSpec(Cell.RNN_TANH, 18, 18, layers=2)
    weights = [
        replace(one, layer=None) if is_projected else one
        for one, is_projected in zip(random_weights(spec, 1), projected, strict=True)
    ]
    x = random_ragged([3, 0, 6], spec.input_size, 2)
    for dtype, rtol in (("f32", 1e-5), ("bf16", 2e-2)):
        exact = reference_stack(spec, rounded(weights, dtype), "f64")
        check(prepared(spec, weights, dtype=dtype).run(x), exact.run(x), rtol)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ["gru wide", "lbr augru", "lstm with all", "rnn"])
def test_a_sentence_has_the_same_bits_alone_in_any_batch_and_on_two_threads(
    isa: str, name: str, dtype: str
) -> None:
    spec = replace(SPECS[name], direction="bidirectional_concat")
    weights = random_weights(spec, 3)
    layer = prepared(spec, weights, dtype=dtype)
    x, state = random_ragged(LENGTHS, spec.input_size, 1), random_state(spec, len(LENGTHS), 2)
    attention = attention_for(spec, x, 5)
    y, final = layer.run(x, state, attention)
    same(prepared(spec, weights, 2, dtype).run(x, state, attention), (y, final))
    for n, (begin, end) in enumerate(zip(x.offsets[:-1], x.offsets[1:], strict=True)):
        alone = Ragged(x.data[begin:end], [0, end - begin])
        scale = None if attention is None else alone.with_data(attention.data[begin:end])
        own = layer.run(alone, tuple(s[:, :, n : n + 1] for s in state), scale)
        same(own, (y.data[begin:end], [s[:, :, n : n + 1] for s in final]))


@pytest.mark.parametrize("name", ["gru", "augru", "lstm apart"])
def test_tnc_ntc_and_strided_batches_have_the_same_bits(name: str) -> None:
    spec = SPECS[name]
    layer = prepared(spec, random_weights(spec, 3))
    ragged = random_ragged([6] * 4, spec.input_size, 1)
    state, attention = random_state(spec, 4, 2), attention_for(spec, ragged, 5)
    y, final = layer.run(ragged, state, attention)
    ntc = ragged.data.reshape(4, 6, -1)
    scale = None if attention is None else attention.data.reshape(4, 6, 1)
    turned = None if scale is None else scale.swapaxes(0, 1)
    want = y.data.reshape(4, 6, -1)
    same(layer.run(ntc, state, scale, "ntc"), (want, final))
    wide = np.repeat(ntc, 2, axis=2)
    views = {
        "ntc": ntc.swapaxes(0, 1),
        "tnc": np.ascontiguousarray(ntc.swapaxes(0, 1)),
        "strided": wide[..., ::2].swapaxes(0, 1),
        "padded": np.pad(ntc, ((0, 0), (0, 3), (0, 0)))[:, :6].swapaxes(0, 1),
        "reversed": np.ascontiguousarray(ntc[:, ::-1]).swapaxes(0, 1)[::-1],
        "float64": ntc.astype(np.float64).swapaxes(0, 1),
    }
    for which, x in views.items():
        before = x.copy()
        got, ends = layer.run(x, state, turned)
        assert got.flags.c_contiguous, which
        same((got, ends), (want.swapaxes(0, 1), final))
        np.testing.assert_array_equal(x, before)
    backwards = Ragged(wide[..., ::2].reshape(24, -1)[::-1], ragged.offsets)
    same(
        layer.run(backwards, state, attention),
        layer.run(backwards.with_data(backwards.data.copy()), state, attention),
    )


@pytest.mark.parametrize("kind", ["fortran", "strided", "reversed", "unaligned", "float64"])
def test_states_may_lie_as_they_like(kind: str) -> None:
    spec = SPECS["gru"]
    layer = prepared(spec, random_weights(spec, 3))
    (h,) = random_state(spec, 2, 2)
    given = {
        "fortran": np.asfortranarray(h),
        "strided": np.repeat(h, 2, axis=3)[..., ::2],
        "reversed": h[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
        "unaligned": np.frombuffer(b"-" + h.tobytes(), np.uint8)[1:].view("f4").reshape(h.shape),
        "float64": h.astype(np.float64),
    }[kind]
    for x in (random_ragged([3, 2], 21, 1), np.ones((4, 2, 21), np.float32)):
        same(layer.run(x, (given,)), layer.run(x, (h,)))
        same(layer.run(x, [given]), layer.run(x, (h,)))
    np.testing.assert_array_equal(given, h)  # as it was


@pytest.mark.parametrize("shape", [(0, 3), (5, 0), (0, 0), (1 << 40, 0)])
def test_no_words_and_no_sentences_are_fine(shape: tuple[int, int]) -> None:
    spec = replace(SPECS["lstm"], direction="bidirectional_sum")
    layer = prepared(spec, random_weights(spec, 3))
    state = random_state(spec, shape[1], 1)
    y, final = layer.run(np.empty((*shape, 7), np.float32), state)
    assert y.shape == (*shape, 19)
    for got, expected in zip(final, state, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_nothing_is_shared_with_the_caller() -> None:
    """Weights may go, results stay, states come out in arrays of their own."""
    spec = SPECS["gru wide"]
    weights = random_weights(spec, 3)
    layer, exact = prepared(spec, weights), reference_stack(spec, weights, "f64")
    x, state = random_ragged([3, 2], 16, 1), random_state(spec, 2, 2)
    want = exact.run(x, state)
    del weights
    gc.collect()
    first = layer.run(x, state)
    kept = [first[0].data.copy(), *(s.copy() for s in first[1])]
    check(first, want)
    layer.run(x.with_data(-x.data), first[1])
    same(first, (kept[0], kept[1:]))
    assert not any(np.shares_memory(a, b) for a in first[1] for b in state)


def test_two_python_threads_share_a_layer() -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 3)
    batches = [random_ragged([length, 3], 21, length) for length in range(1, 65)]
    for threads in (1, 2):
        layer = prepared(spec, weights, threads)
        want = [layer.run(x) for x in batches]
        with ThreadPoolExecutor(4) as pool:
            for made, expected in zip(pool.map(layer.run, batches), want, strict=True):
                same(made, expected)


def test_layers_come_and_go() -> None:
    """The process's team ends with the last of them."""
    code = """
import os, numpy as np
from onernn import Cell, RnnSpec, RnnWeights
from onernn.backend import open_backend
spec = RnnSpec(Cell.GRU, 4, 16)
weights = RnnWeights(*(np.zeros(s, np.float32) for s in ((1, 1, 4, 3, 16), (1, 1, 16, 3, 16))))
backend = open_backend("kernels", threads=2)
for turn in range(200):
    layer = backend.prepare(spec, weights)
    layer.run(np.zeros((2, 2, 4), np.float32))
    if turn == 20: before = len(os.listdir("/proc/self/task"))
# One that has ended is listed for a moment; 179 would be if they stayed.
assert len(os.listdir("/proc/self/task")) < before + 20, os.listdir("/proc/self/task")
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout == "fine\n", done.stderr


def test_activations_have_their_default_numbers() -> None:
    """Without alpha and beta of their own, as the reference has them."""
    names = ["leakyrelu", "hardsigmoid", "elu"]
    spec = RnnSpec(Cell.LSTM, 4, 5, activations=tuple(map(Activation, names)))
    weights, x = random_weights(spec, 3), random_ragged([3, 2], 4, 1)
    check(prepared(spec, weights).run(x), reference_stack(spec, weights, "f64").run(x))
    for name in ("affine", "thresholdedrelu"):
        open_ended = RnnSpec(Cell.RNN_TANH, 4, 5, activations=(Activation(name),))
        with pytest.raises(UnsupportedError, match="no default alpha"):
            open_backend("kernels").prepare(open_ended, random_weights(open_ended, 0))


def test_what_kernels_do_not_run_is_refused_or_goes_to_the_reference() -> None:
    spec = RnnSpec(Cell.LSTM, 4, 3, peephole=True)
    weights = random_weights(spec, 0)
    backend = open_backend("kernels")
    shifted: Any = {"dtype": "u8", "data_scale": 1.0, "data_shift": 0.5}
    with pytest.raises(UnsupportedError, match="whole number as data_shift; drop strict=True"):
        backend.prepare(spec, weights, strict=True, **shifted)
    layer = backend.prepare(spec, weights, **shifted)
    why = "kernels run u8 with a whole number as data_shift"
    assert (layer.backend, layer.why) == ("reference", why)
    with pytest.raises(UnsupportedError, match="dtype 'f8': expected one of f32, bf16"):
        backend.prepare(spec, weights, dtype="f8")
    large = [weights[0].mapped(lambda array: array * 1e6)]
    with pytest.raises(UnsupportedError, match="f16: a weight of .* is beyond 65504; use bf16"):
        backend.prepare(spec, large, dtype="f16", strict=True)
    assert backend.prepare(spec, large, dtype="bf16").backend == "kernels"


def test_a_session_says_what_runs(isa: str, data: Path) -> None:
    model = load(data / "paddle" / "fc_gru_h0_rev0")
    assert Session(model, backend="kernels").explain().endswith(f", f32, kernels {isa}")
    said = Session(model, backend="kernels", dtype="bf16").explain()
    assert ("matrices widened to f32" in said) == (isa != "avx512_bf16")


def test_what_c_does_not_know_is_a_status() -> None:
    kernels = library.load_kernels()
    ffi, lib = kernels.ffi, kernels.lib
    made, parts = ffi.new("onernn_stack **"), ffi.new("onernn_part[1]")
    for fields in ({"cell": 4}, {"cell": -1}, {"stored": 9}, {"gate": {"kind": 12}}):
        spec = ffi.new("onernn_spec *", fields)
        assert lib.onernn_stack_new(spec, parts, ffi.NULL, 1, made) == lib.ONERNN_UNKNOWN
    lib.onernn_stack_free(ffi.NULL)


def test_nothing_of_it_is_imported_before_it_is_asked_for() -> None:
    script = "import onernn, sys; print({'cffi', 'onernn.backend.compiled'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
