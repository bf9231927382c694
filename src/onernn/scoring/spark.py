"""Scores data frames of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from onernn.ir.errors import UnsupportedError
from onernn.scoring.runner import WINDOW
from onernn.scoring.scorer import Scorer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def score_frame(frame: DataFrame, scorer: Scorer, *, window: int = WINDOW) -> DataFrame:
    """Returns a frame's rows with the columns that a scorer adds. Spark runs it by `mapInArrow`.

    The rows of each partition keep their order. Every ``window`` consecutive rows of a partition
    are scored together, so the results do not depend on the size of Spark's Arrow batches. The
    scorer should have ``threads=1``, because Spark runs one task per core.

    Raises the errors that the scorer raises for the frame's columns, and `UnsupportedError` if
    Spark does not have the type of an output.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from pyspark.sql import SparkSession
    >>> from onernn.scoring import Scorer
    >>> from onernn.scoring.spark import score_frame
    >>> spark = SparkSession.builder.master("local[1]").getOrCreate()
    >>> frame = spark.createDataFrame([([-1.0, 2.0],)], "x array<float>")
    >>> score_frame(frame, Scorer(model, threads=1)).collect()[0].y
    [0.0, 2.0]
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
    from pyspark.sql.types import StructType

    if window < 1:
        raise UnsupportedError(f"window: expected 1 or more, got {window}")
    taken = {*scorer.columns.values()}
    result = scorer.schema(
        pa.schema(  # other columns stay unchanged, and Arrow may lack their types
            (each.name, to_arrow_type(each.dataType) if each.name in taken else pa.null())
            for each in frame.schema
        )
    )
    kept = frame.columns if scorer.keep is None else scorer.keep
    try:
        added = from_arrow_schema(pa.schema([*result][len(kept) :]))
    except PySparkException as error:
        raise UnsupportedError(
            f"Spark does not have the type of an output: {error}; leave the output out (outputs=)"
        ) from error
    columns = StructType([*(frame.schema[name] for name in kept), *added])

    def scored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in cut(batches, window):
            yield from scorer(rows).to_batches()

    return frame.mapInArrow(scored, columns)


def cut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Yields the rows of batches in tables of ``size`` rows; the last one may have fewer."""
    waiting, count = list[pa.RecordBatch](), 0
    for batch in batches:
        while count + batch.num_rows >= size:
            waiting.append(batch.slice(0, size - count))
            yield pa.Table.from_batches(waiting)
            batch, waiting, count = batch.slice(size - count), [], 0
        if batch.num_rows:
            waiting.append(batch)
            count += batch.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)
