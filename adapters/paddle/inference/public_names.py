"""Every public name of `paddle.inference` of Paddle 2.6, and what it is here, as a page's table."""

from __future__ import annotations

from onernn.adapters.paddle.inference.config import AnalysisConfig
from onernn.adapters.paddle.inference.options import (
    ANSWERS,
    MODULE_NOT_HERE,
    NO_EFFECT,
    NOT_HERE,
    PREDICTOR_NOT_HERE,
)
from onernn.adapters.paddle.inference.served_modules import SERVED

_SHOWN = ("Config", "Predictor", "PredictorPool", "Tensor")


def public_names() -> dict[str, tuple[str, str]]:
    """By name, those of classes as ``Class.name``: here, accepted or not here; and why."""
    found = {name: ("here", "") for name in SERVED["paddle.inference"]}
    for owner in _SHOWN:
        members = vars(SERVED["paddle.inference"][owner])
        found |= {f"{owner}.{name}": ("here", "") for name in members if name[0] != "_"}
    for name in ("buffers", "dtype"):  # ours
        assert isinstance(vars(AnalysisConfig)[name], property)
        del found[f"Config.{name}"]
    found |= {f"Config.{name}": ("accepted", why) for name, why in NO_EFFECT.items()}
    found |= {f"Config.{name}": ("here", f"always {told!r}") for name, told in ANSWERS.items()}
    found |= {f"Config.{name}": ("not here", what) for name, what in NOT_HERE.items()}
    found |= {f"Predictor.{name}": ("not here", why) for name, why in PREDICTOR_NOT_HERE.items()}
    found |= {name: ("not here", why) for name, why in MODULE_NOT_HERE.items()}
    return dict(sorted(found.items()))


def markdown() -> str:
    """The table of design/guide-paddle-inference.md."""
    rows = [f"| `{name}` | {here} | {why} |" for name, (here, why) in public_names().items()]
    return "\n".join(["| name | here? | why |", "|---|---|---|", *rows])
