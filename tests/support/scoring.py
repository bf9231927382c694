"""A corpus of letters, and what its rows are by a scorer in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
    assert got["id"].to_pylist() == table["id"].to_pylist()
    reasons = got["rejected"].to_pylist()
    assert {at for at, reason in enumerate(reasons) if reason} == set(BAD)
    assert [reasons[each["row"]] for each in want.rejected.to_pylist()] == [
        each["reason"] for each in want.rejected.to_pylist()
    ]
    for name in want.table.column_names:
        one, other = (each[name].combine_chunks() for each in (got, want.table))
        assert one.is_null().equals(other.is_null())
        while pa.types.is_nested(one.type):
            one, other = one.flatten(), other.flatten()
        if pa.types.is_floating(one.type):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert one.equals(other), name


def written(folder: Path, table: pa.Table, files: int) -> Path:
    """The rows in so many files of a folder."""
    folder.mkdir()
    size = -(-table.num_rows // files)
    for at in range(files):
        rows = table.slice(at * size, size)
        pq.write_table(rows, folder / f"{at:03}.parquet", row_group_size=500)
    return folder
