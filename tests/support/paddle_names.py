"""The manual's table of all public names of `paddle.inference` in Paddle 2.6, with their status in
onernn.
"""

from __future__ import annotations

from onernn.adapters.paddle.inference.config import (
    ANSWERS,
    MODULE_NOT_HERE,
    NO_EFFECT,
    NOT_HERE,
    PREDICTOR_NOT_HERE,
    AnalysisConfig,
)
from onernn.adapters.paddle.inference.served_modules import SERVED

_SHOWN = ("Config", "Predictor", "PredictorPool", "Tensor")


def public_names() -> dict[str, tuple[str, str]]:
    """Returns (status, reason) by public name. Class members have names like ``Class.name``."""
    result = {name: ("here", "") for name in SERVED["paddle.inference"]}
    for owner in _SHOWN:
        members = vars(SERVED["paddle.inference"][owner])
        result |= {f"{owner}.{name}": ("here", "") for name in members if name[0] != "_"}
    for name in ("buffers", "dtype"):  # onernn's own
        assert isinstance(vars(AnalysisConfig)[name], property)
        del result[f"Config.{name}"]
    del result["PredictorPool.retrieve"]  # Paddle 3's
    result |= {f"Config.{name}": ("accepted", why) for name, why in NO_EFFECT.items()}
    result |= {f"Config.{name}": ("here", f"always {answer!r}") for name, answer in ANSWERS.items()}
    result |= {f"Config.{name}": ("not here", what) for name, what in NOT_HERE.items()}
    result |= {f"Predictor.{name}": ("not here", why) for name, why in PREDICTOR_NOT_HERE.items()}
    result |= {name: ("not here", why) for name, why in MODULE_NOT_HERE.items()}
    return dict(sorted(result.items()))


def markdown() -> str:
    """Returns the table of docs/reference/paddle_inference.md."""
    rows = [f"| `{name}` | {here} | {why} |" for name, (here, why) in public_names().items()]
    return "\n".join(["| name | here? | why |", "|---|---|---|", *rows])
