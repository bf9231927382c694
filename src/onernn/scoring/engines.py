"""Scorers for Ray Data and Spark; each restarts and resumes by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onernn.adapters.common.adapter import require
from onernn.engine.session import Session
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Graph
from onernn.scoring.scorer import REJECTED, Scorer, one_threaded, with_reasons

if TYPE_CHECKING:
    import ray
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class RayScorer:
    """A callable class for ``ray.data.Dataset.map_batches``: each actor scores batches with it.

    ```python
    model = ray.put(onernn.Session("model.onnx", threads=1))
    scored = dataset.map_batches(
        RayScorer,
        fn_constructor_args=(model,),
        fn_constructor_kwargs={"inputs": {"words": "tokens"}},
        batch_format="pyarrow",
        batch_size=4096,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=8),
    )
    ```

    ``model``: a reference of Ray's to a session, whose weights the actors of a node read where the
    object store has them; or what `Scorer` takes. The other arguments are those of `Scorer`.
    Batches come back with the outputs' columns, and the column ``rejected``: why a row could not be
    scored, null for all others; ``strict=True`` raises instead. A model that is no session runs
    with one thread unless ``threads`` is given, as an actor has one CPU of Ray's.
    """

    def __init__(
        self,
        model: ray.ObjectRef[Session] | Session | Graph | str | Path,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        *,
        rejected: str = REJECTED,
        **options: Any,
    ) -> None:
        import ray

        result: Any = ray.get(model) if isinstance(model, ray.ObjectRef) else model
        self._scorer, self._rejected = one_threaded(result, inputs, outputs, **options), rejected

    def __call__(self, batch: pa.Table) -> pa.Table:
        return with_reasons(self._scorer(batch), self._rejected)


class SparkScorer:
    """The callable for ``DataFrame.mapInPandas`` and ``mapInArrow``; see `spark_scorer`."""

    def __init__(self, scorer: Scorer, rejected: str) -> None:
        self._scorer, self._rejected = scorer, rejected

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches with the outputs' columns: of pandas for pandas, of Arrow for Arrow."""
        for batch in batches:
            if isinstance(batch, pa.RecordBatch):
                yield from self._scored(pa.Table.from_batches([batch])).to_batches()
            else:
                yield self._scored(pa.Table.from_pandas(batch, preserve_index=False)).to_pandas()

    def schema(self, frame: DataFrame) -> StructType:
        """The schema of the scored frame; outputs have the types that the model declares.

        Raises `ShapeError` for an output of an unknown type: write the schema yourself then.
        """
        from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

        result = self._scored(to_arrow_schema(frame.schema).empty_table()).schema
        unknown = [field.name for field in result if pa.types.is_null(field.type)]
        if unknown:
            raise ShapeError(
                f"the model does not say the type of {', '.join(map(repr, unknown))}: give"
                " mapInPandas a schema of your own"
            )
        return from_arrow_schema(result)

    def _scored(self, table: pa.Table) -> pa.Table:
        scored = with_reasons(self._scorer(table), self._rejected)
        return scored.cast(
            pa.schema([field.with_type(_listed(field.type)) for field in scored.schema])
        )


def _listed(kind: pa.DataType) -> pa.DataType:
    """The type without lists of a fixed size, which Spark's arrays are not."""
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
    scored = frame.mapInArrow(scorer, scorer.schema(frame))
    ```

    The model travels with the function. The arguments are those of `Scorer`; the column
    ``rejected`` says why a row could not be scored, null for all others. A model that is no
    session runs with one thread unless ``threads`` is given: Spark has a process for each core.
    """
    require("pyspark", "spark")
    return SparkScorer(one_threaded(model, inputs, outputs, **options), rejected)
