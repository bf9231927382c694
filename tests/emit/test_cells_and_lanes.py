"""Generated layers on each instruction set, in each storage of weights.

The kernels themselves are tested in tests/kernels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_close
from support.compiling import CHECKED, EMULATOR
from support.emitting import build
from support.graphs import new_node, small
from support.layers import random_ragged, random_state, random_weights

from onernn import Cell, Graph, Ragged, RnnSpec, RnnWeights
from onernn.backend import reference_stack
from onernn.backend.compiled.packing import narrow_numbers
from onernn.ir.graph import Node

TARGETS = {
    "plain": ("-O1",),
    "avx2": ("-O1", "-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-O1", "-march=skylake-avx512"),
}
# Panels that are not full, one, two and four side by side; more steps than are projected at once;
# sentences that end together and alone.
SPECS = {
    "gru": RnnSpec(Cell.GRU, 21, 51, direction="bidirectional_concat"),
    "lbr": RnnSpec(Cell.LBR_GRU, 5, 33, update="replace"),
    "lstm": RnnSpec(Cell.LSTM, 7, 19, direction="right2left", peephole=True, projection_size=20),
    "rnn": RnnSpec(Cell.RNN_TANH, 3, 50, layers=2, direction="bidirectional_sum"),
}
CASES: list[Any] = [("plain", "f32")]
_WIDER = [("avx2", "f16"), ("avx512", "bf16"), ("avx512", "f32")]
CASES += [pytest.param(*case, marks=pytest.mark.long) for case in _WIDER]
if EMULATOR:  # CXX says for which instruction set
    CASES = [("plain", "f32"), ("plain", "f16")]
LENGTHS = [40, 0, 3, 1, 17, 2, 3, 9, 9, 1]


def graph_of(spec: RnnSpec, weights: list[RnnWeights]) -> Graph:
    """x ragged, states in; y and states out."""
    names = spec.cell.states
    widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
    states = {s: (spec.layers, spec.directions, None, widths[s]) for s in names}
    outputs = ("y", *(f"{s}_n" for s in names))
    node = Node("Rnn", ("x", *names), outputs, {"spec": spec, "weights": weights})
    return small((node,), {"x": [None, spec.input_size], **states}, " ".join(outputs))


def as_stored(weights: RnnWeights, stored: str) -> RnnWeights:
    """In float64, matrices rounded as the file has them."""

    def matrix(array: Any) -> Any:
        if array is None:
            return None
        bits = narrow_numbers(array, stored)
        if stored == "BrainPair":
            bits = (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.astype(np.float64)

    def wide(array: Any) -> Any:
        return None if array is None else array.astype(np.float64)

    return RnnWeights(
        matrix(weights.layer),
        matrix(weights.iter),
        wide(weights.bias),
        wide(weights.peephole),
        matrix(weights.projection),
    )


def check(
    emitted: Any,
    spec: RnnSpec,
    weights: list[RnnWeights],
    stored: str,
    *,
    lengths: list[int] = LENGTHS,
    rounded: bool = False,
    rtol: float = 1e-5,
) -> dict[str, Any]:
    """What the code gave.

    ``rounded``: the reference sees inputs and states in bf16, the code inputs as they are.
    """
    x = random_ragged(lengths, spec.input_size, 5)
    state = random_state(spec, len(lengths), 6)
    layer = reference_stack(spec, [as_stored(one, stored) for one in weights], "f64")
    if rounded:
        state = tuple(brain(s) for s in state)
    y, final = layer.run(x.with_data(brain(x.data)) if rounded else x, state)
    want = {"y": y, **dict(zip([f"{s}_n" for s in spec.cell.states], final, strict=True))}
    feed = {"x": x, **dict(zip(spec.cell.states, state, strict=True))}
    status, got = emitted.run(feed, want)
    assert status == 0, got
    for name, expected in want.items():
        flat = (expected.data if isinstance(expected, Ragged) else expected).reshape(-1)
        assert_close(got[name], flat, rtol)
    return got


def brain(array: Any) -> Any:
    """Rounded to bfloat16, as float32."""
    return (narrow_numbers(array, "BrainPair").astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("target, weights", CASES)
def test_every_instruction_set_computes_the_same(target: str, weights: str, tmp_path: Path) -> None:
    if target.startswith("avx") and not runs(target):
        pytest.skip(f"this CPU has no {target}")
    numbers = {name: random_weights(spec, 3) for name, spec in SPECS.items()}
    chosen = SPECS if weights == "f32" else {"gru": SPECS["gru"]}
    models = {name: graph_of(spec, numbers[name]) for name, spec in chosen.items()}
    emitted = build(models, tmp_path, TARGETS[target], weights=weights)
    stored = {"f32": "float", "f16": "Half", "bf16": "BrainPair"}[weights]
    for name, spec in chosen.items():
        check(emitted[name], spec, numbers[name], stored)


def runs(target: str) -> bool:
    """Whether this CPU has what the flags ask for."""
    known = {"avx512": ["avx512f"], "avx512bf16": ["avx512_bf16"]}
    return set(known.get(target, ["avx2", "fma", "f16c"])) <= set(
        Path("/proc/cpuinfo").read_text().split()
    )


ODD = {
    "odd_lbr": RnnSpec(Cell.LBR_GRU, 17, 13, direction="bidirectional_concat"),
    "odd_lstm": RnnSpec(Cell.LSTM, 17, 13, direction="bidirectional_sum"),
}


@pytest.mark.long
def test_pairs_of_bf16_are_multiplied_exactly_and_rounded_to_nearest(tmp_path: Path) -> None:
    """AVX512_BF16. One word a sentence: what is rounded is what the reference is given.

    Afterwards each state is rounded by up to 2^-8 of itself before it is multiplied, as oneDNN's
    is: hence the tolerance of bf16. Wide layers are compared in test_kernels_backend.
    """
    if not runs("avx512bf16"):
        pytest.skip("this CPU has no AVX512_BF16")
    numbers = {name: random_weights(spec, 3) for name, spec in ODD.items()}
    models = {name: graph_of(spec, numbers[name]) for name, spec in ODD.items()}
    matrix = uniform(301, 70, bound=0.1)
    models["product"] = small((new_node("y = MatMul x matrix"),), {"x": (None, 301)}, matrix=matrix)
    flags = (*CHECKED, "-march=skylake-avx512", "-mavx512bf16")
    emitted = build(models, tmp_path, flags, weights="bf16")
    for name, spec in ODD.items():
        check(emitted[name], spec, numbers[name], "BrainPair", rtol=2e-2)
        lengths = [1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1]
        check(emitted[name], spec, numbers[name], "BrainPair", lengths=lengths, rounded=True)
    x = uniform(13, 301, seed=1, bound=2)
    exact = brain(x).astype(np.float64) @ brain(matrix)
    status, got = emitted["product"].run({"x": x}, {"y": exact})
    assert status == 0
    assert_close(got["y"], exact.reshape(-1))


@pytest.mark.long
def test_any_number_of_threads_gives_the_same_bits_and_races_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few, as large products want them; then a number that takes part in all of them."""
    lengths = [5, 0, 3, 1]
    # Of one sequence each product has work for several threads.
    specs = {name: replace(SPECS[name], hidden_size=300) for name in ("gru", "lbr")}
    weights = {name: random_weights(spec, 3) for name, spec in specs.items()}
    graphs = {name: graph_of(spec, weights[name]) for name, spec in specs.items()}
    flags = ("-O1", "-g1", "-fsanitize=thread")
    try:
        emitted = build(graphs, tmp_path, flags, threads=8)
    except AssertionError as error:
        if "tsan" in str(error):
            pytest.skip("no thread sanitizer here")
        raise
    for name, spec in specs.items():
        results = []
        for team in ("1", "2", "3", "8", "-2", "-3", "-8", "-64"):
            monkeypatch.setenv("ONERNN_TEAM", team)
            results.append(check(emitted[name], spec, weights[name], "float", lengths=lengths))
        for one in results[1:]:
            for output, array in one.items():
                np.testing.assert_array_equal(array, results[0][output])
