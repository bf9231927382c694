"""The doctor: tells the machine, examines every combination, and sees a wrong number."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from support.interpreters import run_python

from onernn import LibraryError
from onernn.backend import open_backend
from onernn.backend.compiled.library import load_kernels
from onernn.backend.onednn import kernels, training
from onernn.backend.onednn.library import load_library
from onernn.backend.process import DNNL_LIBRARY
from onernn.kernels import build
from onernn.verification import doctor
from onernn.verification.doctor import (
    DTYPES,
    MODES,
    NEVER_RAN,
    REFUSED,
    SLOWER,
    WORKS,
    WRONG,
    Combination,
    Examination,
    Finding,
    examine,
    examine_one,
)
from onernn.verification.suite import DIRECTIONS, KINDS


@pytest.fixture(scope="module")
def here() -> Examination:
    return examine(threads=1, backend="onednn")


@pytest.fixture(scope="module")
def by_kernels(built: Path) -> Examination:
    return examine(threads=1, backend="kernels")


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", dedent(code), *arguments, env=os.environ | environment, status=None)


def run_doctor(
    *arguments: str, change: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command with one cell, so that it is quick. ``change``: code that runs before it."""
    code = f"""
    from onernn import cli
    from onernn.verification import doctor
    doctor.KINDS = {{"GRU": doctor.KINDS["GRU"]}}
    {change}
    cli.main()
    """
    return run(code, "doctor", *arguments, **environment)


def test_every_combination_is_examined_and_none_is_wrong(here: Examination) -> None:
    assert len(here.findings) == len(KINDS) * len(DIRECTIONS) * len(DTYPES) * len(MODES)
    assert [f for f in here.findings if f.verdict == WRONG] == [] and here.passed
    assert all(f.kernel and np.isfinite(f.max_error) for f in here.findings if f.verdict != REFUSED)
    assert all(f.reason for f in here.findings if f.verdict != WORKS)


def test_what_the_guide_has_works_or_is_told_why_not(here: Examination) -> None:
    """Of float32 and bf16, on a CPU that has both, nothing else is slower."""
    if not any(isa in here.isa for isa in ("bf16", "fp16", "amx")):
        pytest.skip("this CPU has no bf16")
    asked = [f for f in here.findings if f.guide and f.combination.dtype in ("f32", "bf16")]
    assert len(asked) == (2 * len(KINDS) * 2 - 2 * 2) * len(DIRECTIONS)  # bf16 has no projection
    for finding in asked:
        if finding.verdict != WORKS:
            assert finding.verdict == SLOWER and finding.combination.mode == "training"
            assert "wrong gradients unless attention is 0" in finding.reason


def test_what_never_ran_on_any_machine_is_told_as_such(here: Examination) -> None:
    f16 = [f for f in here.findings if f.combination.dtype == "f16" and f.verdict != WORKS]
    if not f16:
        pytest.skip("this CPU has f16")
    never = {f.combination.cell for f in f16 if f.verdict == NEVER_RAN}
    assert never == {cell for cell in KINDS if "projection" not in cell}
    for finding in f16:
        asked = finding.guide and finding.combination.mode == "inference"
        assert (finding.verdict == NEVER_RAN) == asked
        assert finding.kernel == "NumPy reference" and finding.max_error < 1e-5
    assert "never ran (" in doctor.markdown(here)
    others = [f for f in here.findings if f.combination.dtype != "f16"]
    assert all(f.verdict != NEVER_RAN for f in others)


def test_the_machine_is_told(here: Examination) -> None:
    library = load_library()
    assert (here.isa, here.version) == (library.effective_isa, library.version)
    assert here.path == str(library.path) and here.threads == 1


def test_float32_works_on_onednn_for_every_cell_and_direction(here: Examination) -> None:
    inference = [f for f in here.findings if f.combination[2:] == ("f32", "inference")]
    assert {f.verdict for f in inference} == {WORKS}
    assert all("oneDNN" in f.kernel for f in inference)


def examined(combination: Combination, backend: str = "onednn") -> Finding:
    return examine_one(open_backend(backend, threads=1), combination)


class Distorted:
    """A backend whose layers are wrong somewhere."""

    def __init__(self, distort: Any, backend: str = "onednn") -> None:
        self._distort, self._backend = distort, backend

    def prepare(self, spec: Any, weights: Any, *, dtype: str = "f32", strict: bool = False) -> Any:
        layer = open_backend(self._backend, threads=1).prepare(spec, weights, dtype=dtype)
        run = layer.run
        layer.run = lambda *arguments: self._distort(*run(*arguments))  # type: ignore[method-assign]
        return layer


def with_word(at: int, change: float, y: Any) -> Any:
    words = getattr(y, "data", y).copy()
    words.reshape(-1)[at] += np.float32(change)
    return y.with_data(words) if hasattr(y, "offsets") else words


DISTORTIONS = {
    "in y": lambda y, state: (with_word(-1, 1e-3, y), state),
    "in the state": lambda y, state: (y, tuple(s + np.float32(1e-3) for s in state)),
    "not a number": lambda y, state: (with_word(0, np.nan, y), state),
}


@pytest.mark.parametrize("distort", DISTORTIONS.values(), ids=DISTORTIONS)
@pytest.mark.parametrize(
    "backend, direction, dtype",
    [
        ("onednn", "bidirectional_concat", "f32"),
        # 1e-3 off, where the weights' own rounding changes more.
        ("kernels", "left2right", "int8-weights"),
    ],
)
def test_a_wrong_number_is_seen(
    built: Path, backend: str, direction: Any, dtype: str, distort: Any
) -> None:
    combination = Combination("GRU", direction, dtype, "inference")
    assert examined(combination, backend).verdict == WORKS
    finding = examine_one(Distorted(distort, backend), combination)
    assert finding.verdict == WRONG and finding.reason


@pytest.mark.parametrize("dtype", ["int8-dynamic", "int8-weights"])
@pytest.mark.parametrize("cell", ["LBR AUGRU", "LSTM peephole projection", "RNN relu"])
def test_the_types_of_kernels_work_and_only_there(built: Path, cell: str, dtype: str) -> None:
    combination = Combination(cell, "bidirectional_sum", dtype, "inference")
    finding = examined(combination, "kernels")
    assert finding.verdict == WORKS and 0 < finding.max_error, finding
    finding = examined(combination)
    assert finding.verdict == REFUSED and f"oneDNN has no {dtype}" in finding.reason
    finding = examined(combination._replace(mode="training"), "kernels")
    assert finding.verdict == REFUSED and "prepare the layer in f32" in finding.reason


def test_columns_in_which_nothing_runs_are_left_out(here: Examination) -> None:
    """The kernels' own types, where oneDNN alone is examined."""
    assert "int8-weights inference" in doctor.COLUMNS
    shown = doctor.columns(here)
    assert "u8 training" in shown and not any("int8" in name for name in shown)
    assert all(len(row) == 2 + len(shown) for row in doctor.rows(here))


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    combination = Combination("GRU", "left2right", "f32", "training")
    assert examined(combination).verdict == WORKS
    from onernn.backend import Stack

    true = Stack.backward

    def backward(self: Any, *arguments: Any) -> Any:
        gradients = true(self, *arguments)
        return replace(gradients, state=tuple(-s for s in gradients.state))

    monkeypatch.setattr(Stack, "backward", backward)
    finding = examined(combination)
    assert finding.verdict == WRONG and finding.reason.startswith("dstate0")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_attention_lost_between_blocks_of_a_batch_is_seen(
    direction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    combination = Combination("AUGRU", direction, "bf16", "inference")
    assert examined(combination).verdict != WRONG
    monkeypatch.setattr(kernels, "OWN_LAYOUTS", ())  # the routing removed
    finding = examined(combination)
    if "brgemm" not in finding.kernel:
        pytest.skip(f"{finding.kernel} is right by itself")
    assert finding.verdict == WRONG


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gradients_of_a_wide_projection_are_looked_at(
    direction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    combination = Combination("LSTM projection", direction, "f32", "training")
    finding = examined(combination)
    assert finding.verdict == WORKS and "wider than the gates" in finding.reason
    monkeypatch.setattr(training, "GRADIENTS", ())
    assert examined(combination).verdict == WRONG


def test_what_runs_on_numpy_is_told_as_slower(here: Examination) -> None:
    by = {f.combination: f for f in here.findings}
    finding = by[Combination("AUGRU", "left2right", "u8", "inference")]
    assert finding.verdict == SLOWER and "no u8 GRU with attention" in finding.reason
    assert finding.kernel == "NumPy reference" and finding.max_error < 1e-5


class TestCommand:
    def test_without_full_it_shows_versions_and_runs_nothing(self, repo: Path) -> None:
        done = run_doctor(change="doctor.open_backend = None")
        first, *lines = done.stdout.splitlines()
        assert done.returncode == 0, done.stderr
        assert first.startswith(f"onernn {metadata.version('onernn')}, Python {sys.version[:4]}")
        (packages,) = (line for line in lines if line.startswith("packages: "))
        assert f"numpy {np.__version__}" in packages and "missing" not in packages
        extras = [line.strip() for line in lines[lines.index("extras") + 1 : -1]]
        page = (repo / "docs/install.md").read_text().split("## Without a network")[0]
        documented = re.findall(r"\| `([\w-]+)` \|", page)
        assert {line.split(":")[0] for line in extras} == {*documented}
        for line in extras:
            assert ("pip install 'onernn[" in line) == ("needs" in line)

    def test_json_holds_what_it_shows(self) -> None:
        report = json.loads(run_doctor("--json").stdout)
        assert report["status"] == "pass" and report["findings"] == []
        assert "spark" in report["extras"]
        numpy = next(each for each in report["packages"] if each["name"] == "numpy")
        assert numpy["version"] == np.__version__ and numpy["fits"]

    @pytest.mark.parametrize("version, told", [("", "missing"), ("0.9", "0.9")])
    def test_a_package_that_does_not_fit_is_told_and_it_exits_with_1(
        self, version: str, told: str, tmp_path: Path
    ) -> None:
        """By the metadata of another onernn, which needs a package that is old or missing."""
        for name, number in {"onernn": "9", "needed-thing": version}.items():
            folder = tmp_path / f"{name.replace('-', '_')}-{number}.dist-info"
            if number:
                folder.mkdir()
                text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
                needs = "Requires-Dist: needed-thing>=1\n" if name == "onernn" else ""
                (folder / "METADATA").write_text(text + needs)
        path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
        done = run_doctor(PYTHONPATH=path)
        assert f"packages: needed-thing {told} (needs >=1)" in done.stdout
        assert done.returncode == 1, done.stderr

    def test_a_backend_is_refused_unless_it_is_run(self) -> None:
        done = run_doctor("--backend", "kernels")
        assert done.returncode == 2 and "--backend kernels belongs to --full" in done.stderr

    def test_json_holds_everything(self) -> None:
        done = run_doctor("--full", "--json", "--threads", "1")
        report = json.loads(done.stdout)
        assert done.returncode == 0 and report["status"] == "pass" and report["cause"] is None
        assert report["kernels"]
        assert report["version"] == load_library().version and report["other_copies"] == []
        assert len(report["findings"]) == len(DIRECTIONS) * len(DTYPES) * len(MODES)
        assert set(report["findings"][0]) == {
            *("cell", "direction", "dtype", "mode"),
            *("verdict", "kernel", "max_error", "reason", "guide"),
        }

    @pytest.mark.parametrize("cap", list(build.isas())[::2])
    def test_which_kernels_these_are_is_told(self, cap: str) -> None:
        """Or why there are none, and how to get them."""
        done = run_doctor(ONERNN_MAX_ISA=cap)
        (told,) = [line for line in done.stdout.splitlines() if line.startswith("kernels: ")]
        try:
            known = list(build.isas())
            sets = [i for i in load_kernels().runs if known.index(i) <= known.index(cap)]
            isa = [each for each in sets if build.library_of(each).exists()][-1]
            assert told.startswith(f"kernels: {isa} ({build.library_of(isa)}")
        except LibraryError:
            assert told.startswith("kernels: none: ") and "build.py" in told

    def test_kernels_are_examined_without_onednn(self, built: Path) -> None:
        nowhere = {DNNL_LIBRARY: "/nowhere.so"}
        done = run_doctor("--full", "--json", "--backend", "kernels", **nowhere)
        report = json.loads(done.stdout)
        assert done.returncode == 0 and report["version"] == "missing"
        assert "no such file" in report["path"]
        ran = [each for each in report["findings"] if each["kernel"].startswith("kernels ")]
        assert len(ran) > len(report["findings"]) / 2

    def test_without_the_library_it_exits_with_2(self) -> None:
        done = run_doctor("--full", "--json", **{DNNL_LIBRARY: "/nowhere.so"})
        assert done.returncode == 2 and "no such file" in done.stderr
        assert json.loads(done.stdout)["status"] == "error"

    def test_it_exits_with_1_on_a_wrong_number(self) -> None:
        intolerant = "doctor.TOLERANCES = dict.fromkeys(doctor.DTYPES, doctor.Tolerance(0, 0))"
        done = run_doctor("--full", "--threads", "1", change=intolerant)
        assert done.returncode == 1, done.stderr
        verdict, *lines = done.stdout.splitlines()
        assert verdict.startswith("verdict: FAIL: ")
        assert any("apart, 0 allowed" in line for line in lines[:9]) and "WRONG" in done.stdout

    def test_a_verdict_comes_first_then_the_tables(self) -> None:
        done = run_doctor("--full", "--threads", "1")
        assert done.returncode == 0 and done.stdout.startswith("verdict: pass: ")
        assert "max error" in done.stdout and "reasons" in done.stdout


@pytest.mark.parametrize("cap", ["AVX2", "AVX512_CORE"])
def test_u8_is_refused_where_sums_of_its_products_saturate(cap: str) -> None:
    """Without VNNI u8*s8 products are added in pairs of 16 bits: errors of 0.05 to 0.4."""
    code = """
    from onernn.backend import open_backend
    from onernn.backend.onednn.library import load_library
    from onernn.verification.doctor import Combination, examine_one

    def told():
        asked = Combination("GRU", "left2right", "u8", "inference")
        found = examine_one(open_backend("onednn", threads=1), asked)
        return f"{found.verdict}: {found.reason}"

    print(load_library().effective_isa)
    print(told())
    vars(load_library())["sums_u8_exactly"] = True  # the routing removed
    print(told())
    """
    done = run(code, ONEDNN_MAX_CPU_ISA=cap)
    assert done.returncode == 0, done.stderr
    isa, routed, unrouted = done.stdout.splitlines()
    if isa != cap.lower():
        pytest.skip(f"this CPU has no {cap}")
    assert routed.startswith("slower path: u8 needs AVX-512 VNNI, this is")
    assert unrouted.startswith("WRONG")


NUMBER = re.compile(r"\de-\d\d")
ANYWHERE = [0, 1, 2, 6]  # the columns that no machine changes: cell, direction, f32


def verdicts(table: list[str], columns: list[int] | None = None) -> list[list[str]]:
    """The entries of each row without their numbers."""
    rows = [NUMBER.sub("#", row).strip("| ").split(" | ") for row in table[2:]]
    return rows if columns is None else [[row[c] for c in columns] for row in rows]


def between(repo: Path, start: str, end: str) -> str:
    """A table of the manual."""
    text = (repo / "docs" / "reference" / "cells.md").read_text()
    assert text.count(start) == 1
    return text.split(start)[1].split(end)[0].strip()


class TestManual:
    """The tables in the manual are what `onernn doctor --markdown` prints."""

    @pytest.mark.parametrize("backend, examined", [("onednn", "here"), ("kernels", "by_kernels")])
    def test_it_says_what_runs_here(
        self, repo: Path, backend: str, examined: str, request: pytest.FixtureRequest
    ) -> None:
        start = f"<!-- onernn doctor --markdown --backend {backend} -->"
        table = between(repo, start, "<!-- end of it -->").splitlines()
        made = doctor.markdown(request.getfixturevalue(examined)).splitlines()
        columns = None if table[0] == made[0] else ANYWHERE
        assert verdicts(table, columns) == verdicts(made, columns)

    def test_its_table_of_data_types_is_made_of_those_of_the_documents(self, repo: Path) -> None:
        table = between(repo, "<!-- data types -->", "<!-- end of data types -->")
        assert table == doctor.data_types()
