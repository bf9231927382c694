"""What objects show of themselves in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support.planted import read, tagger

import onernn
from onernn.ir import html
from onernn.ir.graph import Graph, Node, Value
from onernn.verification.references import Against
from onernn.verification.verifying import verify

HOSTILE = '<script>alert("x")</script>\u202e&amp;\x1b[31m'


class Page(HTMLParser):
    """The tags of a page, its texts, and that each tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] * bool(data.strip())


def named(*names: str) -> Graph:
    """Tanh after Tanh; the names are the values'."""
    values = [Value(name, "float32", (2, 3)) for name in (names[0], names[-1])]
    pairs = zip(names, names[1:], strict=False)
    nodes = tuple(Node("Tanh", (x,), (y,)) for x, y in pairs)
    return Graph("a model", (values[0],), (values[1],), nodes, {}, (f"a note: {names[0]}",))


def test_a_graph_shows_its_face_its_operators_and_their_types(repo: Path) -> None:
    page = Page(onernn.load(repo / "examples" / "segmenter")._repr_html_())
    for text in ("letters: int64(?), LoD depth 1", "CrfDecode", "gru", "mul"):
        assert text in page.texts, text
    assert page.tags.count("table") == 2
    plain = Page(named("x", "y")._repr_html_())
    assert "float32(2, 3)" in plain.texts and "a note: x" in plain.texts


def test_a_session_shows_what_runs_each_layer(repo: Path) -> None:
    session = onernn.Session(repo / "examples" / "segmenter", backend="reference")
    page = Page(session._repr_html_())
    (layer,) = session.explained
    for text in (layer.node, "GRU", "bidirectional_concat", layer.kernel):
        assert text in page.texts, text


@pytest.mark.parametrize("layer", [None, 1], ids=["sound", "wrong"])
def test_a_report_shows_its_verdict_and_its_cause(layer: int | None) -> None:
    model = tagger() if layer is None else tagger(layer=layer)
    report = verify(read(model), against=Against(read(tagger())))
    page = Page(report._repr_html_())
    assert page.texts[0] == ("equal" if report else "not equal")
    assert page.texts.count("FAIL") == sum(not each.passed for each in report.outputs)
    assert any(text.startswith("cause: ") for text in page.texts) == (not report)
    assert bool(report) == (layer is None)


def test_names_of_a_model_are_only_text() -> None:
    graph = named(HOSTILE, "y")
    for shown in (graph, onernn.Session(graph)):
        page = Page(shown._repr_html_())
        assert set(page.tags) == {"div", "strong", "table", "tr", "th", "td", "p"}
        whole = "".join(page.texts)
        assert "alert" in whole and "\u202e" not in whole and "\x1b" not in whole


def test_a_long_graph_says_how_much_more_there_is() -> None:
    names = [f"v{k}" for k in range(2 * html.MOST + 2)]
    page = Page(named(*names)._repr_html_())
    assert page.tags.count("tr") < html.MOST + 10
    assert f"and {html.MOST + 1} more" in page.texts


def test_an_empty_graph_is_shown() -> None:
    assert Page(Graph("nothing", (), (), (), {})._repr_html_()).texts[0] == "nothing"


def test_what_is_shown_changes_nothing() -> None:
    graph = named("x", "y")
    session = onernn.Session(graph)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    before = session.run({"x": x})["y"]
    assert session._repr_html_() == session._repr_html_()
    assert np.array_equal(session.run({"x": x})["y"], before)
