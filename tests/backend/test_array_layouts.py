"""tnc and ntc, ldigo and ldgoi: the same numbers, and a line that says what is copied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_same
from support.layers import prepare_on, random_ragged, random_state, random_weights

from onernn import Cell, RnnSpec, RnnWeights, ShapeError
from onernn.backend.onednn.kernels import Executable

both = pytest.mark.parametrize("backend", ["onednn", "reference", "kernels"])
pytestmark = pytest.mark.usefixtures("built")
LSTM = RnnSpec(Cell.LSTM, 3, 4, layers=2, direction="bidirectional_concat")


@both
@pytest.mark.parametrize("threads", [1, 2])
def test_ntc_is_tnc_with_the_first_axes_exchanged(backend: str, threads: int) -> None:
    layer = prepare_on(backend, LSTM, threads=threads)
    x = uniform(5, 20, 3)
    state = random_state(LSTM, 20, 1)
    y, final = layer.run(x, state)
    batch_major, ends = layer.run(np.ascontiguousarray(x.swapaxes(0, 1)), state, layout="ntc")
    assert batch_major.shape == (20, 5, 8) and batch_major.flags.c_contiguous
    assert_same(batch_major, y.swapaxes(0, 1))
    assert_same(ends, final)


@both
def test_attention_has_the_layout_of_x(backend: str) -> None:
    spec = RnnSpec(Cell.AUGRU, 3, 4)
    layer = prepare_on(backend, spec)
    rng = np.random.default_rng(0)
    x, a = (rng.uniform(0, 1, (5, 2, size)).astype(np.float32) for size in (3, 1))
    y, _ = layer.run(x, None, a)
    z, _ = layer.run(x.swapaxes(0, 1), None, a.swapaxes(0, 1), "ntc")
    assert_same(z, y.swapaxes(0, 1))
    with pytest.raises(ShapeError, match=r"attention: expected \(2, 5, 1\)"):
        layer.run(x.swapaxes(0, 1), None, a, "ntc")


@both
def test_ragged_batches_have_no_such_axes(backend: str) -> None:
    layer = prepare_on(backend, LSTM)
    x = random_ragged([3, 0, 2], 3, 0)
    assert_same(layer.run(x, layout="ntc")[0], layer.run(x)[0])


def test_weights_that_begin_with_the_same_numbers_stay_apart() -> None:
    """Equal arrays are stored once, found by their first numbers."""
    spec = RnnSpec(Cell.GRU, 6, 40, direction="bidirectional_concat")
    (one,) = random_weights(spec, 0)
    assert one.layer is not None and one.bias is not None
    twice = [np.repeat(part[:, :1], 2, axis=1) for part in (one.layer, one.iter, one.bias)]
    for part in twice:
        part[:, 1, -1] *= -1
    got, want = (prepare_on(name, spec, [RnnWeights(*twice)]) for name in ("kernels", "reference"))
    x = uniform(5, 4, 6, seed=1)
    np.testing.assert_allclose(got.run(x)[0], want.run(x)[0], rtol=0, atol=1e-5)


def test_weights_may_come_output_major() -> None:
    spec = RnnSpec(Cell.LSTM, 3, 5, direction="bidirectional_sum", peephole=True, projection_size=2)
    (given,) = random_weights(spec, 0)
    assert given.layer is not None and given.projection is not None
    turned = RnnWeights.from_ldgoi(
        np.moveaxis(given.layer, 2, 4),  # (L, D, G, O, I)
        np.moveaxis(given.iter, 2, 4),
        given.bias,
        given.peephole,
        np.swapaxes(given.projection, 2, 3),  # (L, D, R, O)
    )
    for name in ("layer", "iter", "bias", "peephole", "projection"):
        assert_same(getattr(turned, name), getattr(given, name))
    # Scalar by scalar: gate 2 of unit 4 from input 1.
    memory = np.arange(2 * 4 * 5 * 3, dtype=np.float32).reshape(1, 2, 4, 5, 3)
    turned = RnnWeights.from_ldgoi(memory, np.zeros((1, 2, 4, 5, 5), np.float32))
    assert turned.layer is not None
    assert turned.layer[0, 1, 1, 2, 4] == ((1 * 4 + 2) * 5 + 4) * 3 + 1
    assert RnnWeights.from_ldgoi(None, given.iter.swapaxes(2, 4)).layer is None
    with pytest.raises(ShapeError, match=r"weights iter: expected 5 axes, got \(3,\)"):
        RnnWeights.from_ldgoi(None, np.zeros(3, np.float32))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_the_layer_says_what_runs_it_and_what_is_copied(dtype: str) -> None:
    layer = prepare_on("onednn", LSTM, dtype=dtype)
    line = layer.explain()
    assert line.startswith(f"LSTM bidirectional_concat, {layer.dtype}, {layer.kernel}")
    assert "\n" not in line
    dense = "read in place" if dtype == "f32" else f"converted to {dtype}"
    for part in (dense, "(N, T, I)", "strided", "copied", "gathered"):
        assert part in line or layer.why


def test_what_is_read_in_place_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that the primitive gets is that of the caller's array."""
    spec = RnnSpec(Cell.LSTM, 3, 4)
    layer = prepare_on("onednn", spec, threads=1)
    read: list[int] = []
    execute = Executable.execute

    def reading(self: Executable, addresses: Mapping[str, int]) -> None:
        read.append(addresses["src_layer"])
        execute(self, addresses)

    monkeypatch.setattr(Executable, "execute", reading)
    x = np.zeros((500, 20, 6), np.float32)
    for given, in_place in ((x[..., :3].copy(), True), (x[..., :3], False), (x[..., ::2], False)):
        read.clear()
        layer.run(given)
        assert (read[0] == given.ctypes.data) == in_place


def test_a_layer_on_the_reference_says_why() -> None:
    spec = RnnSpec(Cell.GRU, 3, 4, gate_clip=1.0)
    line = prepare_on("onednn", spec).explain()
    assert "NumPy reference (oneDNN has no GRU with clipped gates)" in line and "copied" in line
