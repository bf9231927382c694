"""Operators that plans run: transforms, resized axes, integers of 16 bits, axes that are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graphs import new_node, small
from support.planning import agrees, as_it_is, planned

from onernn import Session

pytestmark = pytest.mark.usefixtures("built")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def run(session: Session, **feed: Any) -> np.ndarray:
    """The one output of a plan that leaves nothing to Python."""
    (result,) = session.run(feed).values()
    assert not planned(session).outside
    return np.asarray(result)


def check_spectrum(got: np.ndarray, want: np.ndarray, count: int) -> None:
    """Each factor of a transform adds and multiplies with an error of some units of its numbers."""
    eps = np.finfo(got.dtype).eps
    parts = np.stack([want.real, want.imag], -1) if np.iscomplexobj(want) else want[..., None]
    assert got.shape == parts.shape
    largest = np.abs(parts).max(initial=0) + np.sqrt(count)
    assert np.abs(got - parts).max(initial=0) <= 4 * eps * (np.log2(count) + count**0.5) * largest


COUNTS = (1, 2, 3, 7, 8, 12, 30, 97, 512)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", COUNTS)
def test_transforms_are_those_of_float64(count: int, dtype: str) -> None:
    x = rng().normal(size=(2, count, 3, 2)).astype(dtype)
    whole = x[..., 0].astype(float) + 1j * x[..., 1]
    inputs = {"x": (dtype, None, count, 3, 2)}
    for inverse, transform in ((0, np.fft.fft), (1, np.fft.ifft)):
        node = new_node("y = DFT x  axis", inverse=inverse)
        got = run(as_it_is(small([node], inputs, axis=np.int64(1))), x=x)
        check_spectrum(got, transform(whole, axis=1), count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("asked", [0, 5, 64])
def test_real_signals_have_half_a_spectrum_that_leads_back(count: int, asked: int) -> None:
    x = rng().normal(size=(2, count, 1)).astype(np.float32)
    constants = {"n": np.int64(asked)} if asked else {}
    node = new_node("y = DFT x n" if asked else "y = DFT x", onesided=1)
    got = run(as_it_is(small([node], {"x": (None, count, 1)}, **constants)), x=x)
    check_spectrum(got, np.fft.rfft(x[..., 0].astype(float), asked or None), asked or count)
    bins = got.shape[1]
    back = [new_node("y = DFT x", onesided=1, inverse=1)]
    if bins > 1:  # one number is of any count
        wave = run(as_it_is(small(back, {"x": (None, bins, 2)})), x=got)
        whole = got[..., 0].astype(float) + 1j * got[..., 1]
        check_spectrum(wave, np.fft.irfft(whole), 2 * bins - 2)


@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize("onesided, parts", [(1, 1), (0, 1), (0, 2)])
def test_frames_of_a_signal_of_any_length_are_transformed(
    windowed: bool, onesided: int, parts: int
) -> None:
    window, frame, step = rng().random(9).astype(np.float32), 9, 4
    constants = {"step": np.int64(step)}
    constants |= {"window": window} if windowed else {"frame": np.int64(frame)}
    node = new_node(f"y = STFT x step {'window' if windowed else ' frame'}", onesided=onesided)
    session = as_it_is(small([node], {"x": (None, None, parts)}, **constants))
    for samples in (9, 12, 13, 200):
        x = rng().normal(size=(2, samples, parts)).astype(np.float32)
        wave = x[..., 0].astype(float) + (1j * x[..., 1] if parts == 2 else 0)
        frames = [wave[:, k : k + frame] for k in range(0, samples - frame + 1, step)]
        rows = np.stack(frames, 1) * (window if windowed else 1)
        want = np.fft.rfft(rows.real) if onesided else np.fft.fft(rows)
        check_spectrum(run(session, x=x), want, frame)


MODES = ("half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("where", MODES)
def test_axes_of_known_sizes_are_resized_in_batches_of_any_size(mode: str, where: str) -> None:
    how = {"coordinate_transformation_mode": where, "mode": mode}
    node = new_node("y = Resize x   sizes", axes=(2, 1), **how)
    session = as_it_is(small([node], {"x": (None, 4, 5, 3)}, sizes=[7, 3]))
    for count in (1, 0, 3):
        x = rng().normal(size=(count, 4, 5, 3)).astype(np.float32)
        agrees(session, {"x": x}, rtol=0)
    assert not planned(session).outside


@pytest.mark.parametrize("dtype", ["uint16", "int16"])
@pytest.mark.parametrize("scales", [1, 3])
def test_integers_of_16_bits_are_quantized_to_the_bit(dtype: str, scales: int) -> None:
    bounds = np.iinfo(dtype)
    scale = np.linspace(0.01, 0.5, scales).astype(np.float32)
    zero = np.linspace(bounds.min // 2 + 1, bounds.max // 3, scales).astype(dtype)
    scale, zero = (each if scales > 1 else each.reshape(()) for each in (scale, zero))
    nodes = [
        new_node("q = QuantizeLinear x scale zero", axis=1),
        new_node("y = DequantizeLinear q scale zero", axis=1),
    ]
    graph = small(nodes, {"x": (None, 3, None)}, "q y", scale=scale, zero=zero)
    session = as_it_is(graph)
    for shape in ((2, 3, 9), (0, 3, 2), (1, 3, 1000)):
        x = (rng().normal(size=shape) * 3000).astype(np.float32)
        q = np.rint(x / scale.reshape(-1, 1)).astype(np.float64) + zero.reshape(-1, 1)
        q = np.clip(q, bounds.min, bounds.max)
        got = session.run({"x": x})
        np.testing.assert_array_equal(got["q"], q.astype(dtype))
        want = (q - zero.reshape(-1, 1)).astype(np.float32) * scale.reshape(-1, 1)
        np.testing.assert_array_equal(got["y"], want)
    assert not planned(session).outside


REDUCTIONS = "ReduceSum ReduceMax ReduceMin ReduceProd ReduceMean ReduceL2 ReduceLogSumExp".split()


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_that_are_apart_are_reduced(op: str, keepdims: int) -> None:
    node = new_node(f"y = {op} x axes", keepdims=keepdims)
    session = as_it_is(small([node], {"x": (None, None, None, 2)}, axes=[0, 2]))
    feeds = ({"x": rng().normal(size=s).astype("f4")} for s in ((2, 3, 4, 2), (1, 1, 1, 2)))
    agrees(session, *feeds)
    assert not planned(session).outside


def test_numbers_are_rounded_to_bfloat16() -> None:
    session = as_it_is(small([new_node("y = Cast x", to="bfloat16")], {"x": (None,)}))
    x = np.float32(
        [0, 1, 1 + 2**-8, 1 + 3 * 2**-8, -3.3e38, 3.4e38, np.inf, -np.inf, np.nan, 1e-40]
    )
    got = run(session, x=x)
    # 1 + 2**-8 lies in the middle: the even neighbour of 8 bits is 1.
    assert got[:4].tolist() == [0, 1, 1, 1 + 2**-6]
    assert np.isnan(got[8]) and got[6:8].tolist() == [np.inf, -np.inf] and got[5] == np.inf
    agrees(session, {"x": x}, rtol=0)


def test_an_axis_whose_size_is_a_quotient_is_squeezed_if_it_is_one() -> None:
    nodes = [
        new_node("pool = MaxPool x", kernel_shape=(2,), strides=(2,)),
        new_node("y = Squeeze pool axis"),
    ]
    session = as_it_is(small(nodes, {"x": (None, 3, None)}, axis=[2]))
    for time in (2, 3):
        agrees(session, {"x": rng().normal(size=(2, 3, time)).astype("f4")}, rtol=0)
    assert not planned(session).outside
    with pytest.raises(Exception, match="axis|size"):
        session.run({"x": np.zeros((2, 3, 4), np.float32)})
