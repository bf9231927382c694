"""Generated C++ of what frameworks wrote gives what they recorded; at other sizes, too."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.emitting import assert_computes, build
from typer.testing import CliRunner

from onernn import Graph, Session, UnsupportedError, load
from onernn.cli import app
from onernn.engine.emit import write_cpp
from onernn.engine.emit.pipeline import resolve_inputs
from onernn.verification.recording import read_arrays, read_inputs, read_outputs

RECORDED = {
    # Inputs of other sizes: by how much the axes of the first one grow.
    "mxnet/gluon_bidirectional_ntc": (1, 2),
    "mxnet/gluon_unrolled_stack": None,
    "mxnet/legacy_unfused": (1, 0, 0),
    "onnx/keras_lstm_both": (1, 2, 0),
    "onnx/torch_gru_dynamic": (0, 1, 0),
    "paddle/embedding_crf": None,
    "paddle/fused_embedding_fc_lstm": None,
    "paddle/fusion_lstm": None,
    "paddle/lstm_cell_used": None,
    "paddle/lstm_states_reverse": None,
    "paddle/lstm_states_reverse_clipped": None,
}


def recorded(data: Path, name: str) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    folder = data / name
    model = load(folder / "model.onnx" if name.startswith("onnx") else folder)
    arrays = read_arrays(folder / "io.npz")
    return model, read_inputs(arrays, model.inputs), read_outputs(arrays, model.outputs)


def test_recordings_are_reproduced_and_open_sizes_are_open(tmp_path: Path) -> None:
    data = Path(__file__).parents[1] / "data"
    models, feeds = {}, {}
    for name in RECORDED:
        model, feed, want = recorded(data, name)
        grown = RECORDED[name] is not None
        inputs = resolve_inputs(model.inputs, feed, sizes_open=grown)
        made = tuple(inputs.get(value.name, value) for value in model.inputs)
        short = name.partition("/")[2]
        models[short], feeds[short] = replace(model, inputs=made), (feed, want, RECORDED[name])
    for name, emitted in build(models, tmp_path).items():
        feed, want, grown = feeds[name]
        assert want
        assert_computes(emitted, feed, want, atol=2e-6)
        if grown:
            ((first, array),) = feed.items()
            larger = {first: np.pad(array, [(0, more) for more in grown], "wrap")}
            session = Session(models[name], backend="reference")
            assert_computes(emitted, larger, session.run(larger), atol=2e-6)


@pytest.mark.parametrize("name", ["gluon_unrolled_stack", "gluon_language_model"])
def test_a_recording_tells_what_a_symbol_leaves_open(name: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "data" / "mxnet" / name
    with pytest.raises(UnsupportedError, match=r"--data io\.npz"):
        write_cpp(load(folder), tmp_path)
    command = ["emit", str(folder), "-o", str(tmp_path), "--data", str(folder / "io.npz")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    header = next(tmp_path.glob("*.hpp")).read_text()
    # An unrolled model has one number of words; others leave it to the caller.
    assert ("(3, 5, 4)" in header) == ("struct Sizes" not in header) == (name[6] == "u")


@pytest.mark.parametrize("name", ["lac", "lac-seg", "lac-rank"])
def test_taggers_that_people_use_tag_as_paddle_does(
    name: str, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repo))
    listed = tomllib.loads((repo / "benchmarks" / "models.toml").read_text())["models"][name]
    place = import_module("benchmarks.model_files").found(listed)
    if place is None:
        pytest.skip(f"{listed['package']} is not in out/models")
    model, short = load(place), name.replace("-", "_")
    arrays = read_arrays(repo / "tests" / "data" / "real_models" / f"{name}.npz")
    feed, want = read_inputs(arrays, model.inputs), read_outputs(arrays, model.outputs)
    assert_computes(build({short: model}, tmp_path, ("-O1",))[short], feed, want)
