"""A model handler for Apache Beam's RunInference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from onernn.adapters.common.adapter import require
from onernn.engine.session import Session
from onernn.ir.graph import Graph
from onernn.scoring.columns import array_of
from onernn.scoring.scorer import REJECTED, WORDS, Scorer, one_threaded, with_reasons

require("apache_beam", "beam")

from apache_beam.ml.inference.base import ModelHandler, PredictionResult  # noqa: E402

Row = Mapping[str, Any]


class Words:
    """The words of a row: those of its longest input, and at least 1."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns

    def __call__(self, row: Row) -> int:
        return max([1, *(np.size(row[name]) for name in self._columns if name in row)])


class BeamModelHandler(ModelHandler[Row, PredictionResult, Scorer]):  # type: ignore[misc]
    """The result of `beam_model_handler`."""

    def __init__(self, scorer: Scorer, rejected: str, **batching: Any) -> None:
        super().__init__(**batching)
        self._scorer, self._rejected = scorer, rejected

    def load_model(self) -> Scorer:
        """The model came with the handler."""
        return self._scorer

    def run_inference(
        self, batch: Sequence[Row], model: Scorer, inference_args: Row | None = None
    ) -> Iterable[PredictionResult]:
        """A result for each row."""
        bad: dict[int, str] = {}
        columns = {
            name: array_of([_plain(row.get(name)) for row in batch], bad)
            for name in model.columns.values()
        }
        scored = with_reasons(model(pa.table(columns), known_bad=bad), self._rejected)
        for row, outputs in zip(batch, scored.drop_columns(list(columns)).to_pylist(), strict=True):
            yield PredictionResult(row, outputs)

    def get_metrics_namespace(self) -> str:
        return "onernn"


def beam_model_handler(
    model: Session | Graph | str | Path,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    *,
    words: int = WORDS,
    rejected: str = REJECTED,
    max_batch_duration_secs: int | None = None,
    **options: Any,
) -> BeamModelHandler:
    """A handler for ``RunInference``: rows are mappings from columns to numbers, lists or arrays.

    ```python
    scored = rows | RunInference(beam_model_handler("model.onnx", {"words": "tokens"}))
    ```

    The inference of a `PredictionResult` is a mapping, too: from the outputs' columns, and from
    ``rejected`` to the reason why the row could not be scored, None for all others. Batches are
    filled by words, up to ``words``, and are not padded; where ``max_batch_duration_secs`` is given
    Beam keeps rows of similar length together. The model travels with the handler; one that is no
    session runs with one thread unless ``threads`` is given. Other arguments are those of `Scorer`.
    """
    scorer = one_threaded(model, inputs, outputs, words=words, **options)
    size = Words(list(scorer.columns.values()))
    batching: dict[str, Any] = {"max_batch_duration_secs": max_batch_duration_secs}
    if max_batch_duration_secs is not None:
        batching["batch_length_fn"] = size
    return BeamModelHandler(
        scorer, rejected, max_batch_size=words, element_size_fn=size, **batching
    )


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
