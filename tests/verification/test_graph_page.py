"""The page of ``inspect --html``: the whole graph with types, kernels and refusals, and no more."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.graphs import ADD, MATMUL, constants, graph, projected_gru
from support.html_pages import Page

import onernn
from onernn.ir.errors import printable
from onernn.ir.graph import Graph, NativeOp, Node, Value
from onernn.verification.inspecting import inspect_model, render_graph_page, write_graph_page

NAME = "</title></script></svg><script>a()</script>\"'><img src=x onerror=a()>\u202e{{7*7}}"


@pytest.fixture(scope="module")
def page(data: Path) -> str:
    return render_graph_page(inspect_model(onernn.load(data / "paddle" / "bigru_concat")))


def test_both_graphs_are_whole(page: str, data: Path) -> None:
    found = inspect_model(onernn.load(data / "paddle" / "bigru_concat"))
    before, after = re.findall(r'<svg class="graph".*?</svg>', page, re.S)
    for drawn, model in ((before, found.model), (after, found.result.model)):
        titles = Page(drawn).text["title"]
        for node in model.nodes:
            assert any(t.startswith(f"{node.op} makes {node.outputs[0]}") for t in titles)
        assert len(titles) == len(model.nodes) + 2


def test_a_box_tells_its_type_and_what_runs_it(page: str) -> None:
    _, after = re.findall(r'<svg class="graph".*?</svg>', page, re.S)
    (rnn,) = (each for each in Page(after).text["title"] if each.startswith("Rnn makes"))
    assert "float32 (W, 64) ragged" in rnn
    assert "runs on node" in rnn and "GRU bidirectional_concat, f32" in rnn


def test_the_page_has_the_lines_on_kernels_that_the_command_prints(data: Path) -> None:
    found = inspect_model(onernn.load(data / "paddle" / "bigru_concat"))
    slow = replace(found, slower_kernels="v2 is not the best", interpreted="Abs (1): no kernel")
    words = Page(render_graph_page(slow)).words
    assert all(line in words for line in slow.kernel_lines) and len(slow.kernel_lines) == 2
    assert "In Python Abs (1): no kernel" in words
    unknown = replace(found, kernels=(), missing="no library")
    assert "Kernels unknown: no library" in Page(render_graph_page(unknown)).words


def test_a_layer_that_did_fuse_has_no_red_border(data: Path) -> None:
    found = inspect_model(onernn.load(data / "onnx" / "torch_tagger" / "model.onnx"))
    page = render_graph_page(found)
    assert found.result.refusals and "not fused further: " in page
    assert "#b91c1c" not in "".join(re.findall(r'<svg class="graph".*?</svg>', page, re.S))


def test_a_refusal_stands_at_its_node_and_gives_it_a_border() -> None:
    two = graph([MATMUL, ADD, *projected_gru("y", "xwb")], ["y", "xwb"], **constants())
    found = inspect_model(two)
    (refusal,) = found.result.refusals
    text = render_graph_page(found)
    titles = Page(text).text["title"]
    assert sum(f"not fused: {refusal.reason}" in each for each in titles) == 2  # before and after
    drawn = "".join(re.findall(r'<svg class="graph".*?</svg>', text, re.S))
    assert drawn.count('stroke="#b91c1c"') == drawn.count(">not fused</text>") == 2


def test_an_operator_that_nobody_runs_is_drawn_with_the_reason() -> None:
    nodes = (
        Node("Unsupported", ("x",), ("y",), {"reason": "no kernel"}, (NativeOp(0, "Strange"),)),
    )
    face = [Value(name, "float32", (2,)) for name in "xy"]
    text = render_graph_page(inspect_model(Graph("m", (face[0],), (face[1],), nodes, {})))
    assert "Cannot be run" in text
    assert any("no kernel" in each for each in Page(text).text["title"])


def test_no_name_of_a_model_becomes_markup_or_a_script() -> None:
    """Names of the file, of values, of operators and of axes."""
    nodes = (Node("Unsupported", (NAME,), (f"{NAME}y",), {"reason": NAME}, (NativeOp(0, NAME),)),)
    face = [Value(name, "float32", (None, 3)) for name in (NAME, f"{NAME}y")]
    hostile = Graph(NAME, (face[0],), (face[1],), nodes, {}, notes=(NAME,))
    text = render_graph_page(inspect_model(hostile))
    found = Page(text)
    assert "img" not in found.tags and found.tags.count("script") == 1
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.addresses == ["data:,"]
    assert "\u202e" not in text and "49" not in found.text["h1"][0]
    assert printable(NAME) in found.text["h1"][0]
    plain = Page(render_graph_page(inspect_model(Graph("m", (), (), (), {}))))
    assert found.text["script"] == plain.text["script"], "the script depends on no model"


def test_the_only_script_is_the_one_whose_hash_the_policy_names(page: str) -> None:
    found = Page(page)
    (script,) = found.text["script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (v for name, v in found.attributes if name == "content" and "-src" in v)
    assert policy.split("; ") == [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]


def test_a_graph_without_nodes_and_one_of_thousands_are_pages(tmp_path: Path) -> None:
    empty = Graph("m", (Value("x"),), (Value("x"), Value("c")), (), {"c": np.zeros(1)})
    write_graph_page(inspect_model(empty), tmp_path / "page.html")
    assert "0 operators" in (tmp_path / "page.html").read_text()
    nodes = tuple(Node("Unsupported", (f"v{k}",), (f"v{k + 1}",)) for k in range(5000))
    long = inspect_model(Graph("long", (Value("v0"),), (Value("v5000"),), nodes, {}))
    text = render_graph_page(long)
    assert "Only 4000 operators" in text and text.count("<rect") == 2 * 4000 + 2


def test_an_old_page_stays_where_a_new_one_cannot_be_written(tmp_path: Path) -> None:
    found = inspect_model(Graph("m", (Value("x"),), (Value("x"),), (), {}))
    with pytest.raises(OSError):
        write_graph_page(found, tmp_path / "none" / "page.html")
    assert not (tmp_path / "none").exists()
