"""Paddle's faults repeated, beside its kernels written down again as they go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support import paddle_operators
from support.faulty import predicted
from support.paddle_operators import op

from onernn import Ragged
from onernn.adapters.common.fault import FaultyModel
from onernn.adapters.paddle.faults import find_faults
from onernn.adapters.paddle.read import Operator, Program, Variable
from onernn.ir.arrays import Array
from onernn.verification.auditing import AuditRun

C, O = 3, 2  # noqa: E741
WIDTHS = {"x": C, "h0": O, "c0": O}


def program(
    parameters: Mapping[str, Array], *operators: Operator, fetches: tuple[str, ...] = ("y",)
) -> Program:
    """Feeds x (ragged) and, where an operator reads them, h0 and c0."""
    read = {name for each in operators for name in each.reads}
    feeds = tuple(name for name in WIDTHS if name in read)
    declared = {n: Variable(n, 7, "float32", (None, w), int(n == "x"), False)
                for n, w in WIDTHS.items()}  # fmt: skip
    return paddle_operators.program(
        *operators, feeds=feeds, fetches=fetches, parameters=parameters, **declared
    )


def numbers(seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.uniform(-1, 1, s).astype(np.float32) for name, s in shapes.items()}


def recording(found: FaultyModel[Program], lengths: list[int], seed: int = 1) -> dict[str, Array]:
    given = {"lod__x": np.cumsum([0, *lengths])}
    for value in found.model.inputs:
        rows = sum(lengths) if value.name == "x" else len(lengths)
        given |= numbers(seed, **{f"in__{value.name}": (rows, WIDTHS[value.name])})
    return given


GRU = {"w": (C, 3 * O), "b": (3 * O,), "wh": (O, 3 * O), "bh": (1, 3 * O)}
LSTM = {"w": (C, 4 * O), "wh": (O, 4 * O), "bh": (1, 4 * O)}


FC = [op("mul X=x Y=w -> Out=m"), op("elementwise_add X=m Y=b -> Out=a", axis=1)]


def gru(bias: str = "bh", h0: str = "", **attributes: Any) -> Operator:
    return op(f"gru Input=a Weight=wh Bias={bias} H0={h0} -> Hidden=y", **attributes)


def fusion_gru(h0: str = "", **attributes: Any) -> Operator:
    slots = f"X=x WeightX=w WeightH=wh Bias=bh H0={h0}"
    return op(f"fusion_gru {slots} -> Hidden=y", **attributes)


def lstm(states: str = "") -> Operator:
    slots = f"Input=a Weight=wh Bias=bh {states}"
    return op(f"lstm {slots} -> Hidden=y Cell=c", use_peepholes=False)


def sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def step(gates: Array, h: Array, weights: Array) -> Array:
    """Paddle's gru_compute: update and reset, then the candidate, from gates with all biases."""
    flat = weights.astype(np.float64).reshape(-1)
    both, last = flat[: 2 * O * O].reshape(O, 2 * O), flat[2 * O * O :].reshape(O, O)
    u, r = np.split(sigmoid(gates[: 2 * O] + h @ both), 2)
    c = np.tanh(gates[2 * O :] + (r * h) @ last)
    return (1 - u) * h + u * c


def seq_compute(gates: Array, lengths: list[int], weights: Array, *, reverse: bool) -> Array:
    """SeqCompute of fusion_gru_op.cc, its pointers as one row number."""
    beyond = len(lengths)  # rows outside of the arrays, which the kernel reads and writes
    padded = np.pad(gates, ((beyond, beyond), (0, 0)))
    y = np.zeros((len(padded), O))
    row, move = (beyond + len(gates) - 1, -1) if reverse else (beyond, 1)
    for length in lengths[::-1] if reverse else lengths:
        y[row] = h = step(padded[row], np.zeros(O), weights)
        row += move
        for _ in range(1, length):
            y[row] = h = step(padded[row], h, weights)
            row += move
    return y[beyond : beyond + len(gates)]


def batch_compute(gates: Array, lengths: list[int], weights: Array, *, reverse: bool) -> Array:
    """BatchCompute of fusion_gru_op.cc: rows by time, longest sentence first, then pointers."""
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    starts = np.cumsum([0, *lengths])
    rows = [
        int(starts[n] + (lengths[n] - 1 - t if reverse else t))
        for t in range(max(lengths))
        for n in order
        if lengths[n] > t
    ]
    batched = np.pad(gates[rows], ((0, len(lengths)), (0, 0)))
    y = np.zeros((len(batched), O))
    for n in range(len(lengths)):  # the first step, for all sentences
        y[n] = step(batched[n], np.zeros(O), weights)
    before, at = 0, len(lengths)
    for t in range(1, max(lengths)):
        running = sum(length > t for length in lengths)
        for n in range(running):
            y[at + n] = step(batched[at + n], y[before + n], weights)
        before, at = at, at + running
    found = np.zeros((len(gates), O))
    found[rows] = y[: len(gates)]
    return found


def words(found: Mapping[str, Any], name: str = "y") -> Array:
    value = found[name]
    return value.data if isinstance(value, Ragged) else value


def gates_of(given: Mapping[str, Array], parameters: Mapping[str, Array], *biases: str) -> Array:
    gates = given["in__x"].astype(np.float64) @ parameters["w"]
    return gates + sum(parameters[name].reshape(-1) for name in biases)


def close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-6)


def counted(found: FaultyModel[Program], given: Mapping[str, Array]) -> dict[str, Any]:
    run = AuditRun(found, given)
    return {f.id: found for f in found.faults if (found := run.finding(f)).counts}


def test_a_bias_of_its_own_is_no_fault() -> None:
    found = find_faults(program(numbers(**GRU), *FC, gru()))
    assert not counted(found, recording(found, [3, 2]))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["pass", "sequences", "batches"])
@pytest.mark.parametrize(
    "lengths", [[3, 0, 2], [0, 0, 4, 1], [2, 5, 0], [1, 0, 6, 0, 3], [0, 3]], ids=str
)
def test_empty_sentences_are_misread(lengths: list[int], kind: str, reverse: bool) -> None:
    parameters = numbers(**GRU)
    if kind == "pass":
        found = find_faults(program(parameters, *FC, gru(h0="h0", is_reverse=reverse)))
    else:
        seq = {"use_seq": kind == "sequences"}
        found = find_faults(program(parameters, fusion_gru(is_reverse=reverse, **seq)))
    given = recording(found, lengths)
    gates = gates_of(given, parameters, "bh", *(["b"] if kind == "pass" else []))
    compute = batch_compute if kind == "batches" else seq_compute
    expected = compute(gates, lengths, parameters["wh"], reverse=reverse)
    close(words(predicted(found, "fused", given)), expected)
    assert "empty_sentences" in counted(found, given)
    assert "empty_sentences" not in counted(found, recording(found, [3, 1, 2]))


def test_a_state_of_its_own_keeps_the_native_kernel_right() -> None:
    found = find_faults(program(numbers(**GRU), fusion_gru(h0="h0")))
    assert [*counted(found, recording(found, [3, 0, 2]))] == ["state_stale"]


def test_a_cell_that_is_read_is_not_written() -> None:
    parameters = numbers(**LSTM)
    operators = [op("mul X=x Y=w -> Out=a"), lstm()]  # what mul_lstm_fuse_pass looks for
    alone = find_faults(program(parameters, *operators))
    assert not counted(alone, recording(alone, [2]))
    operators.append(op("tanh X=c -> Out=z"))
    read = find_faults(program(parameters, *operators, fetches=("y", "z")))
    (finding,) = counted(read, recording(read, [2])).values()
    assert (finding.fault, finding.value, finding.paths) == ("cell_unwritten", "c", ("onednn",))


READER = op("tanh X=a -> Out=z")
NOT_FUSED: dict[str, tuple[list[Operator], str]] = {
    "origin": ([*FC, gru(h0="h0", origin_mode=True)], "no GRU with origin_mode"),
    "no bias": ([*FC, gru(h0="h0", bias="")], "without a bias of its own"),
    "reader": ([*FC, gru(h0="h0"), READER], "another reader"),
    "fc": (
        [op("fc Input=x W=w Bias=b -> Out=a"), gru(h0="h0")],
        "after fc",
    ),
}


@pytest.mark.parametrize("name", NOT_FUSED)
def test_what_no_pass_fuses_has_no_fault_but_says_why(name: str) -> None:
    operators, reason = NOT_FUSED[name]
    fetches = ("y", "z") if READER in operators else ("y",)
    found = find_faults(program(numbers(**GRU), *operators, fetches=fetches))
    assert not counted(found, recording(found, [3, 0, 2]))
    (told,) = (fault for fault in found.faults if fault.id == "not_fused")
    assert reason in told.text and told.effect == "slower"


def test_an_lstm_behind_a_bias_is_not_fused() -> None:
    parameters = numbers(**LSTM, b=(4 * O,))
    found = find_faults(program(parameters, *FC, lstm("H0=h0 C0=c0")))
    assert not counted(found, recording(found, [3, 0, 2]))
    assert "fc_lstm_fuse_pass is disabled" in found.faults[0].text


def test_the_cost_of_padding_is_that_of_the_batch() -> None:
    found = find_faults(program(numbers(**GRU), *FC, gru()))
    run = AuditRun(found, recording(found, [10, 1, 1]))
    (told,) = (run.finding(fault) for fault in found.faults if fault.id == "padded")
    assert "30 rows for 12 steps, 2.5 times as many" in told.text and not told.counts
