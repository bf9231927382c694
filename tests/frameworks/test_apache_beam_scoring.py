"""Rows of Apache Beam, scored in local mode: the manual's recipe, and many rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
from support.framework_pages import checked_pages
from support.scoring import INPUTS, MODEL, corpus

from onernn import ShapeError, UnsupportedError
from onernn.scoring import Scorer
from onernn.scoring.beam import ScorerHandler

TestPages = checked_pages("apache_beam")
TABLE = corpus(1000)


def test_rows_get_the_values_of_one_scorer_and_keys_bring_their_order_back(tmp_path: Path) -> None:
    """The kernels return the same bits in any batch."""
    scorer, found = Scorer(MODEL, INPUTS, threads=1, backend="kernels"), tmp_path / "found"
    handler = ScorerHandler(scorer, TABLE.schema, min_batch_size=100, max_batch_size=300)
    with beam.Pipeline() as pipeline:
        rows = pipeline | beam.Create([*enumerate(TABLE.to_pylist())])
        made = rows | RunInference(KeyedModelHandler(handler)) | beam.Map(repr)
        made | beam.io.WriteToText(str(found), num_shards=1, shard_name_template="")
    scored = dict(eval(line) for line in found.read_text().splitlines())
    assert len(scored) == len(TABLE)
    assert [scored[key] for key in sorted(scored)] == scorer(TABLE).to_pylist()


BROKEN: list[tuple[Any, str]] = [
    ({"id": 1, "text": ["3", 1]}, "['3', 1]"),
    ({"id": 1, "text": [True]}, "[True]"),
    ({"id": "007", "text": [1]}, "'007'"),
    ({"id": 2**70, "text": [1]}, str(2**70)),
    ({"id": 1, "text": [1], "more": 1}, "'more'"),
    ({1: 1}, "'1'"),
    ("nonsense", "'nonsense'"),
    (None, "None"),
]


def test_rows_that_the_schema_cannot_hold_are_rejected_with_their_text() -> None:
    scorer = Scorer(MODEL, INPUTS, threads=1)
    handler = ScorerHandler(scorer, TABLE.schema)
    rows = [{"id": 0, "text": [1, 2]}, *(row for row, _ in BROKEN), {"text": np.array([1, 2])}]
    first, *broken, last = handler.run_inference(rows, handler.load_model())
    assert first["rejected"] is None and last["rejected"] is None
    values = [name for name in first if name not in ("id", "text", "rejected")]
    assert [first[name] for name in values] == [last[name] for name in values]
    for got, (row, named) in zip(broken, BROKEN, strict=True):
        assert got.keys() == first.keys() and got["text"] is None
        assert named in got["rejected"] and got["rejected"].endswith(repr(row))


def test_a_pipeline_that_cannot_work_is_refused_when_it_is_made() -> None:
    scorer = Scorer(MODEL, INPUTS, threads=1)
    with pytest.raises(ShapeError, match="'text'"):
        ScorerHandler(scorer, pa.schema([("id", pa.int64())]))
    handler = ScorerHandler(scorer, TABLE.schema)
    with pytest.raises(UnsupportedError, match="speed"):
        handler.run_inference(TABLE.to_pylist(), handler.load_model(), {"speed": 1})
