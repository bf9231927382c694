"""Recordings made of whatever a framework gives; beside the real ones in tests/frameworks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onernn
from onernn.adapters.paddle.inference.tensors import EagerTensor, PaddleTensor, create_lod_tensor

WORDS = np.arange(10, dtype=np.float32).reshape(5, 2)


def saved(file: Path, *arguments: object) -> dict[str, np.ndarray]:
    onernn.recording.save(file, *arguments)  # type: ignore[arg-type]
    with np.load(file) as arrays:
        return dict(arrays)


def test_ragged_values_keep_all_their_offsets(tmp_path: Path) -> None:
    ragged = onernn.Ragged.from_lod(WORDS, [[0, 1, 2], [0, 2, 5]])
    lod_tensor = create_lod_tensor(WORDS, [[2, 3]])
    inputs = {"x": ragged, "t": lod_tensor, "p": PaddleTensor(WORDS, lod=[[0, 2, 5]]), "d": WORDS}
    found = saved(tmp_path / "io.npz", inputs, [lod_tensor, EagerTensor(WORDS)])
    lods = {name: array.tolist() for name, array in found.items() if "lod__" in name}
    assert lods == {
        "lod__x": [0, 2, 5], "lod__x__0": [0, 1, 2], "lod__t": [0, 2, 5], "lod__p": [0, 2, 5],
        "outlod__0": [0, 2, 5],
    }  # fmt: skip
    for name in ("in__x", "in__t", "in__p", "in__d", "out__0", "out__1"):
        np.testing.assert_array_equal(found[name], WORDS)


def test_what_is_saved_verifies(tmp_path: Path, repo: Path) -> None:
    model = onernn.load(repo / "examples" / "segmenter")
    fed = {"letters": onernn.Ragged.from_lengths(np.arange(1, 8), [3, 4])}
    given = onernn.Session(model, backend="reference").run(fed)
    for outputs in (given, list(given.values())):
        onernn.recording.save(tmp_path / "io.npz", fed, outputs)
        assert onernn.verify(model, tmp_path / "io.npz").passed
    wrong = [value.with_data(value.data + 1) for value in map(ragged, given.values())]
    onernn.recording.save(tmp_path / "io.npz", fed, wrong)
    assert not onernn.verify(model, tmp_path / "io.npz", diagnose=False).passed


def ragged(value: object) -> onernn.Ragged:
    assert isinstance(value, onernn.Ragged)
    return value


@pytest.mark.parametrize("value", [None, "text", {"a": 1}, np.array(["a"]), np.array([None])])
def test_what_is_no_array_of_numbers_is_named(value: object, tmp_path: Path) -> None:
    with pytest.raises(onernn.UnsupportedError, match="'x'.*expected numbers"):
        onernn.recording.save(tmp_path / "io.npz", {"x": value})
    assert not (tmp_path / "io.npz").exists()
