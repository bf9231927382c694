"""What objects show of themselves in a notebook."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from support.html_pages import Page

import onernn
from onernn.ir import html
from onernn.ir.graph import Graph, Node, Value

HOSTILE = '<script>alert("x")</script>\u202e&amp;\x1b[31m'


def shown(graph: Graph) -> Page:
    """What a notebook shows, in which each tag is closed."""
    page = graph._repr_html_()
    ElementTree.fromstring(page)
    return Page(page)


def named(*names: str) -> Graph:
    """Tanh after Tanh; the names are the values'."""
    values = [Value(name, "float32", (2, 3)) for name in (names[0], names[-1])]
    pairs = zip(names, names[1:], strict=False)
    nodes = tuple(Node("Tanh", (x,), (y,)) for x, y in pairs)
    return Graph("a model", (values[0],), (values[1],), nodes, {})


def test_a_graph_shows_its_operators_and_their_types(repo: Path) -> None:
    page = shown(onernn.load(repo / "examples" / "segmenter"))
    for text in ("letters", "CrfDecode", "gru", "mul"):
        assert text in page.text["td"], text
    assert page.tags.count("table") == 1
    assert "float32(2, 3)" in shown(named("x", "y")).text["td"]


def test_names_of_a_model_are_only_text() -> None:
    page = shown(named(HOSTILE, "y"))
    assert set(page.tags) == {"table", "caption", "tr", "th", "td"}
    assert "alert" in page.words and "\u202e" not in page.words and "\x1b" not in page.words


def test_a_long_graph_says_how_much_more_there_is() -> None:
    names = [f"v{k}" for k in range(2 * html.MOST + 1)]
    page = shown(named(*names))
    assert page.tags.count("tr") == html.MOST + 2
    assert f"and {html.MOST + 2} more" in page.words


def test_an_empty_graph_is_shown() -> None:
    assert shown(Graph("nothing", (), (), (), {})).text["caption"] == ["nothing"]
