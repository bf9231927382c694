"""Data frames of Spark, scored in local mode: processes of Python beside Java."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from support.scoring import BAD, INPUTS, MODEL, corpus, same_rows, session

from onernn.scoring import spark_scorer

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        made = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
            .getOrCreate()
        )
        yield made
        made.stop()


@pytest.mark.parametrize("how", ["mapInPandas", "mapInArrow"])
@pytest.mark.parametrize("model", [MODEL, session()], ids=["path", "session"])
def test_frames_come_back_with_outputs_and_reasons(spark: Any, how: str, model: Any) -> None:
    table = corpus(3000)
    frame = spark.createDataFrame(table).repartition(4)
    scorer = spark_scorer(model, INPUTS)
    made = getattr(frame, how)(scorer, scorer.schema(frame))
    same_rows(made.toArrow(), table)


def test_strict_stops_at_a_bad_row(spark: Any) -> None:
    frame = spark.createDataFrame(corpus(100))
    scorer = spark_scorer(MODEL, INPUTS, strict=True)
    with pytest.raises(PythonException, match=f"row {min(BAD)}: "):
        frame.mapInArrow(scorer, scorer.schema(frame)).collect()


def test_a_schema_of_ones_own_chooses_columns(spark: Any) -> None:
    table = pa.table({"text": [[1, 2, 3]]})
    names = [value.name for value in session().graph.outputs]
    scorer = spark_scorer(MODEL, INPUTS, {names[1]: "tags"})
    frame = spark.createDataFrame(table)
    assert scorer.schema(frame).fieldNames() == ["text", "tags", "rejected"]
    schema = "text array<bigint>, tags array<bigint>, rejected string"
    (row,) = frame.mapInPandas(scorer, schema).collect()
    assert len(row.tags) == 3 and row.rejected is None
