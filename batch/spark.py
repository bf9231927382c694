"""A scorer for Spark's data frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onernn.adapters.requirements import require
from onernn.batch.rejecting import REJECTED, told
from onernn.batch.scorer import Scorer
from onernn.core.errors import ShapeError
from onernn.core.graph import Graph
from onernn.runtime.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class SparkScorer:
    """What ``DataFrame.mapInPandas`` and ``DataFrame.mapInArrow`` call; see `spark_scorer`."""

    def __init__(self, scorer: Scorer, rejected: str) -> None:
        self._scorer, self._rejected = scorer, rejected

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches with the outputs' columns: of pandas for pandas, of Arrow for Arrow."""
        import pyarrow as pa

        for batch in batches:
            if isinstance(batch, pa.RecordBatch):
                yield from self._told(pa.Table.from_batches([batch])).to_batches()
            else:
                yield self._told(pa.Table.from_pandas(batch, preserve_index=False)).to_pandas()

    def schema(self, frame: DataFrame) -> StructType:
        """Of what comes out for a frame: the types that the model tells of its outputs.

        Raises `ShapeError` for an output of an unknown type: write the schema yourself then.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

        found = self._told(to_arrow_schema(frame.schema).empty_table()).schema
        unknown = [field.name for field in found if pa.types.is_null(field.type)]
        if unknown:
            raise ShapeError(
                f"the model does not tell the type of {', '.join(map(repr, unknown))}: give"
                " mapInPandas a schema of your own"
            )
        return from_arrow_schema(found)

    def _told(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        made = told(self._scorer(table), self._rejected)
        return made.cast(pa.schema([field.with_type(_listed(field.type)) for field in made.schema]))


def _listed(kind: pa.DataType) -> pa.DataType:
    """The type without lists of a fixed size, which Spark's arrays are not."""
    import pyarrow as pa

    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return pa.list_(_listed(kind.value_type)) if any(each(kind) for each in lists) else kind


def spark_scorer(
    model: Session | Graph | str | Path,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    *,
    rejected: str = REJECTED,
    **options: Any,
) -> SparkScorer:
    """A function for ``DataFrame.mapInPandas``, and for ``mapInArrow``, which copies less.

    ```python
    scorer = spark_scorer("model.onnx", {"words": "tokens"})
    scored = frame.mapInPandas(scorer, scorer.schema(frame))
    ```

    The model travels with the function. The arguments are those of `Scorer`; the column
    ``rejected`` tells why a row could not be scored, null for all others. A model that is no
    session runs with one thread unless ``threads`` is told: Spark has a process for each core.
    """
    require("pyspark", "spark")
    if not isinstance(model, Session):
        options = {"threads": 1, **options}
    return SparkScorer(Scorer(model, inputs, outputs, **options), rejected)
