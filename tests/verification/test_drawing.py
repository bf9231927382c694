"""Pictures of graphs after each pass."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.graphs import ADD, MATMUL, constants, graph, projected_gru

from onernn.core.graph import Graph, Node, Value
from onernn.fuse_passes import PASSES
from onernn.verification.drawing import draw_passes, to_dot


def model() -> Graph:
    return graph([MATMUL, ADD, *projected_gru("y", "xwb")], ["y"], **constants())


def test_a_picture_holds_every_node_and_every_value_between_them() -> None:
    text = to_dot(model())
    boxes = re.findall(r'^  n\d+ \[label="(\w+)', text, re.M)
    assert boxes == ["MatMul", "Add", "GateLayout", "Rnn"]
    edges = re.findall(r"(\w+) -> (\w+)", text)
    assert ("in0", "n0") in edges and ("n0", "n1") in edges and ("n3", "out0") in edges
    assert "GRU left2right, 9 -> 3" in text


def test_names_with_quotes_and_backslashes_stay_inside_their_quotes() -> None:
    odd = 'a"; b [label="\\'
    made = Graph('m"', (Value(odd, "float32"),), (Value("y"),), (Node("Tanh", (odd,), ("y",)),), {})
    for line in to_dot(made).splitlines():
        unescaped = re.sub(r"\\.", "", line)
        assert unescaped.count('"') % 2 == 0, line


def test_a_file_is_written_for_each_pass_that_fired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no Graphviz
    names = [file.name for file in draw_passes(model(), PASSES, tmp_path / "out")]
    assert len(names) == 2 and names[0] == "00_read.dot" and names[1].endswith("_linear_rnn.dot")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == names
    assert "GateLayout" not in (tmp_path / "out" / names[1]).read_text()


@pytest.mark.parametrize("works", [True, False])
def test_graphviz_draws_where_it_is_installed(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "dot"
    fake.write_text('#!/bin/sh\n[ "$1" = -Tsvg ] && cat\n' + ("" if works else "exit 1\n"))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (first, *_) = draw_passes(model(), (), tmp_path / "out")
    assert first.with_suffix(".svg").exists() == works
    if works:
        assert first.with_suffix(".svg").read_bytes() == first.read_bytes()


def test_the_drawing_of_a_graph_without_nodes() -> None:
    made = Graph("m", (Value("x"),), (Value("x"), Value("c")), (), {"c": np.zeros(1)})
    assert "in0 -> out0;" in to_dot(made)
