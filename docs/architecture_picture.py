"""Draws the packages and their imports: ``python docs/architecture_picture.py`` writes the picture.

The boxes, their rows and their arrows are computed from the import statements. The text in a box is
the first line of the package's docstring.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import grimp
from layout_pictures import BOLD, svg, text

SOURCE = Path(__file__).resolve().parents[1] / "src" / "onernn"
FILE = Path(__file__).resolve().parent / "pictures" / "architecture.svg"
TOP = "onernn"
WIDE, HIGH, GAP, ROW = 470, 62, 20, 104

Imports = Mapping[str, set[str]]


def read_imports() -> dict[str, set[str]]:
    """Returns the packages that each package imports. The modules directly in src/onernn count as
    one package.
    """
    modules = grimp.build_graph(TOP)
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}

    def package(module: str) -> str:
        name = module.split(".")[1] if "." in module else TOP
        return name if name in folders else TOP

    result: dict[str, set[str]] = {name: set() for name in (*sorted(folders), TOP)}
    for module in modules.modules:
        for imported in modules.find_modules_directly_imported_by(module):
            result[package(module)].add(package(imported))
    return {name: others - {name} for name, others in result.items()}


def reach(imports: Imports, name: str) -> set[str]:
    """Returns the packages that a package imports, directly or through others."""
    return imports[name].union(*(reach(imports, other) for other in imports[name]))


def count_rows(imports: Imports, name: str) -> int:
    """Returns the number of rows below a package in the picture: 0 if it imports no package."""
    return max((count_rows(imports, other) + 1 for other in imports[name]), default=0)


def list_arrows(imports: Imports) -> list[tuple[str, str]]:
    """Returns the pairs (package, imported package) without a path over a third package."""
    return [
        (name, other)
        for name, others in imports.items()
        for other in sorted(others)
        if not any(other in reach(imports, between) for between in others)
    ]


def describe(name: str) -> str:
    """Returns the first line of a package's docstring, without the full stop."""
    folder = SOURCE if name == TOP else SOURCE / name
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
    return docstring.splitlines()[0].rstrip(".")


def draw(imports: Imports) -> str:
    """Returns the picture as SVG. A package is above all packages that it imports."""
    rows: dict[int, list[str]] = {}
    for name in imports:
        rows.setdefault(count_rows(imports, name), []).append(name)
    full = max(map(len, rows.values())) * (WIDE + GAP) + GAP
    places: dict[str, tuple[float, float]] = {}
    for row, names in rows.items():
        left = (full - len(names) * (WIDE + GAP) + GAP) / 2
        for column, name in enumerate(names):
            places[name] = left + column * (WIDE + GAP), GAP + (max(rows) - row) * ROW
    lines = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        ' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    ]
    for name, other in list_arrows(imports):
        (x1, y1), (x2, y2) = places[name], places[other]
        lines.append(
            f'<line x1="{x1 + WIDE / 2:g}" y1="{y1 + HIGH:g}" x2="{x2 + WIDE / 2:g}" y2="{y2:g}"'
            ' stroke="#1f2937" marker-end="url(#tip)"/>'
        )
    for name, (x, y) in places.items():
        lines += [
            f'<rect x="{x:g}" y="{y:g}" width="{WIDE}" height="{HIGH}" fill="#e2e8f0"'
            ' stroke="#64748b"/>',
            text(x + WIDE / 2, y + 25, name, "middle", BOLD),
            text(x + WIDE / 2, y + 47, describe(name), "middle", ' font-size="12"'),
        ]
    return svg(
        "The packages of onernn and what they import", int(full), (max(rows) + 1) * ROW, lines
    )


if __name__ == "__main__":
    FILE.write_text(draw(read_imports()))
