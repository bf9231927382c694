"""A corpus of letters, and what its rows are by a scorer in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import onernn
from onernn.scoring import Scorer

INPUTS = {"letters": "text"}
MODEL = Path(__file__).parents[2] / "examples" / "segmenter"
BAD = {3: [10**9], 20: None}
"""Rows that the model does not take, by their number."""


def corpus(count: int, seed: int = 0) -> pa.Table:
    """Rows of 0 to 40 letters."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 26, n).tolist() for n in rng.integers(0, 41, count)]
    for at, bad in BAD.items():
        rows[at] = bad
    return pa.table({"id": range(count), "text": pa.array(rows, pa.list_(pa.int64()))})


def session() -> onernn.Session:
    return onernn.Session(MODEL, threads=1)


def same_rows(got: pa.Table, table: pa.Table) -> None:
    """Every row once, with the values that it has when a scorer takes all of them at once.

    Integers are equal. Sums of floats may be rounded otherwise in batches of other sizes.
    """
    want = Scorer(session(), INPUTS)(table)
    got = got.sort_by("id")
    assert got.column_names == want.column_names
    assert {at for at, reason in enumerate(got["rejected"].to_pylist()) if reason} == set(BAD)
    for name in want.column_names:
        one, other = (each[name].combine_chunks() for each in (got, want))
        assert one.is_null().equals(other.is_null())
        while pa.types.is_nested(one.type):
            one, other = one.flatten(), other.flatten()
        if pa.types.is_floating(one.type):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert one.equals(other), name
