"""A corpus of letters, and what its rows are by a scorer in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import onernn
from onernn.scoring import Scorer

INPUTS = {"letters": "text"}
MODEL = Path(__file__).parents[2] / "examples" / "segmenter"
BAD = {3: [10**9], 20: None}
"""Rows that the model does not take, by their number."""


def corpus(count: int, seed: int = 0, longest: int = 40, bad: Mapping[int, Any] = BAD) -> pa.Table:
    """Rows of 0 to ``longest`` letters."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 26, n).tolist() for n in rng.integers(0, longest + 1, count)]
    for at, row in bad.items():
        rows[at] = row
    return pa.table({"id": range(count), "text": pa.array(rows, pa.list_(pa.int64()))})


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of all files, those in folders too."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def reasons_of(scored: pa.Table) -> dict[int, str]:
    """Why rows were rejected, by their number."""
    return {row: why for row, why in enumerate(scored["rejected"].to_pylist()) if why is not None}


def session() -> onernn.Session:
    return onernn.Session(MODEL, threads=1)


def same_rows(got: pa.Table, table: pa.Table) -> None:
    """Every row once, with the values that it has when a scorer takes all of them at once.

    Integers are equal. Sums of floats may be rounded otherwise in batches of other sizes.
    """
    want = Scorer(session(), INPUTS)(table)
    got = got.sort_by("id")
    assert got.column_names == want.column_names
    assert reasons_of(got).keys() == BAD.keys()
    for name in want.column_names:
        one, other = (each[name].combine_chunks() for each in (got, want))
        assert one.is_null().equals(other.is_null())
        while pa.types.is_nested(one.type):
            one, other = one.flatten(), other.flatten()
        if pa.types.is_floating(one.type):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert one.equals(other), name
