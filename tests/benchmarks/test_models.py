"""Whole models in the harness: rounds of calls, who is compared with whom, how files are got."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interpreters import run_python

HEAD = """
from benchmarks.models import in_turn
from benchmarks.tasks import LeftOut, Takes
import numpy as np

PACKAGES = ("numpy",)
MODES = {"": Takes("paddle")}

def versions():
    return {}

def prepare(task, mode):
    of = lambda feed: len(feed["letters"][0])
"""
ZEROS = "[np.zeros((of(feed), 4), np.float32), np.zeros((of(feed), 1), np.int64)]"
CONTENDERS = {
    "zeros": f"    return in_turn(task, lambda feed: {ZEROS})\n",
    "one": f"    return in_turn(task, lambda feed: {ZEROS}[:1])\n",
    "declining": "    raise LeftOut('no such operator')\n",
}
ROW = "segmenter, 2 x 50"


def run(repo: Path, out: Path, *contenders: str | Path) -> subprocess.CompletedProcess[str]:
    listed = ",".join(map(str, contenders))
    options = ["--turns", "3", "--turn", "0.01", "--out", out, "--contenders", listed]
    command = ("-m", "benchmarks.run", "--workloads", "models", "--only", ROW, *options)
    return run_python(*command, cwd=repo, status=None)


def written(folder: Path, name: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(HEAD + CONTENDERS.get(name, CONTENDERS["zeros"]))
    return file


@pytest.fixture(scope="module")
def results(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Ours in its two ways, among contenders that are wrong."""
    folder = tmp_path_factory.mktemp("bench")
    out = folder / "results.json"
    done = run(repo, out, "onernn", *(written(folder, name) for name in CONTENDERS))
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()) | {"table": out.with_suffix(".md").read_text()}


@pytest.mark.long
def test_a_whole_model_is_measured_with_its_first_call_and_its_memory(
    results: dict[str, Any],
) -> None:
    (row,) = results["rows"]
    for name in ("onernn", "onernn walk"):
        (entry,) = [c for c in row["contenders"] if c["name"] == name]
        assert 0 < entry["min"] <= entry["median"] and entry["calls"] >= 3
        assert entry["first"] > entry["min"] / 1e3  # imports and packing, and one call of two
        assert entry["resident"] > 10  # MB: no Python with NumPy has less


@pytest.mark.long
def test_ratios_of_a_whole_model_are_those_of_what_was_measured(results: dict[str, Any]) -> None:
    (row,) = results["rows"]
    (entry,) = row["compared"]
    ours, walk = (
        next(c for c in row["contenders"] if c["name"] == name)
        for name in ("onernn", "onernn walk")
    )
    assert (entry["of"], entry["beside"], entry["target"]) == ("onernn", "onernn walk", 1.5)
    for kind in ("median", "min", "first", "resident"):
        assert entry[kind] == pytest.approx(walk[kind] / ours[kind])
    assert entry["verdict"] == ("met" if entry["median"] >= 1.5 else "missed")
    assert f"| {ROW} sentences: onernn | onernn walk |" in results["table"]


@pytest.mark.long
@pytest.mark.parametrize(
    "name, kind, reason",
    [
        ("zeros", "rejected", "apart"),
        ("one", "rejected", "expected 4 outputs, got 2"),
        ("declining", "left out", "no such operator"),
    ],
)
def test_whoever_is_wrong_about_a_model_is_named_and_not_measured(
    results: dict[str, Any], name: str, kind: str, reason: str
) -> None:
    (entry,) = [c for c in results["rows"][0]["contenders"] if c["name"] == name]
    assert reason in entry[kind] and "median" not in entry
    assert f"- {name} {kind}: " in results["table"]


@pytest.mark.long
def test_what_the_models_own_framework_gives_counts(repo: Path, tmp_path: Path) -> None:
    """A framework that gave zeros: ours differs from it, so ours is rejected, and the run fails."""
    done = run(repo, tmp_path / "results.json", "onernn", written(tmp_path, "paddle"))
    assert done.returncode == 1
    assert "onernn rejected: " in done.stdout and "paddle rejected" not in done.stdout


class TestWithoutProcesses:
    def test_every_row_of_the_list_can_be_asked_for(self, module: Any) -> None:
        m = module("models")
        for name, entry in m.models().items():
            assert entry["kind"] in m.FRAMEWORKS
            assert len(entry.get("sha256", "0" * 64)) == 64 and ("sha256" in entry) == (
                "package" in entry
            )
            for model in m.rows(name):
                assert m.Model.from_json(json.loads(json.dumps(model.to_json()))) == model
                assert model.wanted.keys() <= {"alone", "inside", "drop-in", "walk"}

    def test_rounds_cut_the_same_words_into_other_sentences(
        self, module: Any, tmp_path: Path
    ) -> None:
        inputs = {"x": {"shape": [-1, 1], "below": 9, "ragged": True}}
        model = module("models").Model("m", "paddle", "", inputs, calls=3, N=5)
        made = model.written(tmp_path / "numbers.npz").rounds()
        first, second = next(made), next(made)
        for calls in (first, second):
            assert len(calls) == 3
            for call in calls:
                words, offsets = call["x"]
                assert words.shape == (offsets[-1], 1) and len(offsets) == 6 and offsets[0] == 0
                assert (np.diff(offsets) > 0).all() and 0 <= words.min() <= words.max() < 9
        words = [np.concatenate([call["x"][0] for call in calls]) for calls in (first, second)]
        assert words[0].tolist() == words[1].tolist()
        mixes = [[call["x"][1].tolist() for call in calls] for calls in (first, second)]
        assert mixes[0] != mixes[1]

    def test_mixed_clips_have_other_lengths_in_each_round_and_the_same_steps_in_all(
        self, module: Any, tmp_path: Path
    ) -> None:
        inputs = {"x": {"shape": [1, -1, 7]}}
        model = module("models").Model("m", "onnx", "", inputs, calls=4, T=50, mixed=True)
        made = model.written(tmp_path / "numbers.npz").rounds()
        rounds = [[call["x"].shape for call in next(made)] for _ in range(5)]
        assert len({tuple(shapes) for shapes in rounds}) == 5
        for shapes in rounds:
            assert sum(steps for _, steps, _ in shapes) == 200
            assert all((one, width) == (1, 7) and steps > 0 for one, steps, width in shapes)

    def test_outputs_that_are_states_go_into_the_next_call_of_a_round(
        self, module: Any, tmp_path: Path
    ) -> None:
        m = module("models")
        inputs = {"x": {"shape": [1, 2]}, "h": {"shape": [2], "output": 1}}
        model = m.Model("m", "onnx", "", inputs, calls=3).written(tmp_path / "numbers.npz")
        prepared = m.in_turn(model, lambda feed: [feed["x"] * 0, feed["h"] + 1])
        for _ in range(2):  # a round begins with zeros
            assert [made.tolist() for made in prepared.call()[1::2]] == [[1, 1], [2, 2], [3, 3]]
        alone = m.in_turn(model.with_(first=True), lambda feed: [feed["x"], feed["h"] + 1])
        assert len(alone.call()) == 2

    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
        """A wheel that pip finds without a network, and its SHA-256."""
        wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as made:
            made.writestr("tiny_model/model.onnx", "numbers")
            made.writestr("tiny_model-1.0.dist-info/METADATA", "Name: tiny-model\nVersion: 1.0\n")
            made.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
            made.writestr("tiny_model-1.0.dist-info/RECORD", "")
        for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        return "tiny-model==1.0", hashlib.sha256(wheel.read_bytes()).hexdigest()

    def test_a_models_file_is_got_once(
        self, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Any
    ) -> None:
        files = module("model_files")
        monkeypatch.setattr(files, "FOLDER", tmp_path / "models")
        entry = {"package": package[0], "sha256": package[1], "path": "tiny_model/model.onnx"}
        assert files.found(entry) is None
        place = files.fetched(entry)
        assert place.read_text() == "numbers"
        monkeypatch.setattr(files, "_download", None)  # nothing is left to be got
        assert files.fetched(entry) == place

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"sha256": "0" * 64}, "DO NOT MATCH THE HASHES"),
            ({"package": "tiny-model==2.0"}, "where there is a network"),
            ({"path": "tiny_model/other.onnx"}, "tiny-model==1.0 holds no tiny_model/other.onnx"),
        ],
    )
    def test_files_that_cannot_be_got_are_one_message(
        self,
        module: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        package: Any,
        change: dict[str, str],
        message: str,
    ) -> None:
        files = module("model_files")
        monkeypatch.setattr(files, "FOLDER", tmp_path / "models")
        entry = {"package": package[0], "sha256": package[1], "path": "tiny_model/model.onnx"}
        with pytest.raises(files.NotThere, match=message):
            files.fetched(entry | change)
