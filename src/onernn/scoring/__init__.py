"""Scores the rows of tables, on this machine or in Ray, Beam and Spark."""

from onernn.adapters.common.adapter import require

require("pyarrow", "score")

from onernn.scoring.runner import Summary, score  # noqa: E402
from onernn.scoring.scorer import Scorer  # noqa: E402

__all__ = ["Scorer", "Summary", "score"]
