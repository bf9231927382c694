"""Programs that torch.export saved, read without PyTorch, with the outputs that it computed.

All were exported for 3 sentences of 7 steps; what they give for others is recorded.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onernn
from onernn import ModelFormatError, ShapeError, UnsupportedError

DATA = Path(__file__).parents[2] / "data" / "torch"
ROWS = DATA / "rows" / "model.pt2"


@pytest.mark.parametrize("name", ["tagger", "rows", "rows_dynamic", "textline", "heads", "masked"])
def test_sizes_that_no_operator_holds_are_free(name: str) -> None:
    model = onernn.load(DATA / name / "model.pt2")
    (x,) = model.inputs
    features = {"textline": (1,), "tagger": ()}.get(name, (6,))
    fixed = tuple(size for size in x.shape or () if size is not None)
    assert fixed in (features, (*features, 12))  # and the height of an image that becomes channels
    assert not [note for note in model.notes if not note.startswith("x: axis 2 is 12")]


def test_a_size_that_a_number_may_hold_is_declared_and_told() -> None:
    model = onernn.load(DATA / "cells" / "model.pt2")
    assert model.inputs[0].shape == (3, 7, 6)
    assert any("x: axis 1 must be 7: 'select" in note for note in model.notes)
    with pytest.raises(ShapeError, match="x: float32"):
        onernn.Session(model).run({"x": np.zeros((3, 8, 6), np.float32)})


def changed(change: Callable[[dict[str, Any]], None], file: Path, to: Path) -> Path:
    """A copy whose program is another one."""
    with zipfile.ZipFile(file) as read, zipfile.ZipFile(to, "w") as archive:
        for info in read.infolist():
            data = read.read(info)
            if info.filename.endswith("models/model.json"):
                whole = json.loads(data)
                change(whole)
                data = json.dumps(whole).encode()
            archive.writestr(info.filename, data)
    return to


def nodes(whole: dict[str, Any], target: str) -> list[dict[str, Any]]:
    found = whole["graph_module"]["graph"]["nodes"]
    return [each for each in found if each["target"] == f"torch.ops.aten.{target}"]


def test_an_archive_without_a_program_is_told(tmp_path: Path) -> None:
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("model/version", "3")
    (tmp_path / "m.pt2").write_bytes(empty.getvalue())
    with pytest.raises(UnsupportedError, match="torch.export.save writes, got 0"):
        onernn.load(tmp_path / "m.pt2")


def unknown_operator(whole: Any) -> None:
    nodes(whole, "softmax.int")[0]["target"] = "torch.ops.aten.unheard_of.default"


def unknown_argument(whole: Any) -> None:
    more = {"name": "twist", "arg": {"as_float": 0.5}, "kind": 2}
    nodes(whole, "softmax.int")[0]["inputs"].append(more)


def dropout_of_training(whole: Any) -> None:
    given = {each["name"]: each["arg"] for each in nodes(whole, "lstm.input")[0]["inputs"]}
    given["train"]["as_bool"], given["dropout"]["as_float"] = True, 0.5


def another_dtype(whole: Any) -> None:
    whole["graph_module"]["graph"]["tensor_values"]["linear"]["dtype"] = 8


@pytest.mark.parametrize(
    "change, reason",
    [
        (unknown_operator, "unheard_of.*not known"),
        (unknown_argument, "attribute twist"),
        (dropout_of_training, r"call model\.eval\(\)"),
        (another_dtype, "expected float64, got float32"),
    ],
)
def test_what_is_not_computed_raises_only_when_it_is_to_run(
    change: Callable[[Any], None], reason: str, tmp_path: Path
) -> None:
    model = onernn.load(changed(change, ROWS, tmp_path / "model.pt2"))
    with pytest.raises(UnsupportedError, match=reason):
        onernn.Session(model)


def a_mutation(whole: Any) -> None:
    outputs = whole["graph_module"]["signature"]["output_specs"]
    outputs.append({"buffer_mutation": {"arg": {"name": "mean"}, "buffer_name": "b"}})


def a_lost_tensor(whole: Any) -> None:
    spec = whole["graph_module"]["signature"]["input_specs"][0]["parameter"]
    spec["parameter_name"] = "elsewhere"


def a_view_that_is_changed(whole: Any) -> None:
    (reshape,) = nodes(whole, "reshape.default")
    made = {"as_tensor": {"name": "unread"}}
    scale = {"name": "other", "arg": {"as_float": 2.0}, "kind": 1}
    view = {"name": "self", "arg": reshape["outputs"][0], "kind": 1}
    place = whole["graph_module"]["graph"]["nodes"].index(reshape) + 1
    more = {"target": "torch.ops.aten.mul_.Scalar", "inputs": [view, scale], "outputs": [made]}
    whole["graph_module"]["graph"]["nodes"].insert(place, more)


def version(major: int) -> Callable[[Any], None]:
    return lambda whole: whole["schema_version"].update(major=major)


@pytest.mark.parametrize(
    "change, error, reason",
    [
        (version(7), UnsupportedError, r"version 7\.\d+ of the schema"),
        (version(9), UnsupportedError, r"version 9\.\d+ of the schema"),
        (a_mutation, UnsupportedError, "'mean'|'b'"),
        (a_lost_tensor, ModelFormatError, "'elsewhere'"),
        (
            a_view_that_is_changed,
            UnsupportedError,
            "'unread' .mul_.Scalar.",
        ),
    ],
)
def test_a_program_that_means_something_else_is_refused(
    change: Callable[[Any], None], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    file = changed(change, ROWS, tmp_path / "model.pt2")
    with pytest.raises(error, match=reason):
        onernn.load(file)
