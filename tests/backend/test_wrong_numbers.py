"""Where oneDNN says success and gives wrong numbers: shown on the library itself, and not on ours.

Each test first holds the package to the right number, then calls the primitive without its
precaution and sees it go wrong: so the precaution is needed, and the comparison able to fail. Where
this library on this CPU is right by itself the test is skipped, which says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent
from threading import Thread
from typing import Any

import numpy as np
import pytest
from support.checking import check_layer, sentences_of
from support.gradients import assert_gradients, new_problem
from support.layers import random_ragged, random_state, random_weights
from support.oracle import run_oracle
from support.raw import S8, S8_SCALE, raw_augru_gradient, run_raw

from onernn import Cell, RnnSpec, UnsupportedError
from onernn.backend import open_backend
from onernn.backend.onednn import kernels, training
from onernn.backend.onednn.library import load_library
from onernn.backend.onednn.precision import PRECISIONS
from onernn.ir.weights import UNIT

TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "u8": 2e-2}  # of outputs in [-1, 1]
TIME, BATCH, INPUT, HIDDEN = 5, 4, 32, 64


class Problem:
    """A layer, a dense batch in [-1, 1], an initial state, and what the oracle makes of them."""

    def __init__(self, spec: RnnSpec, time: int = TIME) -> None:
        self.spec, self.weights = spec, random_weights(spec, 1)
        rng = np.random.default_rng(0)
        self.x = rng.uniform(-1, 1, (time, BATCH, spec.input_size)).astype(np.float32)
        self.state = random_state(spec, BATCH, 3)

    def check(self, dtype: str, tolerance: float) -> None:
        """Our layer is right."""
        layer = open_backend("onednn", threads=1).prepare(self.spec, self.weights, dtype=dtype)
        check_layer(layer, self.spec, self.weights, self.x, self.state, rtol=0, atol=tolerance)

    def raw(self, *arguments: Any, **more: Any) -> Any:
        """What the library makes of it."""
        return run_raw(self.spec, self.weights[0], self.x, self.state, *arguments, **more)

    def check_that_the_library_is_wrong(
        self, tolerance: float, *arguments: Any, **more: Any
    ) -> None:
        """Wrong by far, not by rounding: at least three times the tolerance. Else: skipped."""
        try:
            y, final = self.raw(*arguments, **more)
        except UnsupportedError as error:
            pytest.skip(f"{here()}: {error}")
        outputs, ends = run_oracle(self.spec, self.weights, sentences_of(self.x), self.state)
        pairs = [*zip(sentences_of(y), outputs, strict=True), *zip(final, ends, strict=True)]
        worst = max(np.abs(got - want).max() for got, want in pairs)
        if worst <= tolerance:
            pytest.skip(f"{here()} is right here by itself")
        assert worst > 3 * tolerance


def here() -> str:
    library = load_library()
    return f"oneDNN {library.version} on this CPU ({library.effective_isa})"


U8_CELLS = [(Cell.LSTM, {}), (Cell.LSTM, {"projection_size": 32}), (Cell.GRU, {})]


def test_the_raw_call_is_right_where_the_library_is() -> None:
    """What the others see go wrong does not lie in how they call."""
    for cell, more in U8_CELLS:
        problem = Problem(RnnSpec(cell, INPUT, HIDDEN, **more))
        y, _ = problem.raw(PRECISIONS["f32"])
        outputs, _ = run_oracle(
            problem.spec, problem.weights, sentences_of(problem.x), problem.state
        )
        np.testing.assert_allclose(y, np.stack(outputs, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("cell", "more"), U8_CELLS)
def test_negative_states_survive_int8(cell: Cell, more: dict[str, Any]) -> None:
    """An s8 source loses negative states. Ours are u8 with a shift; s8 is refused by name."""
    problem = Problem(RnnSpec(cell, INPUT, HIDDEN, **more))
    problem.check("u8", TOLERANCE["u8"])
    with pytest.raises(UnsupportedError, match="dtype 's8': expected one of f32, bf16, f16, u8"):
        open_backend("onednn").prepare(problem.spec, problem.weights, dtype="s8")
    problem.check_that_the_library_is_wrong(TOLERANCE["u8"], S8, S8_SCALE)


@pytest.mark.parametrize(("hidden", "projection"), [(64, 32), (32, 32), (16, 2), (13, 7)])
@pytest.mark.parametrize("peephole", [False, True])
def test_a_narrow_projection_is_read_right(hidden: int, projection: int, peephole: bool) -> None:
    """In bf16 the layout that the primitive asks for is misread. Ours gets plain weights."""
    spec = RnnSpec(Cell.LSTM, INPUT, hidden, projection_size=projection, peephole=peephole)
    problem = Problem(spec)
    problem.check("bf16", TOLERANCE["bf16"])
    problem.check_that_the_library_is_wrong(TOLERANCE["bf16"], PRECISIONS["bf16"])


@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU])
def test_int8_directions_add_up(cell: Cell) -> None:
    """bidirectional_sum in int8 is off by up to 1. Ours runs two directions and adds."""
    problem = Problem(RnnSpec(cell, INPUT, HIDDEN, direction="bidirectional_sum"))
    problem.check("u8", 2 * TOLERANCE["u8"])
    problem.check_that_the_library_is_wrong(2 * TOLERANCE["u8"], PRECISIONS["u8"], UNIT)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_a_state_is_not_overwritten_while_it_is_read(dtype: str) -> None:
    """dst_iter in the place of src_iter gives another GRU. Ours goes between two buffers."""
    problem = Problem(RnnSpec(Cell.GRU, INPUT, HIDDEN), time=1)
    problem.check(dtype, TOLERANCE[dtype])
    # Sentences of different lengths: the state goes through many pieces, one step each.
    layer = open_backend("onednn", threads=1).prepare(problem.spec, problem.weights, dtype=dtype)
    x = random_ragged([5, 4, 3, 2, 1], INPUT, 0)
    x = x.with_data(x.data / 2)
    state = random_state(problem.spec, 5, 2)
    check_layer(layer, problem.spec, problem.weights, x, state, rtol=0, atol=TOLERANCE[dtype])
    scale = UNIT if dtype == "u8" else None
    problem.check_that_the_library_is_wrong(
        TOLERANCE[dtype], PRECISIONS[dtype], scale, dst_iter_is_src_iter=True
    )


@pytest.mark.parametrize("cell", [Cell.AUGRU, Cell.LBR_AUGRU])
def test_gradients_of_attention_cells_are_right(cell: Cell) -> None:
    """oneDNN's are wrong unless attention is 0. Ours come from the reference, and say so."""
    spec = RnnSpec(cell, 8, 16)
    weights, rng = random_weights(spec, 1), np.random.default_rng(0)
    x, dy = (rng.uniform(-1, 1, (TIME, BATCH, size)).astype(np.float32) for size in (8, 16))
    attention = rng.uniform(0.2, 0.8, (TIME, BATCH, 1)).astype(np.float32)
    state = random_state(spec, BATCH, 3)

    def gradient(backend: str, dtype: str, attention: np.ndarray) -> np.ndarray:
        layer = open_backend(backend).prepare(spec, weights, dtype=dtype)
        _, _, tape = layer.run_training(x, state, attention)
        return layer.backward(tape, dy).x

    def off(got: np.ndarray, attention: np.ndarray) -> float:
        want = gradient("reference", "f64", attention)
        return float(np.abs(got - want).max() / np.abs(want).max())

    assert off(gradient("onednn", "f32", attention), attention) < 1e-5
    none = np.zeros_like(attention)
    assert off(raw_augru_gradient(spec, weights[0], x, state[0], none, dy), none) < 1e-5
    raw = off(raw_augru_gradient(spec, weights[0], x, state[0], attention, dy), attention)
    if raw < 1e-5:
        pytest.skip(f"{here()} is right here by itself")
    assert raw > 0.01


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("cell", [Cell.AUGRU, Cell.LBR_AUGRU])
@pytest.mark.parametrize("hidden", [1, 16, 31, 40])
def test_attention_reaches_every_sentence(
    cell: Cell, dtype: str, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brgemm gives later blocks of a batch the first one's attention; ours get plain weights."""
    spec = RnnSpec(cell, 7, hidden)
    weights, rng = random_weights(spec, 1), np.random.default_rng(0)

    def check(sentences: int) -> None:
        x = rng.uniform(-1, 1, (3, sentences, 7)).astype(np.float32)
        attention = rng.uniform(0, 1, (3, sentences, 1)).astype(np.float32)
        state = random_state(spec, sentences, 3)
        layer = open_backend("onednn", threads=1).prepare(spec, weights, dtype=dtype)
        tolerance = TOLERANCE[dtype]
        check_layer(layer, spec, weights, x, state, attention, rtol=0, atol=tolerance)

    for sentences in (1, 3, 15, 16, 17, 20, 25, 33, 36, 64):
        check(sentences)
    if (cell, dtype, hidden) != (Cell.AUGRU, "bf16", 16):
        return
    monkeypatch.setattr(kernels, "OWN_LAYOUTS", ())
    try:
        check(16)
    except AssertionError:
        return
    pytest.skip(f"{here()} is right here by itself")


@pytest.mark.parametrize(
    ("projection", "hidden"), [(17, 3), (33, 5), (33, 8), (49, 12), (65, 16), (16, 4), (60, 15)]
)
def test_gradients_of_a_wide_projection_are_right(
    projection: int, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a projected state overruns the gates' rows. Ours comes from the reference."""
    spec = RnnSpec(Cell.LSTM, 9, hidden, projection_size=projection)
    weights, rng = random_weights(spec, 1), np.random.default_rng(0)
    x = rng.uniform(-1, 1, (3, 17, 9)).astype(np.float32)
    at = new_problem(spec, weights, x, random_state(spec, 17, 3), None, 4)
    _, want = at.train(open_backend("reference").prepare(spec, weights, dtype="f64"))

    def check() -> str:
        tape, got = at.train(open_backend("onednn", threads=1).prepare(spec, weights))
        assert_gradients(got, want, 1e-5)
        return str(tape.why)

    wide = projection > 4 * hidden
    assert ("projection is wider than the gates" in check()) == wide
    monkeypatch.setattr(training, "GRADIENTS", ())
    if not wide:
        assert check() == ""
        return
    try:
        check()
    except AssertionError:
        return
    pytest.skip(f"{here()} is right here by itself")


def test_a_primitive_may_run_in_another_thread_than_its_creators() -> None:
    """With the library's own scratchpad that crashes. Ours brings one for each execution."""
    problem = Problem(RnnSpec(Cell.LSTM, INPUT, HIDDEN))
    layer = open_backend("onednn", threads=1).prepare(problem.spec, problem.weights)
    layer.run(problem.x, problem.state)  # everything is made in this thread
    failures: list[BaseException] = []

    def check() -> None:
        try:
            check_layer(layer, problem.spec, problem.weights, problem.x, problem.state)
        except BaseException as error:
            failures.append(error)

    other = Thread(target=check)
    other.start()
    other.join()
    assert failures == []

    raw = """
    def elsewhere(execute):
        other = Thread(target=execute)
        other.start()
        other.join()

    problem = here.Problem(here.RnnSpec(here.Cell.LSTM, here.INPUT, here.HIDDEN))
    problem.raw(here.PRECISIONS["f32"], own_scratchpad=OWN, executed=elsewhere)
    """
    assert ended(raw.replace("OWN", "True")) == 0
    crashed = ended(raw.replace("OWN", "False"))
    if crashed == 0:
        pytest.skip(f"{here()} is right here by itself")
    assert crashed < 0  # killed by a signal


def test_a_kernel_runs_with_the_threads_that_it_was_made_for() -> None:
    """With others one of 3.2's writes where it may not. Ours sets the number around both."""
    problem = Problem(RnnSpec(Cell.LBR_GRU, 512, 512), time=8)
    layer = open_backend("onednn", threads=2).prepare(problem.spec, problem.weights, dtype="bf16")
    with load_library().threads(1):
        check_layer(
            layer, problem.spec, problem.weights, problem.x, problem.state, rtol=2e-2, atol=1e-2
        )
    raw = """
    def alone(execute):
        with library.threads(COUNT):
            execute()

    problem = here.Problem(here.RnnSpec(here.Cell.LBR_GRU, 512, 512), time=8)
    with library.threads(2):
        y, _ = problem.raw(here.PRECISIONS["bf16"], executed=alone)
        again, _ = problem.raw(here.PRECISIONS["bf16"])
    assert abs(y - again).max() < 0.01
    """
    if not any(isa in load_library().effective_isa for isa in ("bf16", "fp16", "amx")):
        pytest.skip("this CPU has no bf16")
    assert ended(raw.replace("COUNT", "2")) == 0
    if ended(raw.replace("COUNT", "1")) == 0:
        pytest.skip(f"{here()} is right here by itself")


def ended(code: str) -> int:
    """How a process ends that may crash or hang: its exit status, or minus the signal."""
    start = """
    from threading import Thread
    import test_wrong_numbers as here
    library = here.load_library()
    """
    tests = os.path.dirname(os.path.dirname(__file__))
    folders = [os.path.dirname(__file__), tests, os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(start) + dedent(code)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        return process.wait(timeout=300)
    except subprocess.TimeoutExpired:  # a corrupted heap may spin forever, too
        process.kill()
        return process.wait()
