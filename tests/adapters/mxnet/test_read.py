"""Symbols of every age, hostile ones too; which files belong together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import reference
from support.mxnet_files import write_params

from onernn import ModelFormatError, UnsupportedError, load
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.lower import lower
from onernn.adapters.mxnet.read import Entry, find, parse_symbol, read_symbol

VARIABLE: dict[str, Any] = {"op": "null", "name": "x", "inputs": []}


def text(*nodes: dict[str, Any], heads: Any = ((1, 0, 0),), **more: Any) -> str:
    return json.dumps({"nodes": [VARIABLE, *nodes], "heads": heads, **more})


@pytest.mark.parametrize("key", ["attrs", "attr", "param"])
def test_attributes_are_read_under_every_key_that_mxnet_wrote(key: str) -> None:
    node = {"op": "Activation", "name": "a", key: {"act_type": "relu"}, "inputs": [[0, 0]]}
    symbol = parse_symbol(text(node))
    assert symbol.nodes[1].attributes == {"act_type": "relu"}
    assert symbol.nodes[1].inputs == (Entry(0, 0),)
    assert symbol.version == 800 and not symbol.np_shape


def test_attributes_of_users_and_of_the_operator_are_both_kept() -> None:
    node = {"op": "F", "name": "a", "param": {"p": "1"}, "attr": {"lr_mult": "2"}, "inputs": []}
    assert parse_symbol(text(node)).nodes[1].attributes == {"p": "1", "lr_mult": "2"}


@pytest.mark.parametrize("version, sizes", [(None, (1,)), (904, (1,)), (905, (2,))])
def test_an_argmax_over_axis_minus_one_was_over_everything_before_0_9_5(
    version: int | None, sizes: tuple[int, ...]
) -> None:
    node = {"op": "argmax", "name": "a", "attr": {"axis": "-1"}, "inputs": [[0, 0, 0]]}
    attrs = {"mxnet_version": ["int", version]} if version else {}
    graph = lower(parse_symbol(text(node, attrs=attrs)), {})
    (out,) = reference(graph, {"x": np.ones((2, 3), np.float32)}).values()
    assert out.shape == sizes


def test_numpy_mode_and_subgraphs_are_read() -> None:
    inner = {"nodes": [VARIABLE], "heads": [[0, 0, 0]]}
    node = {"op": "_foreach", "name": "f", "inputs": [], "subgraphs": [inner]}
    symbol = parse_symbol(
        text(node, attrs={"mxnet_version": ["int", 10901], "is_np_shape": ["int", 1]})
    )
    assert symbol.np_shape and symbol.version == 10901
    assert symbol.nodes[1].subgraphs[0].heads == (Entry(0),)


def nested(depth: int) -> dict[str, Any]:
    graph: dict[str, Any] = {"nodes": [VARIABLE], "heads": [[0, 0]]}
    for _ in range(depth):
        node = {"op": "f", "name": "f", "inputs": [], "subgraphs": [graph]}
        graph = {"nodes": [node], "heads": [[0, 0]]}
    return graph


def operator(**keys: Any) -> str:
    return text({"op": "f", "name": "n", **keys})


WRONG = {
    "not valid JSON: Expecting value": "",
    "not valid JSON: Expecting property name": "{nodes",
    "the symbol: expected dict, got [1]": "[1]",
    "nodes: expected list, got None": "{}",
    "node 1: expected dict, got 5": json.dumps({"nodes": [VARIABLE, 5], "heads": []}),
    "node 0: op: expected str, got None": json.dumps({"nodes": [{}], "heads": []}),
    "heads: expected list, got None": json.dumps({"nodes": [VARIABLE]}),
    "attribute p: expected str, got 5": operator(attrs={"p": 5}),
    "inputs: expected a node before 1, got 1": operator(inputs=[[1, 0]]),
    "inputs: expected a node before 1, got 7": operator(inputs=[[7, 0]]),
    "expected [node, output, version], got [-1, 0]": operator(inputs=[[-1, 0]]),
    "expected [node, output, version], got [True]": operator(inputs=[[True]]),
    "expected [node, output, version], got []": operator(inputs=[[]]),
    "heads: expected a node before 1, got 9": text(heads=[[9, 0]]),
    "JSON that is nested too deep": "[" * 100_000,
    "expected at most 16 levels of subgraphs": json.dumps(nested(20)),
    "not valid JSON: Exceeds the limit": '{"nodes": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_no_symbol_is_refused_with_the_reason_and_the_file(
    reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "m-symbol.json"
    file.write_text(WRONG[reason])
    with pytest.raises(ModelFormatError) as caught:
        read_symbol(file)
    assert reason in str(caught.value) and "m-symbol.json: not an MXNet symbol" in str(caught.value)


def test_the_place_of_a_syntax_error_is_told_in_bytes() -> None:
    with pytest.raises(ModelFormatError) as caught:
        parse_symbol('{"é": }')
    assert caught.value.offset == len('{"é": '.encode())
    with pytest.raises(ModelFormatError, match="not valid UTF-8") as caught:
        parse_symbol(b'{"n\xff')
    assert caught.value.offset == 3


def test_a_symbol_cut_anywhere_is_refused(data: Path) -> None:
    whole = (data / "mxnet" / "gluon_language_model" / "model-symbol.json").read_bytes()
    for end in range(0, len(whole), 7):
        with pytest.raises(ModelFormatError):
            parse_symbol(whole[:end])


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("{}")


def test_parameters_are_found_beside_the_symbol(tmp_path: Path) -> None:
    files(tmp_path, "a-symbol.json", "a-0003.params", "a-b-0000.params", "b.params")
    params = tmp_path / "a-0003.params"
    for path in ("a-symbol.json", "a", ""):
        assert find(tmp_path / path) == (tmp_path / "a-symbol.json", params)
    (tmp_path / "a-b-0000.params").unlink()
    for name in ("a-last.params", "a.params"):
        params = params.rename(tmp_path / name)
        assert find(tmp_path / "a").params == params
    assert find(tmp_path / "a", tmp_path / "b.params").params == tmp_path / "b.params"
    params.unlink()
    assert find(tmp_path / "a").params is None


def test_several_candidates_are_listed(tmp_path: Path) -> None:
    files(tmp_path, "a-symbol.json", "a-0000.params", "a-0010.params")
    with pytest.raises(ModelFormatError, match="params: .*a-0000.*a-0010"):
        find(tmp_path)
    files(tmp_path, "b-symbol.json")
    with pytest.raises(ModelFormatError, match="path: .*a-symbol.*b-symbol"):
        find(tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="nowhere-symbol.json"):
        load(tmp_path / "nowhere-symbol.json")
    files(tmp_path, "a-symbol.json")
    with pytest.raises(ModelFormatError, match="b.params"):
        find(tmp_path / "a", tmp_path / "b.params")


def test_load_takes_a_file_a_folder_a_prefix_and_another_name(data: Path, tmp_path: Path) -> None:
    folder = data / "mxnet" / "gluon_language_model"
    names = {value.name for value in load(folder).inputs}
    shutil.copy(folder / "model-symbol.json", tmp_path / "net.json")
    other = load(tmp_path / "net.json", params=folder / "model-0000.params")
    for model in (load(folder / "model-symbol.json"), load(folder / "model"), other):
        assert {value.name for value in model.inputs} == names


def test_missing_parameters_are_listed(data: Path, tmp_path: Path) -> None:
    folder = data / "mxnet" / "gluon_language_model"
    shutil.copy(folder / "model-symbol.json", tmp_path)
    with pytest.raises(ModelFormatError, match="parameters without values: .*no .params file"):
        load(tmp_path)
    write_params({"arg:other": np.zeros(3, np.float32)}, tmp_path / "model-0000.params")
    with pytest.raises(ModelFormatError, match="dense0_weight.*model-0000.params has arg:other"):
        load(tmp_path)


@pytest.mark.parametrize(
    "parser, given_text, value",
    [
        (parse.flag, "True", True),
        (parse.flag, "0", False),
        (parse.integer, "3L", 3),
        (parse.integer, "-1", -1),
        (parse.number, "1e-05", 1e-05),
        (parse.sizes, "(2, 0, 48)", (2, 0, 48)),
        (parse.sizes, "(2L,)", (2,)),
        (parse.sizes, "[1,2]", (1, 2)),
        (parse.sizes, "()", ()),
        (parse.sizes, "-1", (-1,)),
        (parse.numbers, "(None, 2)", (None, 2)),
    ],
)
def test_attributes_are_parsed_as_dmlc_writes_them(
    parser: Any, given_text: str, value: Any
) -> None:
    assert parser(given_text) == value


@pytest.mark.parametrize(
    "parser, wrong",
    [
        (parse.flag, "yes"),
        (parse.integer, "1.5"),
        (parse.integer, "9" * 30),
        (parse.number, "one"),
        (parse.sizes, "(None,)"),
        (parse.sizes, "((1,2))"),
        (parse.sizes, "(1,,2)"),
    ],
)
def test_attributes_of_no_known_form_are_refused(parser: Any, wrong: str) -> None:
    with pytest.raises(UnsupportedError, match="expected"):
        parser(wrong)
