"""Corpora: tables whose rows a model scores, on one machine or inside of other engines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onernn.batch.beam import beam_model_handler
    from onernn.batch.ray_scorer import RayScorer
    from onernn.batch.ray_scoring import score_on_ray
    from onernn.batch.scorer import Scored, Scorer
    from onernn.batch.scoring import Progress, Summary, score
    from onernn.batch.spark import spark_scorer

__all__ = [
    "Progress",
    "RayScorer",
    "Scored",
    "Scorer",
    "Summary",
    "beam_model_handler",
    "score",
    "score_on_ray",
    "spark_scorer",
]

_MODULES = {
    "Progress": "scoring",
    "RayScorer": "ray_scorer",
    "Scored": "scorer",
    "Scorer": "scorer",
    "Summary": "scoring",
    "beam_model_handler": "beam",
    "score": "scoring",
    "score_on_ray": "ray_scoring",
    "spark_scorer": "spark",
}
"""Imported when they are asked for: each needs packages of its own."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onernn.batch.{_MODULES[name]}"), name)
