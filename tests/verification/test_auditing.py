"""The audit as a user asks for it: from Python and from the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.command_line import onernn
from support.interpreters import run_python

from onernn import ModelFormatError, UnsupportedError, audit, load
from onernn.adapters import loading, paddle
from onernn.verification.recording import read_arrays


@pytest.fixture
def model(data: Path) -> Path:
    return data / "paddle" / "fc_gru_h0_rev0"


def test_a_recording_decides_what_counts(model: Path) -> None:
    """Its inputs hold no empty sentence, the made ones do."""
    assert 0 not in np.diff(read_arrays(model / "io.npz")["lod__x"])
    for given, expected in (
        (None, {"state_dropped", "empty_sentences"}),
        (True, {"state_dropped"}),
    ):
        report = audit(model, model / "io.npz" if given else None)
        assert {each.fault for each in report.findings if each.counts} == expected
        assert not report and not report.passed


def test_a_loaded_graph_is_as_good_as_its_file(model: Path) -> None:
    by_file, by_graph = audit(model, model / "io.npz"), audit(load(model), model / "io.npz")
    assert [f.max_abs for f in by_file.findings] == [f.max_abs for f in by_graph.findings]


def test_all_faults_of_a_path_are_shown_together(model: Path) -> None:
    report = audit(model)
    assert report.paths["plain"] == ()
    fused, onednn = (report.paths[path][0].max_abs for path in ("fused", "onednn"))
    single = {each.fault: each.max_abs for each in report.findings}
    assert onednn == single["state_dropped"] != single["empty_sentences"] == fused


def test_a_model_without_known_faults_passes(data: Path) -> None:
    for name in ("origin_mode_reverse", "rnn_lstm", "pooled"):
        report = audit(data / "paddle" / name)
        assert report and not any(each.counts for each in report.findings)


def test_a_framework_without_known_faults_says_so(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = replace(paddle.ADAPTER, name="Bare", find_faults=None)
    monkeypatch.setattr(loading, "adapter_of", lambda _: bare)
    with pytest.raises(UnsupportedError, match="ONNX's.* not Bare's"):
        audit(model)


def test_what_cannot_be_audited_says_why(model: Path, data: Path, tmp_path: Path) -> None:
    for name in ("model.onnx", "nothing"):
        with pytest.raises(ModelFormatError, match=f"{name}.* no such file"):
            audit(tmp_path / name)
    with pytest.raises(UnsupportedError, match="params"):
        audit(tmp_path / "model.onnx", params=tmp_path)
    with pytest.raises(ModelFormatError, match="in__h0"):
        arrays = read_arrays(model / "io.npz")
        audit(model, {key: array for key, array in arrays.items() if key != "in__h0"})


def test_the_command_line_tells_faults_and_exits_with_1(model: Path, tmp_path: Path) -> None:
    run = onernn("audit", model)
    assert run.returncode == 1 and not run.stderr
    for part in (
        "state_dropped",
        "gru that makes 'tmp_3'",
        "fused, onednn",
        "times as many",
        "2 known faults",
    ):
        assert part in run.stdout
    run = onernn("audit", model, "--data", model / "io.npz", "--json")
    assert run.returncode == 1
    found = json.loads(run.stdout)
    assert found["status"] == "fail" and found["cause"] is None
    first = found["findings"][0]
    assert first["counts"] is True
    assert (first["fault"], first["operator"]) == ("state_dropped", "gru that makes 'tmp_3'")
    assert first["max_abs"] == first["outputs"][0]["max_abs"] > 0.1
    moved = shutil.copy(model / "model.pdiparams", tmp_path / "elsewhere")
    assert onernn("audit", model, "--params", moved).returncode == 1


def test_the_command_line_exits_with_0_and_2(data: Path, tmp_path: Path) -> None:
    run = onernn("audit", data / "paddle" / "rnn_gru", "--json")
    assert run.returncode == 0 and json.loads(run.stdout)["status"] == "pass"
    run = onernn("audit", tmp_path / "nothing", "--json")
    assert run.returncode == 2 and json.loads(run.stdout)["status"] == "error"
    assert run.stderr.startswith("onernn: ") and "Traceback" not in run.stderr


def test_no_framework_is_imported(model: Path) -> None:
    script = "import sys, onernn; onernn.audit(sys.argv[1]);"
    script += "print([m for m in ('paddle', 'mxnet', 'torch', 'onnx') if m in sys.modules])"
    assert run_python("-c", script, model).stdout == "[]\n"
