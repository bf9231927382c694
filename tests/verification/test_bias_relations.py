"""A cause of biases is stated where their numbers fit it within rounding, and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import planted
from support.planted import blocks, changed, compared, model, named

from onernn.verification.diagnosis.faults import relate

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {}),
    "GRU before": ("GRU", {}),
    "GRU after": ("GRU", {"linear_before_reset": 1}),
}
Other = Callable[[np.ndarray, np.random.Generator], np.ndarray]
OTHERS: dict[str, Other] = {
    "noise": lambda b, rng: b + rng.normal(0, 0.1, b.shape),
    "smaller noise": lambda b, rng: 0.9 * b + rng.normal(0, 1e-3, b.shape),
    "larger noise": lambda b, rng: 2 * b + rng.normal(0, 1e-3, b.shape),
    "random": lambda b, rng: rng.uniform(-1, 1, b.shape),
    "small random": lambda b, rng: rng.uniform(-0.01, 0.01, b.shape),
    "units permuted": lambda b, rng: rng.permuted(b, axis=1),
}
"""Each of ONNX's blocks of biases, (blocks, H), as another one: no rule makes it of the first."""


def _pair(kind: str, other: str, seed: int) -> tuple[bytes, bytes]:
    op, attributes = KINDS[kind]
    sound = planted.weights(op)
    bias = blocks(sound["B"])[0]
    new = OTHERS[other](bias, np.random.default_rng(seed)).astype(np.float32)
    wrong = changed(sound, B=new.reshape(1, -1))
    return model(op, wrong, **attributes), model(op, sound, **attributes)


@pytest.mark.parametrize("kind, other", list(itertools.product(KINDS, OTHERS)))
def test_other_biases_in_every_gate_are_called_changed(kind: str, other: str) -> None:
    report = compared(*_pair(kind, other, 0))
    assert named(report) == [("bias_changed", "proved")]
    assert "twice" not in report.causes[0].text and "left out" not in report.causes[0].text


def test_gates_with_the_biases_of_none_are_not_called_permuted_whole() -> None:
    """Weights of a GRU that resets after the product in another order, its biases random."""
    sound = planted.weights("GRU")
    wrong = planted.reordered(sound, (2, 0, 1), "WR")
    rng = np.random.default_rng(4)
    noise = rng.uniform(-0.5, 0.5, sound["B"].shape).astype(np.float32)
    wrong = changed(wrong, B=noise)
    files = (model("GRU", each, linear_before_reset=1) for each in (wrong, sound))
    causes = compared(*files).causes
    assert [each.id for each in causes] == ["gates_swapped", "bias_changed"]
    assert "in the input weights and recurrent weights only" in causes[0].text


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
def test_noise_is_no_factor_and_no_shift_at_any_scale(scale: float) -> None:
    rng = np.random.default_rng(1)
    there = (scale * rng.normal(size=64)).astype(np.float32)
    noisy = (there + scale * rng.uniform(1e-5, 1e-4, 64)).astype(np.float32)
    assert relate(noisy, there).text == "differs from the reference's"
    assert relate(there * np.float32(3), there).text == "is 3 times the reference's"
    added = relate(there + np.float32(scale), there).text
    assert added == f"is {scale:g} larger than the reference's"


def test_a_code_book_is_not_called_rounding_to_int8() -> None:
    rng = np.random.default_rng(2)
    there = rng.normal(size=(64, 32)).astype(np.float32)
    step = np.float32(np.abs(there).max() / 127)
    assert relate(np.round(there / step) * step, there).id == "weights_rounded"
    book = np.sort(rng.choice(there.reshape(-1), 200, replace=False))
    coded = book[np.abs(there[..., None] - book).argmin(-1)]
    assert relate(coded, there).id == "constant_changed"
