"""What a browser would find in a page."""

from __future__ import annotations

from html.parser import HTMLParser

_LOADING = ("src", "href", "xlink:href", "data", "srcset", "action")


class Page(HTMLParser):
    """The tags of a page, their attributes, and the text inside of each kind of tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: dict[str, list[str]] = {}
        self._all: list[str] = []
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.text.setdefault(tag, []).append("")
        self._open = True

    def handle_data(self, data: str) -> None:
        self._all.append(data)
        if self._open:
            self.text[self.tags[-1]][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    @property
    def addresses(self) -> list[str]:
        """All that the page would load something from."""
        return [value for name, value in self.attributes if name in _LOADING]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self._all).split())
