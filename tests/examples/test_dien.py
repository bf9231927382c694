"""The examples of DIEN: its attention cell is a layer, whatever framework trained it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.emitting import build
from support.interpreters import run_python

from onernn import Cell, Session, fuse, load, verify
from onernn.engine.emit.pipeline import resolve_inputs
from onernn.ir.graph import Node
from onernn.verification.recording import read_arrays, read_inputs, read_outputs

FRAMEWORKS = {"paddle": "replace", "mxnet": "replace", "onnx": "keep"}
"""What the update gate does: as in DIEN's paper, or as in its code."""


@pytest.fixture
def folder(repo: Path) -> Path:
    return repo / "examples" / "dien"


def model_in(folder: Path, name: str) -> Path:
    return folder / name / "model.onnx" if name == "onnx" else folder / name


@pytest.mark.parametrize("backend", ["auto", "onednn", "reference"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_answers_are_the_framework_s_own(folder: Path, name: str, backend: str) -> None:
    report = verify(load(model_in(folder, name)), folder / name / "heldout.npz", backend=backend)
    assert report.passed, report


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_attention_cell_is_one_layer(folder: Path, name: str) -> None:
    fused = fuse(load(model_in(folder, name))).model
    specs = [node.attrs.spec for node in fused.nodes if node.op == "Rnn"]
    assert [(spec.cell, spec.update) for spec in specs] == [
        (Cell.LBR_GRU, "keep"),
        (Cell.AUGRU, FRAMEWORKS[name]),
    ]
    assert not {"Scan", "Loop"} & {node.op for node in fused.nodes}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_attention_decides_what_is_answered(folder: Path, name: str) -> None:
    """Or nothing would tell it from a plain GRU."""
    fused = fuse(load(model_in(folder, name))).model
    with np.load(folder / name / "heldout.npz") as recorded:
        feed = {k.removeprefix("in__"): recorded[k] for k in recorded if k.startswith("in__")}
        told = recorded["out__0"]
    at, augru = next((k, n) for k, n in enumerate(fused.nodes) if n.op == "Rnn" and n.input(3))
    nothing = Node("Sub", (augru.inputs[3],) * 2, ("nothing",))
    without = replace(augru, inputs=(*augru.inputs[:3], "nothing"))
    changed = replace(fused, nodes=(*fused.nodes[:at], nothing, without, *fused.nodes[at + 1 :]))
    (got,) = Session(changed, backend="reference").run(feed).values()
    assert np.abs(got - told).max() > 0.05


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_demo_tells_how_good_the_model_is(folder: Path, name: str) -> None:
    run = run_python(folder / "score.py", name)
    measured = json.loads((folder / name / "training.json").read_text())["auc"]
    assert measured > 0.8
    assert run.stdout.splitlines()[-1] == f"AUC {measured:.4f}, as measured in the framework"
    assert "AUGRU left2right" in run.stdout


def test_emitted_code_answers_the_same(folder: Path, tmp_path: Path) -> None:
    models, feeds = {}, {}
    for name in FRAMEWORKS:
        model = load(model_in(folder, name))
        arrays = read_arrays(folder / name / "heldout.npz")
        feed = read_inputs(arrays, model.inputs)
        inputs = resolve_inputs(model.inputs, feed, sizes_open=False)
        made = tuple(inputs.get(value.name, value) for value in model.inputs)
        models[name] = replace(model, inputs=made)
        feeds[name] = feed, read_outputs(arrays, model.outputs)
    for name, emitted in build(models, tmp_path, ("-O0",)).items():
        feed, want = feeds[name]
        status, got = emitted.run(feed, want)
        assert status == 0, (name, status, got)
        for output, array in want.items():
            np.testing.assert_allclose(got[output], array, rtol=0, atol=1e-5)
