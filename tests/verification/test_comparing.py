"""The comparison passes what is equal and can fail in every way."""

from __future__ import annotations

import numpy as np
import pytest
from support import onnx_models

from onernn import Ragged
from onernn.verification.comparing import TOLERANCES, OutputComparison, Tolerance, compare
from onernn.verification.verifying import verify

REFERENCE = np.array([[1.0, -4.0], [0.5, 2.0]], np.float32)
TOLERANCE = Tolerance(0.1, 0.1)  # 0.1 + 0.1 * 4 = 0.5 allowed


def compared(actual: object, reference: object = REFERENCE) -> OutputComparison:
    return compare("y", actual, reference, TOLERANCE)


def moved(by: float) -> np.ndarray:
    out = REFERENCE.copy()
    out[1, 0] += by
    return out


def test_differences_up_to_the_tolerance_pass_and_beyond_fail() -> None:
    close = compared(moved(0.49))
    assert close.passed and close.max_abs == pytest.approx(0.49, rel=1e-5)
    assert close.max_rel == pytest.approx(0.49 / 4, rel=1e-5)
    far = compared(moved(0.51))
    assert not far.passed and "0.51 apart, 0.5 allowed" in far.reason


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_every_default_tolerance_can_fail(dtype: str) -> None:
    assert compare("y", REFERENCE, REFERENCE, TOLERANCES[dtype]).passed
    assert not compare("y", moved(0.4), REFERENCE, TOLERANCES[dtype]).passed


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_stand_where_the_reference_has_them(special: float) -> None:
    with_special = moved(special)
    assert compared(with_special, with_special).passed
    assert "where the reference is finite" in compared(with_special).reason
    assert "lost" in compared(REFERENCE, with_special).reason


def test_shapes_kinds_and_integers_are_exact() -> None:
    assert "shape" in compared(REFERENCE[:1]).reason
    ints = np.array([1, 2])
    assert "dtype" in compared(ints.astype(np.float32), ints).reason
    assert "dtype" in compared(ints.astype(np.int32), ints).reason
    assert compared(REFERENCE.astype(np.float64)).passed
    assert compared(ints, ints).passed
    off = compare("y", np.array([1, 3]), ints, Tolerance(10, 10))
    assert not off.passed and off.reason == "1 of 2 values differ"


def test_offsets_are_exact() -> None:
    ragged = Ragged(REFERENCE, [0, 1, 2])
    assert compared(ragged, ragged).passed
    assert compared(Ragged(REFERENCE, [0, 0, 2]), ragged).reason == "LoD differs"
    assert compared(REFERENCE, ragged).reason == "LoD is missing"
    assert compared(ragged).passed  # no offsets were recorded


def test_empty_and_zero_references() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert compared(empty, empty).passed
    zero = compare("y", np.float32([1e-3]), np.float32([0]), Tolerance(0, 1))
    assert not zero.passed and zero.max_rel == np.inf


def test_outputs_in_float16_have_the_tolerance_of_their_own_dtype() -> None:
    """One unit in the last place is 1e-3 of a value there: float32's tolerance excuses none."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (7, 3, 6)).astype(np.float16)
    shapes = {"W": (1, 9, 6), "R": (1, 9, 3)}
    weights = {k: rng.uniform(-0.5, 0.5, s).astype(np.float16) for k, s in shapes.items()}
    nodes = """half = GRU <hidden_size = 3> (x, W, R) wide = Cast <to = 1> (x) y = Exp (wide)"""
    proto = onnx_models.model(nodes, {"x": x}, ["half", "y"], constants=weights)
    half, y = onnx_models.theirs(proto, {"x": x})
    graph, given = onnx_models.read(proto), {"in__x": x, "out__half": half, "out__y": y}
    assert half.dtype == np.float16 and verify(graph, given)
    next_to = {**given, "out__half": np.nextafter(half, np.float16(2))}
    assert verify(graph, next_to) and not verify(graph, next_to, rtol=1e-5, diagnose=False)
    assert verify(graph, {**given, "out__half": half.astype(np.float32)})
    assert verify(graph, {**given, "out__y": y.astype(np.float16)})
    for name, array in (("half", half * np.float16(1.01)), ("y", y * np.float32(1.0003))):
        report = verify(graph, {**given, f"out__{name}": array}, diagnose=False)
        assert [each.name for each in report.outputs if not each.passed] == [name]
