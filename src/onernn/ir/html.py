"""What objects show of themselves in notebooks: tables, in which a model's names are only text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

from onernn.ir.errors import printable

MOST = 60
"""Rows of a table: a notebook keeps what it showed."""


def text(found: object) -> str:
    """As HTML, whatever stands in it: no markup, nothing that turns the text around."""
    return escape(printable(found))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The rows under their head; the first `MOST` of them, and how many more there are."""
    listed = iter(rows)
    lines = [f"<tr>{''.join(f'<th>{text(each)}</th>' for each in head)}</tr>"]
    for row in islice(listed, MOST):
        lines.append(f"<tr>{''.join(f'<td>{text(each)}</td>' for each in row)}</tr>")
    if more := sum(1 for _ in listed):
        lines.append(f'<tr><td colspan="{len(head)}">and {more} more</td></tr>')
    inside = "\n".join(lines)
    return f"<table>\n{inside}\n</table>\n"


def block(title: object, *parts: str) -> str:
    return f"<div><strong>{text(title)}</strong>\n{''.join(parts)}</div>"


def paragraph(found: object) -> str:
    return f"<p>{text(found)}</p>\n"
