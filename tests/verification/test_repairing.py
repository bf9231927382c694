"""Repaired files give what the right ones give in ONNX Runtime, and nothing else is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support import planted
from support.graphs import new_nodes
from support.planted import model, read, reordered, tagger

from onernn.ir.graph import Graph, Value
from onernn.verification.conversion import differences, repair
from onernn.verification.references import Against
from onernn.verification.verifying import Report, verify

Pair = tuple[bytes, bytes]


def swapped() -> Pair:
    arrays = planted.weights("GRU")
    return model("GRU", arrays), model("GRU", reordered(arrays, (1, 0, 2)))


def one_of_two_layers() -> Pair:
    return tagger(), tagger(layer=1)


def transposed() -> Pair:
    arrays = planted.weights("LSTM")
    turned = planted.blocks(arrays["R"]).swapaxes(2, 3).reshape(arrays["R"].shape)
    return model("LSTM", arrays), model("LSTM", planted.changed(arrays, R=turned))


def failed(sound: Graph, broken: Graph) -> Report:
    """What verify finds, as proved: whether it is, is asked of verify elsewhere."""
    report = verify(broken, against=Against(sound))
    assert not report.passed
    return replace(report, causes=tuple(replace(c, evidence="proved") for c in report.causes))


def ran(data: bytes | Path) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    given = data if isinstance(data, bytes) else str(data)
    session = onnxruntime.InferenceSession(given, options)
    rng = np.random.default_rng(7)
    lens = np.array([3, 1, 6], np.int32)
    feed = {"lens": lens, "X": rng.uniform(-1, 1, (6, 3, planted.INPUT)).astype(np.float32)}
    for each in session.get_inputs():
        if each.name not in feed:
            shape = (each.shape[0], 3, planted.HIDDEN)
            feed[each.name] = rng.uniform(-1, 1, shape).astype(np.float32)
    return list(session.run(None, {each.name: feed[each.name] for each in session.get_inputs()}))


@pytest.mark.parametrize("pair", [swapped, one_of_two_layers, transposed])
def test_onnx_runtime_gives_for_the_repaired_file_what_it_gives_for_the_right_one(
    pair: Callable[[], Pair], tmp_path: Path
) -> None:
    sound, broken = pair()
    graph, right = read(broken), read(sound)
    done = repair(failed(right, graph), tmp_path / "fixed.onnx", Against(right))
    assert done, done.refused
    for mine, wanted in zip(ran(tmp_path / "fixed.onnx"), ran(sound), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=2e-6)
    assert not all(np.allclose(a, b) for a, b in zip(ran(broken), ran(sound), strict=True))
    assert done.changes and done.after is not None and done.after.passed
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
    assert not done and "fresh inputs" in done.refused and done.after is not None
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
