"""Scores rows in pipelines of Apache Beam."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from onernn.adapters.common.adapter import require
from onernn.ir.errors import UnsupportedError
from onernn.scoring.corpus import holds
from onernn.scoring.runner import WINDOW
from onernn.scoring.scorer import Scorer

require("apache_beam", "beam")

from apache_beam.ml.inference.base import ModelHandler  # noqa: E402

_SHOWN = 10_000
"""Maximum number of characters of an unreadable row in the reason for its rejection."""

Row = Mapping[str, Any]


class ScorerHandler(ModelHandler):  # type: ignore[misc]
    """A model handler for Beam's `RunInference`, which adds a scorer's outputs to rows.

    Rows are dictionaries, and ``schema`` is the schema of their columns. Each result is a
    dictionary with the kept columns, the outputs and ``rejected``. If the schema cannot hold the
    values of a row unchanged, the row's result has the reason and the text of the row in
    ``rejected``, and None in all other columns. ``min_batch_size`` and ``max_batch_size``: how many
    rows are scored together. For rows with keys, wrap the handler in Beam's `KeyedModelHandler`.

    The scorer should have ``threads=1``, because Beam runs several threads or processes.

    Raises the errors that the scorer raises for the columns of ``schema``.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> import pyarrow as pa
    >>> from onernn.scoring import Scorer
    >>> from onernn.scoring.beam import ScorerHandler
    >>> handler = ScorerHandler(Scorer(model, threads=1), pa.schema({"x": pa.list_(pa.float32())}))
    >>> handler.run_inference([{"x": [-1.0, 2.0]}], handler.load_model())
    [{'x': [-1.0, 2.0], 'y': [0.0, 2.0], 'rejected': None}]
    """

    def __init__(
        self,
        scorer: Scorer,
        schema: pa.Schema,
        *,
        min_batch_size: int = 256,
        max_batch_size: int = WINDOW,
        **options: Any,
    ) -> None:
        scorer.schema(schema)
        super().__init__(min_batch_size=min_batch_size, max_batch_size=max_batch_size, **options)
        self._scorer, self._schema = scorer, schema

    def load_model(self) -> Scorer:
        return self._scorer

    def run_inference(
        self,
        batch: Sequence[Row],
        model: Scorer,
        inference_args: Mapping[str, Any] | None = None,
    ) -> Iterable[dict[str, Any]]:
        """Returns the result of each row, in the order of the rows. Raises `UnsupportedError` for
        any ``inference_args``.
        """
        if inference_args:
            raise UnsupportedError(f"inference_args: expected none, got {[*inference_args]}")
        table, bad = read_rows(batch, self._schema)
        return model(table, bad).to_pylist()

    def get_metrics_namespace(self) -> str:
        return "onernn"


def read_rows(rows: Sequence[Row], schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """Returns a table of the rows, and the reasons to reject rows by the row's number. In the table
    such a row has only nulls.
    """
    values, bad = list[dict[str, Any]](), dict[int, str]()
    for index, row in enumerate(rows):
        try:
            values.append(_checked(row, schema))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            values.append({})
            bad[index] = f"{error}: {f'{row!r}':.{_SHOWN}}"
    return pa.Table.from_pylist(values, schema), bad


def _checked(row: Row, schema: pa.Schema) -> dict[str, Any]:
    """Returns the row with NumPy's values converted to Python's values. Raises an error if the
    schema cannot hold the row unchanged.
    """
    if not isinstance(row, Mapping):
        raise TypeError(f"expected a dictionary, got {type(row).__name__}")
    if unknown := row.keys() - {*schema.names}:
        column = min(map(str, unknown))
        raise ValueError(f"column {column!r}: expected one of the schema, {[*schema.names]!s:.200}")
    values = {name: _plain(value) for name, value in row.items()}
    for field in schema:
        value = values.get(field.name)
        if not holds(field.type, value):
            got = f"{value!r}"
            raise ValueError(f"column {field.name!r}: expected {field.type}, got {got:.60}")
        pa.array([value], field.type)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return [*value] if isinstance(value, tuple) else value
