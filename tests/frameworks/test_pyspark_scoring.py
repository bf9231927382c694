"""Data frames of Spark, scored in local mode: the manual's recipe, and many rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.framework_pages import checked_pages
from support.scoring import BAD, INPUTS, MODEL, corpus, reasons_of

from onernn import Graph, UnsupportedError
from onernn.ir.graph import Node, Value
from onernn.scoring import Scorer, score
from onernn.scoring.spark import score_frame

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


@pytest.mark.parametrize("backend", ["auto", "onednn"])  # oneDNN: bits depend on the batch
def test_a_partition_in_order_has_the_rows_and_bits_of_the_local_engine(
    spark: Any, tmp_path: Path, backend: str
) -> None:
    """Spark's Arrow batches have 77 rows, the local engine's windows 500."""
    pq.write_table(corpus(1200), tmp_path / "x.parquet")
    how: Any = {"inputs": INPUTS, "backend": backend}
    score(MODEL, tmp_path / "x.parquet", tmp_path / "out", window=500, **how)
    local = pq.read_table(tmp_path / "out")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "77")
    frame = spark.read.parquet(str(tmp_path / "x.parquet")).coalesce(1)
    got = score_frame(frame, Scorer(MODEL, **how, threads=1), window=500).toArrow()
    assert got.column_names == local.column_names
    same = [name for name in got.column_names if got[name].equals(local[name])]
    assert same[: len(got.column_names) - 1] == got.column_names[:-1]
    reasons = reasons_of(got)
    assert reasons.keys() == BAD.keys()
    assert all(reasons_of(local)[row].endswith(reason) for row, reason in reasons.items())


def test_the_kernels_return_the_same_bits_for_any_partitions(spark: Any) -> None:
    table, scorer = corpus(900), Scorer(MODEL, INPUTS, threads=1, backend="kernels")
    frame = spark.createDataFrame(table).repartition(3)
    got = score_frame(frame, scorer, window=150).sort("id").toArrow()
    assert got.equals(scorer(table).cast(got.schema))


def test_columns_of_all_types_pass_unchanged(spark: Any) -> None:
    frame = spark.sql(
        "SELECT id, array(id) AS text, timestamp '2026-01-02 03:04:05.678' AS t, date '2026-01-02'"
        " AS d, cast(1.5 AS decimal(9, 3)) AS m, map('a', id) AS pairs, named_struct('b', array(1))"
        " AS s, cast('x' AS binary) AS raw, cast(null AS void) AS nothing FROM range(20)"
    )
    got = score_frame(frame, Scorer(MODEL, INPUTS, threads=1)).select(frame.columns)
    assert got.toArrow().sort_by("id").equals(frame.toArrow())


def test_an_output_of_a_type_that_spark_lacks_is_refused_by_name(spark: Any) -> None:
    cast = Node("Cast", ("x",), ("y",), {"to": "uint8"})
    graph = Graph("g", (Value("x", "float32", (None, 2)),), (Value("y"),), (cast,), {})
    frame = spark.createDataFrame(pa.table({"x": pa.array([[1.0, 2.0]], pa.list_(pa.float32()))}))
    with pytest.raises(UnsupportedError, match="uint8"):
        score_frame(frame, Scorer(graph))
    with pytest.raises(UnsupportedError, match="window.*0"):
        score_frame(frame, Scorer(graph), window=0)


def test_a_column_that_the_model_leaves_open_is_not_lost(spark: Any) -> None:
    """Its type follows from the frame's columns; before, it was null, and so was each row."""
    graph = Graph("g", (Value("x"),), (Value("y"),), (Node("Neg", ("x",), ("y",)),), {})
    table = pa.table({"x": pa.array([[1.5, 2], [3]], pa.list_(pa.float64()))})
    rows = score_frame(spark.createDataFrame(table), Scorer(graph)).toArrow()
    assert rows["y"].to_pylist() == [[-1.5, -2], [-3]]
