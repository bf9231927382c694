"""Corpora: tables whose rows a model scores, on one machine or inside of other engines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onernn.scoring.beam import beam_model_handler
    from onernn.scoring.engines import RayScorer, spark_scorer
    from onernn.scoring.runner import Progress, Summary, score
    from onernn.scoring.scorer import Scored, Scorer

_MODULES = {
    "Progress": "runner",
    "RayScorer": "engines",
    "Scored": "scorer",
    "Scorer": "scorer",
    "Summary": "runner",
    "beam_model_handler": "beam",
    "score": "runner",
    "spark_scorer": "engines",
}
"""Imported when they are asked for: each needs packages of its own."""

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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onernn.scoring.{_MODULES[name]}"), name)
