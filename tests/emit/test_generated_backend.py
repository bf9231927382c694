"""Generated code as a backend: right for every cell, compiled once, refused clearly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checking import assert_close
from support.emitting import compiler
from support.layers import attention_for, random_ragged, random_state, random_weights

from onernn import (
    Activation,
    Cell,
    LibraryError,
    Ragged,
    RnnSpec,
    Session,
    ShapeError,
    UnsupportedError,
    load,
)
from onernn.backend import open_backend, reference_stack
from onernn.emit import backend as generated
from onernn.emit.compiling import compiled

# One compilation each: what the kernels' own tests leave out.
SPECS = {
    "augru": RnnSpec(Cell.LBR_AUGRU, 5, 19, layers=2, direction="bidirectional_sum"),
    "onednn": RnnSpec(
        Cell.LSTM, 7, 18, layers=2, direction="bidirectional_concat", projection_size=7,
        stacking="onednn", cell_clip=(-0.2, 0.3), gate_clip=0.8,
    ),
    "gru": RnnSpec(
        Cell.GRU, 6, 33, activations=(Activation("hardsigmoid", 0.2, 0.5), Activation("tanh"))
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own, and plain code: it compiles faster."""
    compiler()
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr("onernn.emit.compiling.FLAGS", ("-std=c++17", "-O0", "-shared", "-fPIC"))
        yield folder / "onernn"


def layer_of(spec: RnnSpec, weights: Any, **more: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generated, "faster", lambda *_: True)
        layer = open_backend("generated").prepare(spec, weights, **more)
    assert layer.backend == "generated", layer.why
    assert layer.kernel == "generated C++"
    return layer


@pytest.mark.parametrize("name", SPECS)
def test_layers_are_right_ragged_and_dense_again_and_again(name: str) -> None:
    spec = SPECS[name]
    weights = random_weights(spec, 3)
    layer, exact = layer_of(spec, weights), reference_stack(spec, weights, "f64")
    for lengths in ([3, 0, 7, 1], [2], [], [9, 40, 1, 1, 2]):  # the room grows, and stays
        x = random_ragged(lengths, spec.input_size, 1)
        state = random_state(spec, len(lengths), 2)
        attention = attention_for(spec, x, 5)
        check(layer.run(x, state, attention), exact.run(x, state, attention))
    dense = np.random.default_rng(0).uniform(-1, 1, (4, 3, spec.input_size)).astype(np.float32)
    scale = dense[..., :1] * 0.5 if spec.cell.has_attention else None
    check(layer.run(dense, None, scale), exact.run(dense, None, scale))
    turned = None if scale is None else scale.swapaxes(0, 1)
    check(
        layer.run(dense.swapaxes(0, 1), None, turned, "ntc"),
        exact.run(dense.swapaxes(0, 1), None, turned, "ntc"),
    )


@pytest.mark.parametrize("kind", ["fortran", "strided", "reversed", "unaligned", "float64"])
def test_states_may_lie_as_they_like(kind: str) -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 3)
    x = random_ragged([3, 2], spec.input_size, 1)
    (h,) = random_state(spec, 2, 2)
    given = {
        "fortran": np.asfortranarray(h),
        "strided": np.repeat(h, 2, axis=3)[..., ::2],
        "reversed": h[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
        "unaligned": np.frombuffer(b"-" + h.tobytes(), np.uint8)[1:].view("f4").reshape(h.shape),
        "float64": h.astype(np.float64),
    }[kind]
    made, want = (
        layer_of(spec, weights).run(x, (given,)),
        reference_stack(spec, weights).run(x, (h,)),
    )
    check(made, want)
    np.testing.assert_array_equal(given, h)  # as it was


def test_activations_have_their_default_numbers() -> None:
    """Without alpha and beta of their own, as the reference has them."""
    names = ["leakyrelu", "hardsigmoid", "elu"]
    spec = RnnSpec(Cell.LSTM, 4, 5, activations=tuple(map(Activation, names)))
    weights, x = random_weights(spec, 3), random_ragged([3, 2], 4, 1)
    check(layer_of(spec, weights).run(x), reference_stack(spec, weights).run(x))
    for name, why in [("affine", "no default alpha"), ("thresholdedrelu", "no default alpha")]:
        open_ended = RnnSpec(Cell.RNN_TANH, 4, 5, activations=(Activation(name),))
        with pytest.raises(UnsupportedError, match=why):
            open_backend("generated").prepare(open_ended, random_weights(open_ended, 0))


@pytest.mark.parametrize("variable", ["ONERNN_DNNL_LIBRARY", "ONEDNN_MAX_CPU_ISA"])
def test_a_wish_that_cannot_be_followed_is_refused(variable: str) -> None:
    code = "import onernn.emit.backend\nonernn.emit.backend.GeneratedBackend(1)"
    environment = os.environ | {variable: "/no/such/thing"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert f"LibraryError: {variable}=/no/such/thing: " in done.stderr


def check(made: Any, want: Any) -> None:
    for got, expected in zip((made[0], *made[1]), (want[0], *want[1]), strict=True):
        if isinstance(expected, Ragged):
            assert got.lod == expected.lod
            got, expected = got.data, expected.data
        assert got.shape == expected.shape and got.dtype == np.float32
        assert_close(got, expected)


def test_one_spec_is_compiled_once_and_its_weights_do_not_matter(cache: Path) -> None:
    spec = SPECS["gru"]
    before = {file: file.stat().st_mtime_ns for file in cache.glob("*.so")}
    one, other = (layer_of(spec, random_weights(spec, seed)) for seed in (1, 2))
    after = {file: file.stat().st_mtime_ns for file in cache.glob("*.so")}
    assert len(after) <= len(before) + 1 and before.items() <= after.items()
    x = random_ragged([4], spec.input_size, 0)
    assert np.abs(one.run(x)[0].data - other.run(x)[0].data).max() > 1e-3
    layer_of(spec, random_weights(spec, 1), dtype="bf16")
    assert len(list(cache.glob("*.so"))) == len(after) + 1
    assert all(file.suffix == ".so" for file in cache.iterdir() if file.name.startswith("layer"))


def test_threads_share_a_layer(cache: Path) -> None:
    spec = SPECS["gru"]
    weights = random_weights(spec, 3)
    layer, exact = layer_of(spec, weights), reference_stack(spec, weights, "f64")
    batches = [random_ragged([length, 3], spec.input_size, length) for length in range(1, 25)]
    with ThreadPoolExecutor(4) as pool:
        for made, x in zip(pool.map(layer.run, batches), batches, strict=True):
            check(made, exact.run(x))


def test_a_session_says_what_runs_where_and_why(data: Path) -> None:
    small = Session(load(data / "paddle" / "fc_gru_h0_rev0"), backend="generated")
    few = "oneDNN.* for some small batches"
    assert re.search(rf"GRU .*, f32, generated C\+\+; {few}", small.explain())
    relu = Session(load(data / "paddle" / "relu_candidate"), backend="generated")
    assert "GRU left2right, f32, generated C++" in relu.explain()
    prepare = open_backend("generated").prepare
    augru = RnnSpec(Cell.AUGRU, 2, 3)
    why = prepare(augru, random_weights(augru, 0), strict=True).why
    assert re.match("generated code is not known to be faster than oneDNN", why)
    projected = RnnSpec(Cell.LSTM, 4, 3, peephole=True)
    with pytest.raises(UnsupportedError, match="does not compute in u8; drop strict=True"):
        prepare(projected, random_weights(projected, 0), dtype="u8", strict=True)
    assert (
        "does not compute in u8" in prepare(projected, random_weights(projected, 0), dtype="u8").why
    )


def test_batches_that_onednn_is_faster_for_are_its() -> None:
    spec = RnnSpec(Cell.GRU, 2, 8)
    weights = random_weights(spec, 0)
    layer: Any = open_backend("generated").prepare(spec, weights, strict=True)
    exact = reference_stack(spec, weights, "f64")
    for time, sentences, own in [(1, 1, 0), (1, 9, 0), (2, 3, 0), (2, 4, 0), (2, 2, 1), (2, 5, 1)]:
        x = random_ragged([time] * sentences, 2, 0)
        dense = x.data.reshape(sentences, time, 2)
        assert layer.falls_back(x) == layer.falls_back(dense, "ntc") != own
        check(layer.run(x), exact.run(x))
        check(layer.run(dense, layout="ntc"), exact.run(dense, layout="ntc"))
    with pytest.raises(ShapeError, match="x: expected"):
        layer.run(np.zeros(2, np.float32))
    large = replace(spec, hidden_size=512)
    assert generated.faster(large, "f32", "avx512_core", 1, 1)
    huge = replace(spec, hidden_size=2048)  # streams its weights from memory
    assert not generated.faster(huge, "f32", "avx512_core", 25, 1)
    assert generated.faster(huge, "f32", "avx512_core", 50, 2)
    for isa, own in [("avx512_core_bf16", 1), ("avx512_core_amx", 0), ("avx512_core", 0)]:
        assert generated.faster(spec, "bf16", isa, 1, 1) == own


@pytest.mark.parametrize("cell, units", [(Cell.GRU, 13), (Cell.LBR_GRU, 13), (Cell.LSTM, 45)])
def test_bf16_is_right_to_its_precision_for_odd_sizes_on_two_threads(
    cell: Cell, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("-std=c++17", "-O1", "-march=native", "-shared", "-fPIC", "-pthread")
    monkeypatch.setattr("onernn.emit.compiling.FLAGS", flags)
    monkeypatch.setattr(generated, "faster", lambda *_: True)
    spec = RnnSpec(cell, 17, units, direction="bidirectional_concat")
    weights = random_weights(spec, 3)
    exact = reference_stack(spec, weights, "f64")
    layer = open_backend("generated", threads=2).prepare(spec, weights, dtype="bf16")
    assert layer.kernel == "generated C++"
    for lengths in ([3, 0, 7, 1], [9, 40, 1, 1, 2, 0, 5, 5, 5, 2, 2, 1]):
        x = random_ragged(lengths, 17, 1)
        state = random_state(spec, len(lengths), 2)
        made, want = layer.run(x, state), exact.run(x, state)
        assert_close(made[0].data, want[0].data, rtol=2e-2)
        for got, expected in zip(made[1], want[1], strict=True):
            assert_close(got, expected, rtol=2e-2)
            np.testing.assert_array_equal(
                got[:, :, np.equal(lengths, 0)], expected[:, :, np.equal(lengths, 0)]
            )


def test_training_is_the_other_backends() -> None:
    spec = RnnSpec(Cell.GRU, 4, 3)
    weights = random_weights(spec, 0)
    layer, exact = layer_of(spec, weights), reference_stack(spec, weights, "f64")
    x = random_ragged([4, 2], 4, 0)
    (y, _, tape), (wanted, _, other) = layer.run_training(x), exact.run_training(x)
    assert_close(y.data, wanted.data)
    ones = x.with_data(np.ones((6, 3), np.float32))
    found, expected = layer.backward(tape, ones), exact.backward(other, ones)
    assert_close(found.x.data, expected.x.data)


def test_a_missing_compiler_is_an_error_that_says_what_to_do(monkeypatch: Any) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(LibraryError, match="needs a C.. compiler, none of no-such-compiler is"):
        open_backend("generated")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LibraryError, match=r"none of c\+\+, g\+\+, clang\+\+ is there; install g"):
        open_backend("generated")


def test_a_source_that_does_not_compile_is_an_error(cache: Path) -> None:
    with pytest.raises(LibraryError, match="does not compile a layer: .*error"):
        compiled("int main( {")
    assert not [file for file in cache.iterdir() if file.is_dir()]


def test_a_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "onernn"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path not in compiled('extern "C" int one() { return 1; }').parents


def test_nothing_of_it_is_imported_before_it_is_asked_for() -> None:
    script = (
        "import onernn, sys; print({'jinja2', 'cffi', 'onernn.emit.backend'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "set()\n"
