"""Repaired files give what the right ones give in ONNX Runtime, and nothing else is written."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import planted
from support.graphs import new_nodes
from support.planted import FAULTS, model, read, swapped

import onernn
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Value
from onernn.verification.conversion import differences, repair
from onernn.verification.references import Against
from onernn.verification.verifying import Report, verify

Pair = tuple[bytes, bytes]


def one_of_two_layers() -> Pair:
    good, bad = (planted.sound("GRU", planted.HIDDEN, 2, 2) for _ in range(2))
    FAULTS["gates"](bad, 1)
    return planted.file(good), planted.file(bad)


def transposed() -> Pair:
    arrays = planted.weights("LSTM")
    turned = planted.blocks(arrays["R"]).swapaxes(2, 3).reshape(arrays["R"].shape)
    return model("LSTM", arrays), model("LSTM", planted.changed(arrays, R=turned))


def failed(sound: Graph, broken: Graph) -> Report:
    """What verify finds, as proved: whether it is, is asked of verify elsewhere."""
    report = verify(broken, against=Against(sound))
    assert not report.passed
    return replace(report, causes=tuple(replace(c, evidence="proved") for c in report.causes))


@pytest.mark.parametrize("pair", [swapped, one_of_two_layers, transposed])
def test_onnx_runtime_gives_for_the_repaired_file_what_it_gives_for_the_right_one(
    pair: Callable[[], Pair], tmp_path: Path
) -> None:
    sound, broken = pair()
    graph, right = read(broken), read(sound)
    done = repair(failed(right, graph), tmp_path / "fixed.onnx", Against(right))
    assert done, done.refused
    fixed, given = (tmp_path / "fixed.onnx").read_bytes(), planted.feed(sound)
    made, wanted, wrong = (planted.outputs(each, given) for each in (fixed, sound, broken))
    for name, array in wanted.items():
        np.testing.assert_allclose(made[name], array, rtol=0, atol=2e-6)
    assert not all(np.allclose(wrong[name], array) for name, array in wanted.items())
    assert done.changes and done.after.passed
    assert [each.name for each in tmp_path.iterdir()] == ["fixed.onnx"]


def test_a_candidate_is_not_applied_and_an_old_file_stays(tmp_path: Path) -> None:
    sound, broken = map(read, swapped())
    report = failed(sound, broken)
    (cause,) = report.causes
    (tmp_path / "fixed.onnx").write_bytes(b"old")
    doubtful = replace(report, causes=(replace(cause, evidence="candidate"),))
    done = repair(doubtful, tmp_path / "fixed.onnx", Against(sound))
    assert not done and "only a candidate" in done.refused
    done = repair(replace(report, causes=()), tmp_path / "fixed.onnx", Against(sound))
    assert not done and "no known fault" in done.refused
    assert (tmp_path / "fixed.onnx").read_bytes() == b"old"


def test_a_cause_that_fresh_inputs_disprove_leaves_no_file(tmp_path: Path) -> None:
    """Proved for one model, and applied to another that has a second fault."""
    sound, broken = swapped()
    report = failed(read(sound), read(broken))
    other = planted.weights("GRU")
    other["B"] = other["B"] * 0.5
    done = repair(report, tmp_path / "fixed.onnx", Against(read(model("GRU", other))))
    assert not done and "fresh inputs" in done.refused
    assert not done.after.passed and not list(tmp_path.iterdir())


def test_the_diff_tells_what_changed_and_nothing_else() -> None:
    face = [Value(name, "float32", (2, 3)) for name in ("x", "y")]
    nodes = new_nodes("""
        a = Mul x w
        b = LeakyRelu a alpha=0.1
        y = Tanh b
    """)
    w = np.ones(3, np.float32)
    before = Graph("m", (face[0],), (face[1],), nodes, {"w": w})
    assert list(differences(before, before)) == []
    changed = (
        nodes[0],
        *new_nodes("""
        c = LeakyRelu a alpha=0.1
        y = Tanh c
    """),
    )
    after = replace(before, nodes=changed, constants={"w": np.array([1, 2, 1], np.float32)})
    assert list(differences(before, after)) == [
        "~ node 'a' (Mul): input 1 (3,): 1 of 3 numbers, by 1 at most",
        "- node 'b' (LeakyRelu): b = LeakyRelu(a)",
        "~ node 'y' (Tanh): input 0: 'b' -> 'c'",
        "+ node 'c' (LeakyRelu): c = LeakyRelu(a)",
    ]
    other = replace(before, nodes=(nodes[0], replace(nodes[1], attributes={}), nodes[2]))
    assert list(differences(before, other)) == ["~ node 'b' (LeakyRelu): alpha: 0.1 -> None"]


# --- from a recording alone


def recorded(good: planted.Tagger, bad: planted.Tagger, folder: Path) -> Path:
    (folder / "bad.onnx").write_bytes(planted.file(bad))
    np.savez(folder / "io.npz", **planted.recording(planted.file(good)))
    return folder / "bad.onnx"


@pytest.mark.parametrize("name", ["gates", "states_dropped", "lengths_dropped", "epsilon"])
def test_a_file_repaired_from_a_recording_is_right_for_other_batches(
    name: str, tmp_path: Path
) -> None:
    good = planted.sound(*planted.fitting(name), seed=5)
    bad = deepcopy(good)
    FAULTS[name](bad)
    file, fixed = recorded(good, bad, tmp_path), tmp_path / "fixed.onnx"
    done = onernn.repair(file, fixed, recording=tmp_path / "io.npz", seconds=600)
    assert done, done.refused
    assert done.changes and done.after.passed and [c.evidence for c in done.found.causes]
    given = planted.feed(planted.file(good))
    given = {k: a[[1, 4, 2]] if k == "lens" else a[:, [1, 4, 2]] * 0.7 for k, a in given.items()}
    given = {k: a.astype(np.float32) if k != "lens" else a for k, a in given.items()}
    want, made = (planted.outputs(each, given) for each in (planted.file(good), fixed.read_bytes()))
    np.testing.assert_allclose(made["tags"], want["tags"], rtol=0, atol=2e-6)


def test_a_recording_that_allows_several_causes_leaves_no_file(tmp_path: Path) -> None:
    """After one step from zeros nobody knows the recurrent weights."""
    sound, broken = swapped()
    given = {"X": planted.feed(sound)["X"][:1, 2:3], "lens": np.array([1], np.int32)}
    given["h0"] = np.zeros((1, 1, planted.HIDDEN), np.float32)
    report = verify(read(broken), planted.recording(sound, given), seconds=600)
    assert report.causes and report.is_repairable
    done = onernn.repair(report, tmp_path / "fixed.onnx")
    assert not done and "several causes" in done.refused and not list(tmp_path.iterdir())


def test_a_cause_that_holds_the_recorded_lengths_is_not_undone(tmp_path: Path) -> None:
    arrays = planted.weights("LSTM", 2)
    sound, broken = planted.model("LSTM", arrays, lengths=False), planted.model("LSTM", arrays)
    report = verify(read(broken), planted.recording(sound), seconds=600)
    assert [each.id for each in report.causes] == ["mask_ignored"] and not report.is_repairable
    done = onernn.repair(report, tmp_path / "fixed.onnx")
    assert not done and "cannot be undone" in done.refused and not list(tmp_path.iterdir())


def test_a_sound_model_is_not_written_again(tmp_path: Path) -> None:
    sound, _ = map(read, swapped())
    done = onernn.repair(sound, tmp_path / "fixed.onnx", sound)
    assert not done and done.found.passed and not list(tmp_path.iterdir())
    with pytest.raises(UnsupportedError, match="nothing to compare with"):
        onernn.repair(sound, tmp_path / "fixed.onnx")
