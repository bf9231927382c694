"""Pages for people: no line is cut off, and links, anchors and images lead somewhere."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from support import manual
from support.manual import REPO

HANDWRITTEN = [
    *(page for page in (REPO / "docs").rglob("*.md") if "generated" not in page.parts),
    *(REPO / "design").glob("*.md"),
    *(REPO / "examples").glob("*/README.md"),
    *REPO.glob("*.md"),
]
URL = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]


def named(page: Path) -> str:
    return str(page.relative_to(REPO))


class Paragraph(NamedTuple):
    text: str
    is_item: bool
    leads: bool
    """Whether a list, code or a table follows, which may complete the sentence."""


_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1$", re.MULTILINE | re.DOTALL)
_ASIDE = re.compile(r"<!--.*?-->|^\(.*\)=$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^ *(?:[-*+]|\d+\.|:)\s+|^> ?")
_OTHER = re.compile(r"^\s*(?:\||<)|^    \S")  # a table, HTML, code
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\([^)\s]+\)")


def paragraphs(page: str) -> Iterator[Paragraph]:
    """Yields paragraphs and items of lists: neither code, headings, tables nor comments."""
    text = _ASIDE.sub("", _FENCE.sub("\n    code\n", page))
    pieces: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines():
        start = _ITEM.match(line)
        if not line.strip() or line.startswith("#") or set(line.strip()) <= set("-= "):
            pieces.append(("", []))
        elif start:
            pieces.append(("item", [line[start.end() :]]))
        elif _OTHER.match(line) and not (pieces[-1][1] and pieces[-1][0] == "item"):
            pieces.append(("other", [line]))
        elif line.strip().startswith("|") or pieces[-1][0] == "other" and line.startswith("    "):
            pieces.append(("other", [line]))
        elif pieces[-1][0] == "other":
            pieces.append(("", [line]))
        else:
            pieces[-1][1].append(line)
    pieces = [piece for piece in pieces if piece[1] or piece[0]]
    for (kind, lines), (after, _) in pairwise([*pieces, ("", [])]):
        if kind != "other":
            yield Paragraph("\n".join(lines), kind == "item", after != "")


def find_fault(paragraph: Paragraph) -> str:
    """Returns why a paragraph looks cut off, "" if it does not."""
    text = _LINK.sub("]", _CODE.sub("code", paragraph.text)).strip()
    if re.search(r"(?:,|\b(?:and|or|the|a|an|of|with|to|that|which)|[(\[{])$", text):
        return "ends in the middle of a sentence"
    if text.count("(") != text.count(")") or text.count("[") != text.count("]"):
        return "has an open bracket"
    may_be_open = paragraph.is_item or paragraph.leads or "![" in text
    ends = text.rstrip("*_\"'”)").endswith((".", ":", "?", "!", ";"))
    return "" if ends or may_be_open or len(text.split()) < 7 else "ends without punctuation"


@pytest.mark.parametrize("page", HANDWRITTEN, ids=named)
def test_no_paragraph_is_cut_off(page: Path) -> None:
    for each in paragraphs(page.read_text()):
        assert not find_fault(each), (find_fault(each), each.text)


@pytest.mark.parametrize(
    "text, fault",
    [
        ("A pass reads the type of each axis): Transpose,", "ends in the middle"),
        ("Both models are read and", "ends in the middle"),
        ("It is a picture of all packages and of the", "ends in the middle"),
        ("This sentence (with a bracket does not close it.", "has an open bracket"),
        ("This sentence ends before it says what it means\n\n# A title", "ends without"),
        ("This sentence is complete (`f(` is code, [as here](a.md)).", ""),
        ("- an item of a list needs no full stop at its end", ""),
        ("- an item that is cut off in the middle of,", "ends in the middle"),
        ("```python\nprint(1,\n```\n\nThe block above is code, so that it is not read:", ""),
        ("| a | row of a table, |\n|---|---|", ""),
    ],
)
def test_a_cut_off_paragraph_would_be_seen(text: str, fault: str) -> None:
    faults = [*filter(None, map(find_fault, paragraphs(text)))]
    assert [each.startswith(fault) for each in faults] == [True] * bool(fault)


# Links.


@cache
def generated() -> dict[str, str]:
    """Returns the pages that `make docs` generates, by their names in docs/generated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPO / "docs")
        from generated_pages import pages

        return dict(pages())


def text_of(page: Path) -> str | None:
    """Returns the text of a page of the checkout or of docs/generated, None if there is none."""
    folder = REPO / "docs" / "generated"
    if page.is_relative_to(folder):
        return generated().get(page.relative_to(folder).as_posix())
    return page.read_text() if page.is_file() and page.suffix == ".md" else None


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page: those of its titles, and labels."""
    titles = re.findall(r"^#+ (.*)", _FENCE.sub("", text), re.MULTILINE)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r"^\((.*)\)=$", text, re.MULTILINE))


def find_dead_link(text: str, page: Path) -> str:
    """Returns the first link of a page that leads nowhere, "" if all lead somewhere."""
    for link in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", _FENCE.sub("", text))):
        path, _, anchor = link.partition("#")
        if inside := re.match(rf"{URL}/(?:blob|tree)/main/(.*)", path):
            target = REPO / inside[1]
        elif path.startswith(("http:", "https:", "mailto:")):
            continue
        else:
            target = (page.parent / path).resolve() if path else page
        content = text if target == page else text_of(target)
        if content is None and not target.exists():
            return link
        if anchor and target.suffix == ".md" and anchor not in anchors(content or ""):
            return link
    return ""


@pytest.mark.parametrize("page", HANDWRITTEN, ids=named)
def test_links_lead_to_a_page_and_a_place_in_it(page: Path) -> None:
    assert not find_dead_link(page.read_text(), page)


@pytest.mark.parametrize(
    "link, dead",
    [
        ("glossary.md", False),
        ("glossaries.md", True),
        ("explanations/fusion.md#why-it-is-safe", False),
        ("explanations/fusion.md#why-it-is-save", True),
        ("generated/security.md", False),
        ("generated/safety.md", True),
        (f"{URL}/blob/main/design/README.md", False),
        (f"{URL}/blob/main/design/0000-nothing.md", True),
        ("https://elsewhere.example/page", False),
    ],
)
def test_a_dead_link_would_be_seen(link: str, dead: bool) -> None:
    page = REPO / "docs" / "page.md"
    assert find_dead_link(f"A [link]({link}).", page) == link * dead


def test_a_package_index_shows_the_images_of_the_front_page() -> None:
    """Their addresses are absolute; each file is in the checkout."""
    text = (REPO / "README.md").read_text()
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert images and "<img" not in text
    raw = URL.replace("github.com", "raw.githubusercontent.com") + "/main/"
    for image in images:
        assert image.startswith(raw) and (REPO / image.removeprefix(raw)).is_file(), image


def test_parts_of_other_pages_are_there() -> None:
    """What a page includes begins and ends with texts that the other page has once."""
    included = 0
    for page in (REPO / "docs").rglob("*.md"):
        for block in manual.blocks(page.read_text()):
            if not block.language.startswith("{include}"):
                continue
            other = (page.parent / block.language.partition(" ")[2]).resolve().read_text()
            options = dict(re.findall(r'^:([\w-]+): "(.*)"$', block.text, re.MULTILINE))
            start, end = (other.find(options[key]) for key in ("start-after", "end-before"))
            assert -1 < start < end, (page, options)
            assert all(other.count(text) == 1 for text in options.values()), (page, options)
            included += 1
    assert included
