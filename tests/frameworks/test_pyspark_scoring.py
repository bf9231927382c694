"""Data frames of Spark, scored in local mode: the manual's recipe, and many rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from support.framework_pages import checked_pages
from support.scoring import INPUTS, MODEL, corpus, same_rows, session

from onernn import Graph
from onernn.ir.graph import Node, Value
from onernn.scoring import Scorer

TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
os.environ["PYSPARK_PYTHON"] = sys.executable
TestPages = checked_pages("pyspark")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .getOrCreate()
    )
    yield made
    made.stop()


@pytest.mark.parametrize("model", [MODEL, session()], ids=["path", "session"])
def test_frames_come_back_with_outputs_and_reasons(spark: Any, model: Any) -> None:
    table = corpus(3000)
    scorer = Scorer(model, INPUTS)

    def scored(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from scorer(batch).to_batches()

    schema = from_arrow_schema(scorer(table.schema.empty_table()).schema)
    frame = spark.createDataFrame(table).repartition(4)
    same_rows(frame.mapInArrow(scored, schema).toArrow(), table)


def test_a_column_that_the_model_leaves_open_is_not_lost(spark: Any) -> None:
    """Its type follows from the frame's columns; before, it was null, and so was each row."""
    graph = Graph("g", (Value("x"),), (Value("y"),), (Node("Neg", ("x",), ("y",)),), {})
    scorer = Scorer(graph)
    table = pa.table({"x": pa.array([[1.5, 2], [3]], pa.list_(pa.float64()))})

    def scored(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from scorer(batch).to_batches()

    schema = from_arrow_schema(scorer(table.schema.empty_table()).schema)
    rows = spark.createDataFrame(table).mapInArrow(scored, schema).toArrow()
    assert rows["y"].to_pylist() == [[-1.5, -2], [-3]]
