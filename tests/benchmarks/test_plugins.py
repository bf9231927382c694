"""The bounds that `benchmarks.plugins --fit` finds of measured ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onernn.adapters.common import gain

LEASTS = [
    gain.Least(words=64),
    gain.Least(units=512),
    gain.Least(steps=16),
    gain.Least(work=4096),
    gain.Least(share=1 / 2),
    gain.Least(turns=1 / 8),
    gain.Least(steps=16, share=1 / 8),
]


@pytest.fixture
def plugins(module: Any) -> Any:
    return module("plugins")


@pytest.fixture
def rows(plugins: Any) -> list[Any]:
    one = ("GRU", False, False)
    return [row for row in plugins.rows() if (row.kind, row.trains, row.cell) == one]


def taken(least: gain.Least, rows: list[Any]) -> list[bool]:
    return [least.holds(row.steps, row.sequences, row.units) for row in rows]


@pytest.mark.parametrize("least", LEASTS)
def test_what_is_taken_is_what_gains(least: gain.Least, plugins: Any, rows: list[Any]) -> None:
    expected = taken(least, rows)
    assert True in expected and False in expected
    ratios = [1.5 if gains else 0.5 for gains in expected]
    found = plugins.fitted(list(zip(rows, ratios, strict=True)))
    assert taken(found, rows) == expected


def test_one_row_that_gains_may_be_noise(plugins: Any, rows: list[Any]) -> None:
    assert plugins.fitted([(row, 2.0 if row is rows[-1] else 0.5) for row in rows]) == gain.NEVER
    assert plugins.fitted([(row, 0.9) for row in rows]) == gain.NEVER


def test_what_was_printed_is_read_again(plugins: Any, rows: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.md"
    head = "| layer, steps x sequences | framework us | onernn us | ratio |\n|---|---|---|---|\n"
    lines = (f"| {row.name} | 3.0 | 2.0 | {k / 100:.2f} |" for k, row in enumerate(rows))
    file.write_text(head + "\n".join(lines))
    assert plugins.read(file) == [(row, k / 100) for k, row in enumerate(rows)]
