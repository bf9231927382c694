"""Where oneDNN says success and gives wrong numbers: these layers are right.

Without its precaution a layer goes wrong, which shows that the comparison can fail. If this library
on this CPU is right by itself the test is skipped, which says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from support.checking import check_layer
from support.gradients import ragged_problem
from support.layers import attention_for, prepare_on, random_ragged, random_state, random_weights

from onernn import Cell, RnnSpec
from onernn.backend.onednn import kernels, training
from onernn.backend.onednn.library import load_library

TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "u8": 2e-2}  # of outputs in [-1, 1]


def check(spec: RnnSpec, dtype: str, lengths: list[int], threads: int = 1) -> None:
    weights, x = random_weights(spec, 1), random_ragged(lengths, spec.input_size, 0)
    x = x.with_data(x.data / 2)
    layer = prepare_on("onednn", spec, weights, threads=threads, dtype=dtype)
    state, attention = random_state(spec, len(lengths), 3), attention_for(spec, x, 2)
    check_layer(layer, spec, weights, x, state, attention, rtol=0, atol=TOLERANCE[dtype])


@contextmanager
def goes_wrong() -> Iterator[None]:
    try:
        yield
    except AssertionError:
        return
    library = load_library()
    pytest.skip(
        f"oneDNN {library.version} on this CPU ({library.effective_isa}) is right by itself"
    )


@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU])
def test_negative_states_survive_int8(cell: Cell) -> None:
    """An s8 source loses negative states. Here they are u8 with a shift."""
    check(RnnSpec(cell, 32, 64), "u8", [5] * 4)


@pytest.mark.parametrize("hidden, projection", [(64, 32), (32, 32), (16, 2), (13, 7)])
@pytest.mark.parametrize("peephole", [False, True])
def test_a_narrow_projection_is_read_right(
    hidden: int, projection: int, peephole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 the layout that the primitive asks for is misread: it gets plain weights."""
    spec = RnnSpec(Cell.LSTM, 32, hidden, projection_size=projection, peephole=peephole)
    check(spec, "bf16", [5] * 4)
    monkeypatch.setattr(kernels, "OWN_LAYOUTS", ())
    with goes_wrong():
        check(spec, "bf16", [5] * 4)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_a_state_is_not_overwritten_while_it_is_read(dtype: str) -> None:
    """dst_iter in the place of src_iter gives another GRU: the state goes between two buffers."""
    check(RnnSpec(Cell.GRU, 32, 64), dtype, [1] * 4)
    check(RnnSpec(Cell.GRU, 32, 64), dtype, [5, 4, 3, 2, 1])  # many pieces, one step each


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("cell", [Cell.AUGRU, Cell.LBR_AUGRU])
@pytest.mark.parametrize("hidden", [1, 16, 31, 40])
def test_attention_reaches_every_sentence(
    cell: Cell, dtype: str, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brgemm gives later blocks of a batch the first one's attention: it gets plain weights."""
    spec = RnnSpec(cell, 7, hidden)
    for sentences in (1, 3, 15, 16, 17, 20, 25, 33, 36, 64):
        check(spec, dtype, [3] * sentences)
    if (cell, dtype, hidden) == (Cell.AUGRU, "bf16", 16):
        monkeypatch.setattr(kernels, "OWN_LAYOUTS", ())
        with goes_wrong():
            check(spec, dtype, [3] * 16)


def check_gradients(problem: Any) -> str:
    """Compares a layer's gradients with the reference's; returns why oneDNN does not train it."""
    return str(problem.check(problem.on("onednn", strict=False)).why)


@pytest.mark.parametrize(
    "projection, hidden", [(17, 3), (33, 5), (33, 8), (49, 12), (65, 16), (16, 4), (60, 15)]
)
def test_gradients_of_a_wide_projection_are_right(
    projection: int, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a projected state overruns the gates' rows: it is the reference's."""
    spec = RnnSpec(Cell.LSTM, 9, hidden, projection_size=projection)
    problem, wide = ragged_problem(spec, [3] * 17, 1), projection > 4 * hidden
    assert ("projection is wider than the gates" in check_gradients(problem)) == wide
    monkeypatch.setattr(training, "GRADIENTS", ())
    if not wide:
        assert check_gradients(problem) == ""
        return
    with goes_wrong():
        check_gradients(problem)


def test_a_primitive_may_run_in_another_thread_than_its_creators() -> None:
    """With the library's own scratchpad that crashes: each execution brings one."""
    spec = RnnSpec(Cell.LSTM, 32, 64)
    weights, x = random_weights(spec, 1), random_ragged([5] * 4, 32, 0)
    layer = prepare_on("onednn", spec, weights, threads=1)
    state = random_state(spec, 4, 3)
    layer.run(x, state)  # everything is made in this thread
    failures: list[BaseException] = []

    def run() -> None:
        try:
            check_layer(layer, spec, weights, x, state)
        except BaseException as error:
            failures.append(error)

    other = Thread(target=run)
    other.start()
    other.join()
    assert failures == []


def test_a_kernel_runs_with_the_threads_that_it_was_made_for() -> None:
    """With others one of 3.2's writes where it may not: the number is set around both."""
    spec = RnnSpec(Cell.LBR_GRU, 512, 512)
    with load_library().threads(1):
        check(spec, "bf16", [8] * 4, threads=2)
