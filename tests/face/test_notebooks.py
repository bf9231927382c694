"""What objects show of themselves in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import onernn
from onernn.ir import html
from onernn.ir.graph import Graph, Node, Value

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
    return Graph("a model", (values[0],), (values[1],), nodes, {})


def test_a_graph_shows_its_operators_and_their_types(repo: Path) -> None:
    page = Page(onernn.load(repo / "examples" / "segmenter")._repr_html_())
    for text in ("letters", "CrfDecode", "gru", "mul"):
        assert text in page.texts, text
    assert page.tags.count("table") == 1
    assert "float32(2, 3)" in Page(named("x", "y")._repr_html_()).texts


def test_names_of_a_model_are_only_text() -> None:
    page = Page(named(HOSTILE, "y")._repr_html_())
    assert set(page.tags) == {"table", "caption", "tr", "th", "td"}
    whole = "".join(page.texts)
    assert "alert" in whole and "\u202e" not in whole and "\x1b" not in whole


def test_a_long_graph_says_how_much_more_there_is() -> None:
    names = [f"v{k}" for k in range(2 * html.MOST + 1)]
    page = Page(named(*names)._repr_html_())
    assert page.tags.count("tr") == html.MOST + 2
    assert f"and {html.MOST + 2} more" in page.texts


def test_an_empty_graph_is_shown() -> None:
    assert Page(Graph("nothing", (), (), (), {})._repr_html_()).texts[0] == "nothing"
