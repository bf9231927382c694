"""backend="auto": kernels run what they have, oneDNN the rest, and what is missing is told."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_same
from support.gradients import ragged_problem
from support.interpreters import run_python
from support.layers import attention_for, prepare_on, random_ragged, random_state, random_weights

from onernn import Activation, Cell, LibraryError, RnnSpec, Session, UnsupportedError
from onernn.backend import auto, open_backend
from onernn.backend.compiled.library import load_kernels
from onernn.backend.process import WISHES

pytestmark = [
    pytest.mark.usefixtures("built"),
    pytest.mark.skipif("ONERNN_TEST_BACKEND" in os.environ, reason="another default backend"),
]


@pytest.fixture(autouse=True)
def _without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that are about AMX set it themselves: with it, oneDNN may run bf16 and u8."""
    monkeypatch.setattr(auto, "_cpu_has_amx", lambda: False)


SPEC = RnnSpec(Cell.LSTM, 6, 16, direction="bidirectional_concat", layers=2)
WEIGHTS = random_weights(SPEC, 0)

HIDDEN = {
    "oneDNN": "from onernn.backend.onednn import library; library.DISTRIBUTION = 'none'",
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
    kept = {k: v for k, v in os.environ.items() if k not in WISHES}
    done = run_python("-c", code, env=kept | environment)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())  # type: ignore[misc]


def test_without_onednn_the_kernels_run() -> None:
    said = told("oneDNN")
    assert said["auto"].startswith("kernels True LSTM left2right, f32, kernels")
    assert "without" not in said["auto"]  # nothing is missing for this layer
    assert said["onednn"].startswith("LibraryError libdnnl not found")
    assert "pip install" in said["onednn"]
    assert said["kernels"].startswith("kernels True") and "without" not in said["kernels"]


def test_without_kernels_onednn_runs_and_says_so() -> None:
    said = told("kernels")
    assert said["auto"].startswith("onednn True LSTM left2right, f32, oneDNN")
    assert "without kernels: " in said["auto"]
    assert said["kernels"].startswith("LibraryError")
    assert said["onednn"].startswith("onednn True") and "without" not in said["onednn"]


def test_without_both_only_the_reference_runs() -> None:
    said = told("oneDNN", "kernels")
    assert said["auto"].startswith("LibraryError without kernels: ")
    assert "without oneDNN: " in said["auto"]
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


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_every_batch_has_the_bits_of_the_kernels(dtype: str, threads: int) -> None:
    """On any number of threads: no choice depends on them."""
    auto_, kernels = (
        prepare_on(name, SPEC, WEIGHTS, threads=count, dtype=dtype)
        for name, count in (("auto", threads), ("kernels", 1))
    )
    assert auto_.backend == "kernels" and not auto_.why
    dense = uniform(7, 3, 6, seed=1)
    state = random_state(SPEC, 3, 2)
    for x, more in (
        (random_ragged([5, 0, 9], 6, 1), ()),
        (dense, ()),
        (dense[:1], ()),
        (np.ascontiguousarray(dense.swapaxes(0, 1)), (None, "ntc")),
    ):
        assert_same(*(layer.run(x, state, *more) for layer in (auto_, kernels)))


def test_onednn_is_not_opened_while_kernels_run_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in auto.WISHES:
        monkeypatch.delenv(variable, raising=False)
    backend = open_backend(threads=1)
    for dtype in ("f32", "bf16", "int8-dynamic"):
        layer = backend.prepare(SPEC, WEIGHTS, dtype=dtype)
        layer.run(random_ragged([5, 2], 6, 1))
    assert isinstance(backend, auto.AutoBackend) and [*backend._backends] == ["kernels"]


def test_a_damaged_onednn_is_told_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With AMX, oneDNN is to run bf16; if its library cannot be loaded, the kernels do."""
    monkeypatch.setattr(auto, "_cpu_has_amx", lambda: True)
    monkeypatch.setattr(auto.AutoBackend, "kernels", replace(load_kernels(), isa="avx512_bf16"))
    monkeypatch.delenv("ONERNN_MAX_ISA", raising=False)
    for variable in auto.WISHES:
        monkeypatch.delenv(variable, raising=False)
    known = auto.AutoBackend._open

    def damaged(self: Any, name: str) -> Any:
        if name == "oneDNN":
            raise LibraryError("libdnnl.so.3: expected a whole 64-bit ELF library")
        return known(self, name)

    monkeypatch.setattr(auto.AutoBackend, "_open", damaged)
    layer = open_backend(threads=1).prepare(SPEC, WEIGHTS, dtype="bf16")
    assert layer.backend == "kernels"


@pytest.mark.parametrize(
    "isa, dtype, first",
    [
        ("avx512_bf16", "f32", "kernels"),
        ("avx512_bf16", "bf16", "oneDNN"),
        ("avx512_bf16", "u8", "oneDNN"),
        ("avx512_amx", "bf16", "kernels"),
        ("avx512_amx", "u8", "kernels"),
    ],
)
def test_onednn_runs_on_amx_what_kernels_were_not_built_for(
    monkeypatch: pytest.MonkeyPatch, isa: str, dtype: str, first: str
) -> None:
    kernels = replace(load_kernels(), isa=isa)
    monkeypatch.setattr(auto.AutoBackend, "kernels", kernels)
    monkeypatch.setattr(auto.AutoBackend, "_has_amx", lambda _: True)
    backend = auto.AutoBackend()
    assert backend._order(dtype, ())[0] == first
    assert ("AMX" in backend.rule) == (isa == "avx512_bf16")


@pytest.mark.parametrize("dtype", ["bf16", "u8"])
@pytest.mark.parametrize("cell", [*Cell, "projected"])
def test_no_reference_loop_runs_or_trains(
    monkeypatch: pytest.MonkeyPatch, dtype: str, cell: Any
) -> None:
    """Also on a CPU with AMX, on which oneDNN has loops alone for some cells and for training."""
    monkeypatch.setattr(auto.AutoBackend, "_only_onednn_has_amx", lambda _: True)
    size = 16 if cell == "projected" else None
    spec = RnnSpec(Cell.LSTM if size else cell, 6, 24, projection_size=size)
    weights = random_weights(spec, 0)
    layer = auto.AutoBackend(threads=1).prepare(spec, weights, dtype=dtype)
    names = [layer.kernel, *([layer.trainer().name] if dtype == "bf16" else [])]
    assert not any(re.search(r"\bref\b", name) for name in names), names
    x = random_ragged([4, 2], 6, 1)
    attention = attention_for(spec, x, 3)
    got, _ = layer.run(x, attention=attention)
    want, _ = prepare_on("reference", spec, weights).run(x, attention=attention)
    np.testing.assert_allclose(got.data, want.data, atol=3e-2)


def test_what_onednn_lacks_runs_in_kernels() -> None:
    functions = (Activation("hardsigmoid", 0.2, 0.5), Activation("tanh"))
    spec = RnnSpec(Cell.GRU, 3, 4, activations=functions)
    layer = open_backend().prepare(spec, random_weights(spec, 0), strict=True)
    assert layer.backend == "kernels" and not layer.why


def test_what_nobody_knows_is_refused_once() -> None:
    with pytest.raises(UnsupportedError, match="^dtype 'f8': expected one of [a-z0-9, -]+$"):
        open_backend().prepare(SPEC, WEIGHTS, dtype="f8")


@pytest.mark.parametrize("cell", [Cell.LSTM, Cell.GRU, Cell.AUGRU])
def test_the_kernels_train(cell: Cell) -> None:
    problem = ragged_problem(RnnSpec(cell, 4, 5, direction="bidirectional_concat"), [3, 2], 1)
    tape = problem.check(open_backend().prepare(problem.spec, problem.weights, strict=True))
    assert tape.kernel.startswith("kernels") and not tape.why


def test_sessions_take_it_by_default(data: Path) -> None:
    session = Session(data / "paddle" / "fc_gru_h0_rev0")
    named = Session(data / "paddle" / "fc_gru_h0_rev0", backend="auto")
    assert session.explain() == named.explain() and "NumPy" not in session.explain()


def test_explain_tells_the_rule_and_what_it_rests_on(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(data / "paddle" / "fc_gru_h0_rev0")
    monkeypatch.setattr(auto, "MEASURED", {})
    assert "the kernels run every layer that they have" in session.explain()
    assert f"(with {load_kernels().isa}, both were not measured there" in session.explain()
    monkeypatch.setattr(auto, "MEASURED", dict.fromkeys(("v2", "avx2", "avx512"), "1 to 2"))
    assert "they run f32 at 1 to 2 times oneDNN's speed" in session.explain()
    named = Session(data / "paddle" / "fc_gru_h0_rev0", backend="kernels")
    assert "backend auto" not in named.explain()
