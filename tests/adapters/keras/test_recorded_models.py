"""Files of Keras 2 and 3, with the outputs that Keras computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import onernn

DATA = Path(__file__).parents[2] / "data" / "keras"
RECORDED = sorted(file for file in DATA.glob("*/model.*"))
LAYERS = {"text_classifier": 2, "states": 3, "cells": 3, "reader": 2, "stateful": 2}
"""How many layers there are, counting directions that are not paired: sums."""

pytest.importorskip("h5py")


def _name(file: Path) -> str:
    return file.parent.name


@pytest.mark.parametrize("file", RECORDED, ids=_name)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_models_give_what_keras_recorded(file: Path, backend: str) -> None:
    assert onernn.verify(onernn.load(file), file.parent / "io.npz", backend=backend)


@pytest.mark.parametrize("file", RECORDED, ids=_name)
def test_models_become_onnx_files_that_give_the_same(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    out, recording = tmp_path / "m.onnx", file.parent / "io.npz"
    assert onernn.convert(onernn.load(file), out, check=recording)


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_are_layers_of_ours(name: str) -> None:
    (file,) = (DATA / name).glob("model.*")
    kinds = [node.op for node in onernn.fuse(file).model.nodes]
    assert kinds.count("Rnn") == LAYERS[name] and "Scan" not in kinds
