"""RunInference of Apache Beam, in local mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.ml.inference.base import RunInference
from apache_beam.testing.util import assert_that
from support.scoring import INPUTS, MODEL, corpus, same_rows, session

from onernn.scoring import Scorer, beam_model_handler


def inferred(rows: list[Any], handler: Any, tmp_path: Path) -> list[Any]:
    """The results, as a pipeline writes them."""
    found = tmp_path / "found"
    with beam.Pipeline() as pipeline:
        results = pipeline | beam.Create(rows) | RunInference(handler)
        results | beam.Map(_line) | beam.io.WriteToText(str(found), num_shards=1)
    (file,) = tmp_path.glob("found*")
    return [eval(line) for line in file.read_text().splitlines()]


def _line(result: Any) -> str:
    return repr((dict(result.example), dict(result.inference)))


@pytest.mark.parametrize("model", [MODEL, session()], ids=["path", "session"])
def test_rows_get_outputs_and_reasons(model: Any, tmp_path: Path) -> None:
    table = corpus(1000)
    schema = Scorer(session(), INPUTS)(table).table.schema.append(pa.field("rejected", pa.string()))
    handler = beam_model_handler(model, INPUTS, words=2000)
    made = inferred(table.to_pylist(), handler, tmp_path)
    rows = [{**example, **inference} for example, inference in made]
    same_rows(pa.Table.from_pylist(rows, schema), table)


def test_batches_are_filled_by_words() -> None:
    rows = [{"text": np.arange(count % 41) % 26} for count in range(2000)]
    handler = beam_model_handler(MODEL, INPUTS, words=500)
    kwargs = handler.batch_elements_kwargs()
    size = kwargs["element_size_fn"]
    with beam.Pipeline() as pipeline:
        batches = pipeline | beam.Create([rows]) | beam.FlatMap(list) | beam.BatchElements(**kwargs)
        words = batches | beam.Map(lambda batch: sum(map(size, batch)))
        assert_that(words, lambda found: _all_below(found, 500 + 40))


def _all_below(found: list[int], most: int) -> None:
    assert max(found) > most / 4 and all(each <= most for each in found), sorted(found)[-5:]


def test_rows_of_similar_length_stay_together_where_batches_wait() -> None:
    handler = beam_model_handler(MODEL, INPUTS, max_batch_duration_secs=1)
    kwargs = handler.batch_elements_kwargs()
    assert kwargs["length_fn"]({"text": [1, 2, 3]}) == 3
    assert kwargs["length_fn"]({"text": None}) == kwargs["length_fn"]({}) == 1
