"""Programs that we write, loaded and run by Paddle itself: Executor and paddle.inference.

Runs in 2.6.2 and in 3.3.1, whose sequence operators are fewer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from paddle import inference
from support.graphs import unfused
from support.interpreters import run_python
from support.paddle_writing import (
    CANONICAL,
    CONTROL,
    LAYERS,
    OPERATORS,
    PARTLY,
    RECORDED,
    RECORDINGS,
    UNWRITTEN,
    Case,
    recorded,
    through_onnx,
)
from tests.frameworks.paddle_graphs import Batch, SavedModel, differences
from tests.frameworks.paddle_nets import config_of, predict

from onernn import Graph, Ragged, UnsupportedError, fuse, load
from onernn.adapters.paddle.write import write_paddle
from onernn.verification.recording import read_arrays, read_inputs, read_outputs

DATA = Path(__file__).parents[1] / "data" / "paddle"
FORMS: dict[str, bool] = {"plain": False, "fused": True}


def write(model: Graph, folder: Path, fused: bool, feeds: Mapping[str, Batch]) -> SavedModel:
    write_paddle(model, folder / "model.pdmodel", fused=fused, inputs=feeds)
    return SavedModel(folder / "model")


def check(expected: Mapping[str, Batch], got: Sequence[Batch]) -> None:
    assert not (found := differences(expected, got)), found
    for (name, value), each in zip(expected.items(), got, strict=True):
        assert isinstance(value, Ragged) == isinstance(each, Ragged), name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RECORDED)
def test_a_written_recording_gives_the_recorded_outputs(
    name: str, form: str, tmp_path: Path
) -> None:
    model, arrays = load(DATA / name), read_arrays(DATA / name / "io.npz")
    feeds = read_inputs(arrays, model.inputs)
    saved = write(fuse(model).model, tmp_path, FORMS[form], feeds)
    expected = read_outputs(arrays, model.outputs)
    for _ in range(2):
        check(expected, saved.run(feeds))
    if form == "plain":  # of the fused form Paddle's own placement on oneDNN makes wrong numbers
        check(expected, predict(inference.create_predictor(config_of(tmp_path)), feeds))


@pytest.mark.parametrize("name", sorted({*RECORDINGS} - UNWRITTEN.keys()))
def test_a_converted_recording_gives_the_recorded_outputs(name: str, tmp_path: Path) -> None:
    """Of all frameworks: Paddle computes what the model's own framework computed."""
    if name.startswith("keras/"):
        pytest.importorskip("h5py", reason="files of Keras are read by h5py")
    model, feeds, expected = recorded(name)
    check(expected, write(fuse(model).model, tmp_path, False, feeds).run(feeds))


def test_a_tagger_comes_back_from_onnx_with_the_same_tags(tmp_path: Path) -> None:
    file, feeds, expected = through_onnx("paddle/embedding_crf", tmp_path)
    check(expected, SavedModel(file.with_suffix("")).run(feeds))


def run_case(case: Case, folder: Path, fused: bool) -> None:
    graph, feeds = case
    expected = unfused(graph, feeds)
    check(expected, write(graph, folder, fused, feeds).run(feeds))


@pytest.mark.parametrize("name", CONTROL)
def test_a_loop_or_branch_runs_in_paddle(name: str, tmp_path: Path) -> None:
    run_case(CONTROL[name], tmp_path, False)


@pytest.mark.parametrize("name", [*OPERATORS, *CANONICAL])
def test_an_operator_runs_in_paddle(name: str, tmp_path: Path) -> None:
    try:
        run_case((OPERATORS | CANONICAL)[name], tmp_path, False)
    except UnsupportedError:
        assert name.split()[0] in PARTLY


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_runs_in_paddle(name: str, form: str, tmp_path: Path) -> None:
    run_case(LAYERS[name], tmp_path, FORMS[form])


ONEDNN = """
import sys
from tests.frameworks.test_paddle_write import run_on_onednn
run_on_onednn(*sys.argv[1:])
"""


def run_on_onednn(folder: str, target: str) -> None:
    source = Path(folder)
    model, arrays = load(source), read_arrays(source / "io.npz")
    feeds = read_inputs(arrays, model.inputs)
    write_paddle(fuse(model).model, Path(target) / "model.pdmodel", place="onednn")
    check(read_outputs(arrays, model.outputs), SavedModel(Path(target) / "model").run(feeds))


@pytest.mark.parametrize("name", ["bigru_concat", "mul_gru_bare", "lstm_pair"])
def test_fused_layers_on_onednn_give_the_recorded_outputs(
    name: str, tmp_path: Path, repo: Path
) -> None:
    """In a process of its own: Paddle's oneDNN kernels keep what they prepared by name."""
    path = os.pathsep.join([str(repo), str(repo / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run_python("-c", ONEDNN, DATA / name, tmp_path, timeout=600, cwd=repo, env=environment)
