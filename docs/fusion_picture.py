"""Draws a graph before and after fusion: ``python docs/fusion_picture.py`` writes the picture."""

from __future__ import annotations

import re
from pathlib import Path

import onernn
from onernn.verification.inspecting import colour_fused_values, picture

DOCS = Path(__file__).resolve().parent
MODEL = DOCS.parent / "tests" / "data" / "paddle" / "bigru_concat"
FILE = DOCS / "pictures" / "fusion.svg"


def drawn() -> str:
    """Returns an SVG of both graphs, side by side, as reports draw them. Operators that were fused
    into one operator have its colour.
    """
    before = onernn.load(MODEL)
    after = onernn.fuse(before).model
    old, new = colour_fused_values(before, after)
    parts, left, tallest = [], 0, 0
    for title, graph, colours in (("before", before, old), ("after", after, new)):
        svg = picture(graph, title, fused=colours)
        width, height = map(int, re.findall(r'(?:width|height)="(\d+)"', svg)[:2])
        parts.append(
            f'<text x="{left + 20}" y="22" font-family="sans-serif" font-size="16"'
            f' font-weight="bold">{title}</text>\n'
            + svg.replace("<svg ", f'<svg x="{left}" y="24" ', 1)
        )
        left, tallest = left + width, max(tallest, height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left} {tallest + 24}"'
        f' width="{left}" height="{tallest + 24}">\n'
        "<title>A graph before and after fusion</title>\n"
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    FILE.write_text(drawn())
