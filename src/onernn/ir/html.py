"""The table that shows a graph in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

from onernn.ir.errors import printable

MOST = 60
"""Maximum number of rows of a table, because a notebook stores the table in its file."""


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table with a title, a head, the first `MOST` rows, and the number of further rows.

    Texts are escaped: markup, and characters that change the direction of writing, have no effect.
    """
    every = list(rows)
    lines = [_row("th", head), *(_row("td", row) for row in islice(every, MOST))]
    if (more := len(every) - MOST) > 0:
        lines.append(f'<tr><td colspan="{len(head)}">and {more} more</td></tr>')
    inside = "\n".join(lines)
    return f"<table>\n<caption>{_text(title)}</caption>\n{inside}\n</table>\n"


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{_text(each)}</{kind}>' for each in cells)}</tr>"


def _text(found: str) -> str:
    return escape(printable(found))
