"""Corpora: tables whose rows a model scores, on one machine or inside of other engines."""

from typing import TYPE_CHECKING, Any

from onernn.adapters.common.adapter import require

require("pyarrow", "score")

from onernn.scoring.engines import RayScorer, spark_scorer  # noqa: E402
from onernn.scoring.runner import Progress, Summary, score  # noqa: E402
from onernn.scoring.scorer import Scored, Scorer  # noqa: E402

if TYPE_CHECKING:
    from onernn.scoring.beam import beam_model_handler

__all__ = [
    "Progress",
    "RayScorer",
    "Scored",
    "Scorer",
    "Summary",
    "beam_model_handler",
    "score",
    "spark_scorer",
]


def __getattr__(name: str) -> Any:
    if name != "beam_model_handler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onernn.scoring.beam import beam_model_handler  # which imports Beam

    return beam_model_handler
