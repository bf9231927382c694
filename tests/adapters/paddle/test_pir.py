"""Paddle 3's own format as Paddle 3.3.1 wrote and ran it (record_paddle_pir.py), without it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onernn import (
    ModelFormatError,
    UnsupportedError,
    load,
)
from onernn.adapters.paddle.read import VERSIONS, Program, Variable, find, parse_pir, read_program
from onernn.engine.session import find_unsupported

DATA = Path(__file__).parents[2] / "data" / "paddle"


def test_faces_and_parameters_bear_paddles_names() -> None:
    model, program = load(DATA / "pir_recurrent"), read_program(DATA / "pir_recurrent")
    assert [v.name for v in model.inputs] == ["ids", "lengths"]
    assert [v.name for v in model.outputs] == [f"fetch_name_{k}" for k in range(3)]
    assert program.version == 4 and program.parameters["embedding_0.w_0"].shape == (7, 4)
    assert not any("non_persistable" in name for name in program.parameters)


@pytest.mark.parametrize("place", ["", "model", "model.json"])
def test_it_is_found_by_folder_prefix_and_file(place: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / "pir_recurrent", tmp_path / "m")
    found = find(tmp_path / "m" / place)
    assert (found.model.name, found.params.name) == ("model.json", "model.pdiparams")
    (tmp_path / "m" / "model.pdiparams").rename(tmp_path / "elsewhere")
    assert load(tmp_path / "m" / "model.json", tmp_path / "elsewhere").inputs


def test_any_other_json_is_no_candidate_and_two_models_are_listed(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "pir_recurrent", tmp_path / "m")
    (folder / "config.json").write_text("{}")
    assert find(folder).model.name == "model.json"
    (folder / "model.pdiparams").unlink()  # Paddle writes none if a model has no parameters
    assert find(folder).model.name == "model.json"
    shutil.copy(DATA / "bigru_concat" / "model.pdmodel", folder)
    with pytest.raises(ModelFormatError, match="expected one file"):
        find(folder)


def whole(name: str = "pir_recurrent") -> Any:
    return json.loads((DATA / name / "model.json").read_text())


def operator(program: Any, name: str) -> Any:
    """The first operator of a name."""
    operators = program["program"]["regions"][0]["blocks"][0]["ops"]
    return next(each for each in operators if each["#"] == name)


def attribute(of: Any, name: str) -> Any:
    return next(each["AT"] for each in of["A"] if each["N"] == name)


def saved(program: Any, folder: Path) -> Path:
    """`pir_recurrent` with another program."""
    shutil.copytree(DATA / "pir_recurrent", folder / "m")
    (folder / "m" / "model.json").write_text(json.dumps(program))
    return folder / "m"


def zeros(variables: Any) -> dict[str, np.ndarray]:
    """Parameters of the declared sizes; no file holds larger ones than the programs here have."""
    shapes = {v.name: tuple(size or 0 for size in v.shape or ()) for v in variables}
    if any(math.prod(shape) > 2**20 for shape in shapes.values()):
        raise ModelFormatError("too short", "m.pdiparams")
    return {v.name: np.zeros(shapes[v.name], v.dtype) for v in variables}


def parsed(program: Any) -> Program:
    return parse_pir(json.dumps(program).encode(), Path("m.json"), zeros)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "not a PIR program"),
        (b"\xff\xfe{", "not a PIR program"),
        (b"{}", "KeyError 'base_code'"),
        (b'{"base_code": {"magic": "other", "version": 4}}', "KeyError 'magic'"),
        (
            b'{"base_code": {"magic": "pir", "version": 4}, "program": {"regions": []}}',
            "ValueError",
        ),
        (b"[" * 100_000, "nested too deep"),
        (b"9" * 10_000, "not a PIR program"),
    ],
)
def test_what_is_no_program_is_refused_with_its_file(content: bytes, reason: str) -> None:
    with pytest.raises(ModelFormatError, match=rf"m\.json: .*{reason}"):
        parse_pir(content, Path("m.json"), zeros)


def test_a_newer_version_is_refused_by_number() -> None:
    program = whole()
    program["base_code"]["version"] = VERSIONS[-1] + 1
    with pytest.raises(UnsupportedError, match="PIR version 5: expected 1 to 4"):
        parsed(program)


def test_an_operator_nobody_knows_is_told_where_it_is_needed(tmp_path: Path) -> None:
    program = whole()
    operator(program, "1.softmax")["#"] = "1.hocus_pocus"
    (refusal,) = find_unsupported(load(saved(program, tmp_path)))
    assert "pd_op.hocus_pocus" in refusal.where and "not known" in refusal.reason


@pytest.mark.parametrize("what", ["regions", "attribute", "operand"])
def test_what_a_rule_does_not_read_is_refused_by_name(what: str, tmp_path: Path) -> None:
    program = whole()
    softmax = operator(program, "1.softmax")
    if what == "regions":
        softmax["regions"] = [{"#": "region_1", "blocks": []}]
    elif what == "attribute":
        softmax["A"].append({"N": "novel", "AT": {"#": "0.a_bool", "D": True}})
    else:
        softmax["I"].append(dict(softmax["I"][0]))
    folder = saved(program, tmp_path)
    if what == "operand":
        with pytest.raises(ModelFormatError, match="softmax: expected at most 1 operands, got 2"):
            load(folder)
        return
    (refusal,) = find_unsupported(load(folder))
    assert {"regions": "not known", "attribute": "not understood: attribute novel"}[
        what
    ] in refusal.reason


def test_infinities_and_null_results_are_read() -> None:
    program = whole("pir_around")
    full = operator(program, "1.full")
    value = attribute(full, "value")
    value.clear()
    value |= {"#": "0.a_f64", "VD": "-INF"}
    found = parsed(program).parameters[f"%{full['O'][0]['%']}"]
    assert np.isneginf(found).all()


@pytest.mark.parametrize("sizes", [[-2], ["x"], [1] * 12])
def test_impossible_constants_and_shapes_take_no_memory(sizes: Any) -> None:
    program = whole("pir_around")
    full = operator(program, "1.full")
    attribute(full, "shape")["D"] = sizes
    full["O"][0]["TT"]["D"][1] = sizes
    with pytest.raises(ModelFormatError, match="m.json: operator .*: malformed"):
        parsed(program)


@pytest.mark.parametrize("sizes", [[2**30], [2**40, 2**40]])
def test_a_large_constant_is_left_to_the_run(sizes: list[int]) -> None:
    program = whole("pir_around")
    full = operator(program, "1.full")
    attribute(full, "shape")["D"] = sizes
    assert f"%{full['O'][0]['%']}" not in parsed(program).parameters


def test_variables_know_dtype_and_sizes() -> None:
    program = read_program(DATA / "pir_recurrent")
    ids = program.variables["ids"]
    assert ids == Variable("ids", 7, "int64", (None, None), 0, False)
