"""`backward(into=)`: gradients of weights are added to arrays of the caller, as oneDNN's are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.checking import assert_same
from support.gradients import assert_gradients, ragged_problem, reference_gradients
from support.layers import random_ragged
from support.machine import needs_bf16

from onernn import Cell, RnnSpec, ShapeError, UnsupportedError
from onernn.backend import TapeError

BACKENDS = ["reference", "onednn", "kernels", "auto"]
STACK = RnnSpec(Cell.LSTM, 5, 6, layers=2, direction="bidirectional_concat", peephole=True)
SPECS = [STACK, RnnSpec(Cell.LSTM, 5, 6, projection_size=3), RnnSpec(Cell.LBR_GRU, 5, 6)]


def within_larger(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Memory full of ones, and a view of every second number of its middle."""
    memory = np.ones((*shape[:-1], 2 * shape[-1] + 3), np.float32)
    return memory, memory[..., 2:-1:2]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_added_to_given_arrays(backend: str, threads: int, spec: RnnSpec) -> None:
    one, other = (ragged_problem(spec, lengths, 1) for lengths in ([4, 0, 9, 2], [3, 1]))
    other = other._replace(weights=one.weights)
    layer = one.on(backend, threads=threads)
    memory, into = [], []
    for zeros in layer.zero_gradients():
        pairs = {name: within_larger(array.shape) for name, array in zeros.items()}
        memory.append({name: whole for name, (whole, _) in pairs.items()})
        into.append({name: view for name, (_, view) in pairs.items()})

    for problem in (one, other):
        *_, tape = layer.run_training(problem.x, problem.state)
        given = layer.backward(tape, problem.dy, problem.dstate, into=into)
        assert given.layers == ()
        *_, tape = layer.run_training(problem.x, problem.state)
        fresh = layer.backward(tape, problem.dy, problem.dstate)
        assert_same(given.x.data, fresh.x.data)

    found = {f"layer {k} {n}": a - 1 for k, sums in enumerate(into) for n, a in sums.items()}
    first, second = reference_gradients(one), reference_gradients(other)
    assert_gradients(found, {name: first[name] + second[name] for name in found}, 1e-5)
    for whole in (array for arrays in memory for array in arrays.values()):
        whole[..., 2:-1:2] = 1
        assert (whole == 1).all()  # nothing beside the views was written to


@pytest.mark.parametrize("backend", BACKENDS)
def test_zeroed_arrays_get_what_a_call_without_them_gives(backend: str) -> None:
    problem = ragged_problem(STACK, [4, 0, 9, 2], 1)
    layer = problem.on(backend)
    sums = layer.zero_gradients()
    for into in (sums, None):
        *_, tape = layer.run_training(problem.x, problem.state)
        gradients = layer.backward(tape, problem.dy, problem.dstate, into=into)
    for got, want in zip(sums, gradients.layers, strict=True):
        assert_same(got, dict(want.arrays))


@pytest.mark.parametrize("backend", [pytest.param("onednn", marks=needs_bf16), "kernels"])
def test_sums_of_bf16_gradients_are_float32(backend: str) -> None:
    """A bf16 sum would lose what is below 2**-8 of it."""
    problem = ragged_problem(RnnSpec(Cell.GRU, 5, 6), [3, 2], 1)
    layer = problem.on(backend, "bf16")
    (into,) = layer.zero_gradients()
    into["bias"] += 1000
    *_, tape = layer.run_training(problem.x, problem.state)
    layer.backward(tape, problem.dy, problem.dstate, into=[into])
    assert into["bias"].dtype == np.float32
    want = reference_gradients(problem)["layer 0 bias"]
    np.testing.assert_allclose(into["bias"] - 1000, want, rtol=0, atol=0.05 * np.abs(want).max())


WRONG_BIASES = [
    (lambda bias: bias[:, :, :2], r"float32 \(1, 2, 4, 6\), got float32 \(1, 2, 2, 6\)"),
    (lambda bias: bias.astype(np.float64), r"float32 \(1, 2, 4, 6\), got float64"),
    (lambda bias: np.broadcast_to(np.float32(0), bias.shape), "share memory"),
    (lambda bias: np.frombuffer(bytes(bias.nbytes), "f4").reshape(bias.shape), "read-only"),
    (lambda bias: None, "NoneType"),
]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda into: into[:1], "^into: .* 2 layers, got 1"),
        (
            lambda into: [into[0], {**into[1], "projection": into[0]["iter"]}],
            "^into: layer 1 .*, got bias, iter, layer, peephole, projection",
        ),
        *(
            (
                lambda into, change=change: [into[0] | {"bias": change(into[0]["bias"])}, into[1]],
                f"^into: layer 0 bias: .*{message}",
            )
            for change, message in WRONG_BIASES
        ),
    ],
)
def test_what_cannot_take_gradients_is_refused_and_nothing_is_added(
    change: Any, message: str
) -> None:
    problem = ragged_problem(STACK, [4, 2], 1)
    layer = problem.on("kernels")
    into = layer.zero_gradients()
    *_, tape = layer.run_training(problem.x, problem.state)
    with pytest.raises(ShapeError, match=message):
        layer.backward(tape, problem.dy, problem.dstate, into=change(into))
    with pytest.raises(ShapeError, match="dy: expected"):
        layer.backward(tape, random_ragged([4, 2], 5, 0), into=into)
    assert not any(array.any() for sums in into for array in sums.values())
    layer.backward(tape, problem.dy, into=into)  # the tape was not spent
    with pytest.raises(TapeError, match="used already"):
        layer.backward(tape, problem.dy, into=into)


@pytest.mark.parametrize("dtype", ["f16", "u8"])
def test_layers_that_do_not_train_have_no_zeroed_gradients(dtype: str) -> None:
    problem = ragged_problem(RnnSpec(Cell.LSTM, 5, 6), [3], 1)
    with pytest.raises(UnsupportedError, match=f"dtype {dtype}: expected"):
        problem.on("kernels", dtype).zero_gradients()
