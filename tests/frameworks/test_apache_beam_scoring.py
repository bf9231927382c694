"""Rows of Apache Beam, scored in local mode: the manual's recipe, and many rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from support.framework_pages import checked_pages
from support.scoring import INPUTS, MODEL, corpus, same_rows, session

from onernn.scoring import Scorer

TestPages = checked_pages("apache_beam")


@pytest.mark.parametrize("model", [MODEL, session()], ids=["path", "session"])
def test_rows_get_outputs_and_reasons(model: Any, tmp_path: Path) -> None:
    table = corpus(1000)
    scorer = Scorer(model, INPUTS)
    found = tmp_path / "found"

    def scored(rows: list[Any]) -> list[Any]:
        return scorer(pa.Table.from_pylist(rows, table.schema)).to_pylist()

    with beam.Pipeline() as pipeline:
        rows = pipeline | beam.Create(table.to_pylist()) | beam.BatchElements(100, 400)
        made = rows | beam.FlatMap(scored) | beam.Map(repr)
        made | beam.io.WriteToText(str(found), num_shards=1, shard_name_template="")
    lines = [eval(line) for line in found.read_text().splitlines()]
    same_rows(pa.Table.from_pylist(lines, scorer(table.schema.empty_table()).schema), table)
