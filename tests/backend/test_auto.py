"""backend="auto": each batch runs where it was measured as faster, and what is missing is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from support.checking import check_layer
from support.layers import attention_for, random_ragged, random_state, random_weights

from onernn import Activation, Cell, LibraryError, RnnSpec, Session, UnsupportedError
from onernn.backend import auto, open_backend
from onernn.backend.choosing import Choice

pytestmark = [
    pytest.mark.usefixtures("built"),
    pytest.mark.skipif("ONERNN_TEST_BACKEND" in os.environ, reason="another default backend"),
]
SPEC = RnnSpec(Cell.LSTM, 6, 16, direction="bidirectional_concat", layers=2)
WEIGHTS = random_weights(SPEC, 0)

HIDDEN = {
    "oneDNN": "from onernn.backend.onednn import finding; finding.DISTRIBUTION = 'none'",
    "kernels": "import pathlib; from onernn.kernels import build; build.BUILT = pathlib.Path('/')",
}
RUN = """
import numpy as np
from onernn import Cell, LibraryError, RnnSpec, RnnWeights
from onernn.backend import open_backend
spec, rng = RnnSpec(Cell.LSTM, 2, 3), np.random.default_rng(0)
arrays = [rng.normal(size=(1, 1, *shape)).astype("f4") for shape in ((2, 4, 3), (3, 4, 3), (4, 3))]
x = np.ones((4, 2, 2), np.float32)
exact, _ = open_backend("reference").prepare(spec, RnnWeights(*arrays)).run(x)
def run(name):
    try:
        layer = open_backend(name).prepare(spec, RnnWeights(*arrays), strict=name != "reference")
        y, _ = layer.run(x)
        print(name, layer.backend, np.abs(y - exact).max() < 1e-5, layer.explain())
    except LibraryError as error:
        print(name, "LibraryError", error)
for name in ("auto", "onednn", "kernels", "reference"):
    run(name)
"""


def told(*hidden: str, **environment: str) -> dict[str, str]:
    """What each backend says in a process of its own, by name, where some libraries are hidden."""
    code = "\n".join([*(HIDDEN[name] for name in hidden), dedent(RUN)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())  # type: ignore[misc]


def test_without_onednn_the_kernels_run_and_say_so() -> None:
    said = told("oneDNN")
    assert said["auto"].startswith("kernels True LSTM left2right, f32, kernels")
    assert "without oneDNN: libdnnl not found" in said["auto"]
    assert "pip install" in said["auto"]
    assert said["onednn"].startswith("LibraryError libdnnl not found")
    assert said["kernels"].startswith("kernels True") and "without" not in said["kernels"]


def test_without_kernels_onednn_runs_and_says_so() -> None:
    said = told("kernels")
    assert said["auto"].startswith("onednn True LSTM left2right, f32, oneDNN")
    assert "without kernels: this installation has no kernels" in said["auto"]
    assert said["kernels"].startswith("LibraryError this installation has no kernels")
    assert said["onednn"].startswith("onednn True") and "without" not in said["onednn"]


def test_without_both_only_the_reference_runs() -> None:
    said = told("oneDNN", "kernels")
    assert said["auto"].startswith("LibraryError without oneDNN: libdnnl not found")
    assert "without kernels: this installation has no kernels" in said["auto"]
    assert said["reference"].startswith("reference True")


@pytest.mark.parametrize(
    "variable", ["ONERNN_DNNL_LIBRARY", "ONEDNN_MAX_CPU_ISA", "ONERNN_MAX_ISA"]
)
def test_a_wish_that_cannot_be_followed_is_refused(variable: str) -> None:
    said = told(**{variable: "/no/such/thing"})
    assert said["auto"].startswith(f"LibraryError {variable}=/no/such/thing: ")


def test_with_both_nothing_is_missing() -> None:
    said = told()
    assert all("True" in line and "without" not in line for line in said.values()), said


@pytest.mark.parametrize("ragged", [True, False])
def test_a_batch_has_the_bits_of_the_backend_that_the_table_names(
    monkeypatch: pytest.MonkeyPatch, ragged: bool
) -> None:
    monkeypatch.setattr(Choice, "prefers", lambda _, kind, sentences: (kind == "ragged") == ragged)
    monkeypatch.setattr(Choice, "ever", True)
    layers = {
        name: open_backend(name, threads=1).prepare(SPEC, WEIGHTS)
        for name in ("auto", "kernels", "onednn")
    }
    assert layers["auto"].backend == "auto"
    rng = np.random.default_rng(1)
    dense = rng.uniform(-1, 1, (7, 3, 6)).astype(np.float32)
    state = random_state(SPEC, 3, 2)
    for x, more in (
        (random_ragged([5, 0, 9], 6, 1), ()),
        (dense, ()),
        (np.ascontiguousarray(dense.swapaxes(0, 1)), (None, "ntc")),
    ):
        runs = {name: layer.run(x, state, *more) for name, layer in layers.items()}
        own = "kernels" if ragged == hasattr(x, "offsets") else "onednn"
        for got, want in zip(flat(runs["auto"]), flat(runs[own]), strict=True):
            np.testing.assert_array_equal(got, want)
        other = "onednn" if own == "kernels" else "kernels"
        assert any(
            not np.array_equal(a, b)
            for a, b in zip(flat(runs[own]), flat(runs[other]), strict=True)
        )


def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows when oneDNN is opened; kernels are faster for ragged batches alone."""
    calls: list[int] = []
    known = auto._onednn

    def opening(*given: Any) -> Any:
        calls.append(1)
        return known(*given)

    monkeypatch.setattr(auto, "_onednn", opening)
    monkeypatch.setattr(auto, "_may_wait", lambda: True)  # as where no variable asks for oneDNN
    monkeypatch.setattr(Choice, "prefers", lambda _, kind, sentences: kind == "ragged")
    monkeypatch.setattr(Choice, "ever", True)
    return calls


def test_onednn_is_opened_once_for_the_first_batch_that_it_is_faster_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = opened(monkeypatch)
    backend = open_backend(threads=1)
    layers = [backend.prepare(SPEC, WEIGHTS) for _ in range(2)]
    ragged = random_ragged([5, 2], 6, 1)
    dense = np.ones((3, 2, 6), np.float32)
    for layer in layers:
        layer.run(ragged)
    assert not calls
    for layer in layers:
        layer.run(dense)
        check_layer(layer, SPEC, WEIGHTS, ragged, random_state(SPEC, 2, 2))
    assert calls == [1]


@pytest.mark.parametrize("training", [False, True])
def test_where_onednn_cannot_be_loaded_when_it_is_wanted_kernels_run_and_say_so(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    opened(monkeypatch)

    def damaged(*_: Any) -> Any:
        raise LibraryError("libdnnl.so.3: not a 64-bit ELF library, or a truncated one")

    monkeypatch.setattr(auto, "_onednn", damaged)
    layer = open_backend(threads=1).prepare(SPEC, WEIGHTS)
    dense = np.ones((3, 2, 6), np.float32)
    y = layer.run_training(dense)[0] if training else layer.run(dense)[0]
    exact, _ = open_backend("reference").prepare(SPEC, WEIGHTS).run(dense)
    np.testing.assert_allclose(y, exact, atol=1e-5)
    assert layer.backend == "kernels" and "without oneDNN: libdnnl.so.3" in layer.explain()


def flat(run: Any) -> list[Any]:
    y, states = run
    return [getattr(y, "data", y), *states]


@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LBR_AUGRU, Cell.LSTM])
@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_right_whatever_the_table_says(cell: Cell, threads: int) -> None:
    spec = RnnSpec(cell, 5, 12)
    weights = random_weights(spec, 0)
    layer = open_backend(threads=threads).prepare(spec, weights, strict=True)
    for lengths in ([1], [1, 1, 1], [3, 3], [9, 1, 0, 4], []):
        x, state = random_ragged(lengths, 5, 1), random_state(spec, len(lengths), 2)
        check_layer(layer, spec, weights, x, state, attention_for(spec, x, 3))


def test_amx_is_onednns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_may_wait", lambda: False)  # as where the CPU has it
    monkeypatch.setattr(auto, "isa_of", lambda _: "amx")
    for dtype in ("f32", "bf16"):
        layer = open_backend().prepare(
            RnnSpec(Cell.GRU, 64, 64), random_weights(RnnSpec(Cell.GRU, 64, 64), 0), dtype=dtype
        )
        assert layer.backend == "onednn"


def test_more_threads_than_were_measured_are_onednns() -> None:
    layer = open_backend(threads=5).prepare(SPEC, WEIGHTS)
    assert layer.backend == "onednn" and not layer.why


def test_what_onednn_lacks_runs_in_kernels() -> None:
    functions = (Activation("hardsigmoid", 0.2, 0.5), Activation("tanh"))
    spec = RnnSpec(Cell.GRU, 3, 4, activations=functions)
    layer = open_backend().prepare(spec, random_weights(spec, 0), strict=True)
    assert layer.backend == "kernels" and not layer.why


def test_what_nobody_knows_is_refused_once() -> None:
    with pytest.raises(UnsupportedError, match="^dtype 'f8': expected one of [a-z0-9, -]+$"):
        open_backend().prepare(SPEC, WEIGHTS, dtype="f8")


def test_it_trains() -> None:
    x = random_ragged([3, 2], 6, 1)
    layer = open_backend().prepare(SPEC, WEIGHTS)
    y, _, tape = layer.run_training(x)
    gradients = layer.backward(tape, y)
    exact = open_backend("reference").prepare(SPEC, WEIGHTS)
    y, _, tape = exact.run_training(x)
    want = exact.backward(tape, y)
    np.testing.assert_allclose(gradients.x.data, want.x.data, atol=1e-5)


@pytest.mark.parametrize("cell, own", [(Cell.GRU, True), (Cell.GRU, False), (Cell.AUGRU, False)])
def test_who_trains_is_measured_but_for_what_only_kernels_train(
    monkeypatch: pytest.MonkeyPatch, cell: Cell, own: bool
) -> None:
    monkeypatch.setattr(Choice, "prefers", lambda _, kind, sentences: own)
    spec = RnnSpec(cell, 4, 5)
    for strict in (False, True):
        trainer = open_backend().prepare(spec, random_weights(spec, 0), strict=strict).trainer()
        assert trainer.name.startswith("kernels" if own or cell is Cell.AUGRU else "oneDNN")
        assert not trainer.why


def test_sessions_take_it_by_default(data: Path) -> None:
    session = Session(data / "paddle" / "fc_gru_h0_rev0")
    named = Session(data / "paddle" / "fc_gru_h0_rev0", backend="auto")
    assert session.explain() == named.explain() and "NumPy" not in session.explain()
