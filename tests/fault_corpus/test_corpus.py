"""The fault corpus: onernn is right on every entry, and its runner tells what a framework does."""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from support.backends import BACKENDS
from support.interpreters import run_python

from onernn import load, verify
from onernn.adapters.loading import find_faults
from onernn.verification.auditing import AuditRun
from onernn.verification.recording import read_arrays

CORPUS = Path(__file__).parents[2] / "tools" / "fault_corpus"
FAULTS = json.loads((CORPUS / "faults.json").read_text(encoding="utf-8"))
ENTRIES = [f"{framework}/{entry}" for framework, entries in FAULTS.items() for entry in entries]
VERSIONS = {"paddle": ["2.6.2", "3.3.1"], "mxnet": ["1.9.1"]}


def verdicts(framework: str, version: str) -> dict[str, dict[str, str]]:
    return json.loads((CORPUS / "results" / f"{framework}-{version}.json").read_text())


def recordings(entry: str) -> list[Path]:
    return sorted((CORPUS / entry).glob("io*.npz"))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_onernn_is_right_where_the_framework_errs(entry: str, backend: str) -> None:
    model = load(CORPUS / entry)
    for recording in recordings(entry):
        report = verify(model, recording, backend=backend)
        assert report.passed, report.outputs


@pytest.mark.parametrize(
    "entry, change",
    [
        ("paddle/state_dropped", {"in__h0": 0.0}),
        ("paddle/state_stale", {"in__h0": 0.0}),
        ("mxnet/projection_crashes", {"in__state": 0.0}),
        ("mxnet/lengths_ignored", {"in__sequence_length": 6.0}),
    ],
)
def test_the_numbers_would_show_the_fault(entry: str, change: dict[str, float]) -> None:
    """What the fault leaves out moves the outputs by far more than is allowed."""
    arrays = read_arrays(recordings(entry)[0])
    arrays |= {key: np.full_like(arrays[key], value) for key, value in change.items()}
    report = verify(load(CORPUS / entry), arrays, diagnose=False, backend="reference")
    assert max(output.max_abs for output in report.outputs) > 0.02


def test_clips_and_origin_modes_are_in_the_files_and_would_be_missed() -> None:
    clipped = load(CORPUS / "mxnet" / "clip_ignored", semantics="mxnet-cpu")
    arrays = read_arrays(recordings("mxnet/clip_ignored")[0])
    report = verify(clipped, arrays, diagnose=False, backend="reference")
    assert max(output.max_abs for output in report.outputs) > 0.05
    cell = arrays["out__2"]
    assert ((cell >= -0.2) & (cell <= 0.3)).all() and np.isin(cell, (-0.2, 0.3)).sum() > 1
    program = (CORPUS / "paddle" / "origin_mode_ignored" / "model.pdmodel").read_bytes()
    assert b"origin_mode" in program


UNKNOWN = ("paddle/batch_stale", "paddle/outputs_clipped", "mxnet/relu_float64_rounded")
"""Faults that no model's file tells: `onernn audit` has no definition of them."""


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_definition_that_audit_has_of_a_fault_makes_it_in_the_entrys_model(entry: str) -> None:
    name = entry.split("/")[1].removesuffix("_fused")
    wanted = "not_fused" if name.startswith("not_fused") else name
    found = find_faults(CORPUS / entry)
    faults = [fault for fault in found.faults if fault.id == wanted]
    assert bool(faults) == (entry not in UNKNOWN)
    if any(fault.repeats for fault in faults):
        run = AuditRun(found, recordings(entry)[-1])
        outputs = [each for fault in faults for each in run.compare_outputs([fault])]
        assert not all(each.passed for each in outputs)


def test_expectations_are_float64_and_owe_nothing_to_onernn() -> None:
    for entry in ENTRIES:
        for recording in recordings(entry):
            with np.load(recording) as file:
                kinds = {file[key].dtype for key in file if key.startswith("out__")}
            assert kinds == {np.dtype(np.float64)}, entry
    for source in CORPUS.glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", source.read_text(), re.MULTILINE)
        assert "onernn" not in imported, source


def test_folders_entries_and_verdicts_are_the_same_and_small() -> None:
    for framework, entries in FAULTS.items():
        folders = {each.name for each in (CORPUS / framework).iterdir()}
        assert folders == set(entries)
        for version in VERSIONS[framework]:
            ways = {entry: fault["ways"] for entry, fault in entries.items()}
            found = verdicts(framework, version).items()
            assert {entry: list(said) for entry, said in found} == ways
    names = {f"{f}-{v}.json" for f, versions in VERSIONS.items() for v in versions}
    assert {file.name for file in (CORPUS / "results").iterdir()} == names
    kept = [
        file for file in CORPUS.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    ]
    assert sum(file.stat().st_size for file in kept) < 300_000


def test_every_entry_fails_somewhere() -> None:
    for framework, entries in FAULTS.items():
        results = [verdicts(framework, version) for version in VERSIONS[framework]]
        for entry in entries:
            said = {verdict for each in results for verdict in each[entry].values()}
            assert said - {"right", "absent"}, entry


def test_the_tables_of_the_readme_are_those_of_the_verdicts() -> None:
    made = run_python(CORPUS / "run.py", "--table", CORPUS / "results").stdout.strip()
    readme = (CORPUS / "README.md").read_text(encoding="utf-8")
    assert made in readme and made.count("**wrong") > 10


def test_models_tell_nothing_of_the_machine_that_made_them() -> None:
    for file in CORPUS.rglob("model*"):
        assert not re.search(rb"/(home|root|work|tmp|usr)/|op_callstack", file.read_bytes()), file


# A framework of the runner's own: what its symbol does stands in an environment variable.
STUB = """
import json, os, pathlib, signal, time
import numpy as np

__version__ = "0.1"
DOES = os.environ["DOES"]

class Symbol:
    def list_arguments(self): return ["data"]
    def bind(self, where, given):
        self.given = given
        return self
    def forward(self, is_train):
        if DOES == "raises": raise RuntimeError("no")
        if DOES == "crashes": os.kill(os.getpid(), signal.SIGSEGV)
        if DOES == "hangs": time.sleep(600)
        return [Array(self.given["data"].array + {"right": 0, "wrong": 0.5}.get(DOES, np.nan))]

class Array:
    def __init__(self, array): self.array = np.asarray(array)
    def asnumpy(self): return self.array[:, :1] if DOES == "short" else self.array

class nd:
    array = staticmethod(lambda array, dtype: Array(array))
    load = staticmethod(lambda file: {})

class sym:
    load = staticmethod(lambda file: Symbol())

cpu = lambda: None
"""


@pytest.mark.parametrize(
    "does, said",
    [
        ("right", "right"),
        ("wrong", "wrong, 0.5"),
        ("nan", "wrong, inf"),
        ("short", "wrong, inf"),
        ("raises", "raises"),
        ("crashes", "crash, SIGSEGV"),
        pytest.param("hangs", "hangs", marks=pytest.mark.long),
    ],
)
def test_the_runner_tells_what_a_framework_does(does: str, said: str, tmp_path: Path) -> None:
    entry, stubs = tmp_path / "mxnet" / "echo", tmp_path / "stubs"
    entry.mkdir(parents=True)
    stubs.mkdir()
    (stubs / "mxnet.py").write_text(STUB)
    np.savez(entry / "io.npz", in__data=np.ones((2, 2)), out__0=np.ones((2, 2)))
    source = (CORPUS / "run.py").read_text(encoding="utf-8")
    seconds = f"SECONDS = {3 if does == 'hangs' else 600}"  # on a busy machine all takes long
    (tmp_path / "run.py").write_text(re.sub(r"SECONDS = [\d.]+", seconds, source))
    (tmp_path / "faults.json").write_text('{"mxnet": {"echo": {"what": "", "ways": ["onednn"]}}}')
    environ = {**os.environ, "DOES": does, "PYTHONPATH": str(stubs)}
    status = 0 if does == "right" else 1
    done = run_python("run.py", "mxnet", cwd=tmp_path, env=environ, status=status)
    assert done.stdout == f"mxnet 0.1  echo, onednn: {said}\n", done


def test_the_log_of_a_predictor_tells_whether_it_fused() -> None:
    """Lines of Paddle 2.6.2, colours included: with and without a find behind the pass."""
    passes = "\x1b[32m--- Running IR pass [fc_gru_fuse_pass]\x1b[0m\n"
    found = "I1121 14:32:35.843645 26464 fuse_pass_base.cc:59] ---  detected 1 subgraphs\n"
    other = "\x1b[32m--- Running IR pass [seq_concat_fc_fuse_pass]\x1b[0m\n"
    fused = runpy.run_path(str(CORPUS / "run.py"))["FUSED"]
    assert fused.search(passes + found + other)
    assert not fused.search(passes + other + found)


def test_the_runner_says_which_entries_there_are_and_what_is_missing() -> None:
    for arguments, said in (
        (["mxnet", "--only", "nothing"], "no entry 'nothing'; there are lengths_ignored, "),
        (["paddle", "--only", "state_dropped"], "paddle cannot be imported"),
        ([], "name a framework: paddle or mxnet"),
    ):
        done = run_python(CORPUS / "run.py", *arguments, status=None)
        assert done.returncode and said in done.stderr, done
