"""Where errors lie, as pictures: an SVG from matplotlib for each kind of an output's errors."""

from __future__ import annotations

import io
import re
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.ir.errors import printable
from onernn.verification.error_profiles import Profile

_FLOOR = 1e-12
"""Where zero stands on a logarithmic axis: nothing smaller is shown."""
_KINDS = (
    ("steps", "by time step", "position in the sentence", True),
    ("lengths", "by sentence length", "length of the sentence", False),
    ("directions", "by direction", "", False),
    ("ends", "inside and beyond each sentence's end", "", False),
)


class Plot(NamedTuple):
    """An SVG, and what it shows in words."""

    label: str
    svg: str


def plots(profile: Profile, allowed: float) -> list[Plot]:
    """A picture for each kind of which there are two rows or more, with the allowed difference."""
    require("matplotlib", "report")
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # no window, no global state

    made = []
    for kind, title, axis, many in _KINDS:
        rows = getattr(profile, kind)
        if len(rows) < 2:
            continue
        # Text stays text; ids differ between the pictures of one page.
        with rc_context(
            {"svg.fonttype": "none", "svg.hashsalt": f"{printable(profile.name)}/{kind}"}
        ):
            figure = Figure(figsize=(4.2, 2.9), layout="constrained")
            _draw(figure.add_subplot(), rows, allowed, many)
            figure.axes[0].set(xlabel=axis, ylabel="|difference|")
            figure.axes[0].set_title(title, fontsize=11, loc="left")
            figure.legend(fontsize=8, frameon=False, ncols=3, loc="outside lower center")
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        worst = max(rows, key=lambda row: row[1])
        label = f"{profile.name}: differences {title}, largest {worst[1]:.3g} at {worst[0]}"
        made.append(Plot(label, inline(text.getvalue())))
    return made


def _draw(
    axes: Any, rows: tuple[tuple[str, float, float], ...], allowed: float, many: bool
) -> None:
    names = [at for at, _, _ in rows]
    worst, mean = (np.maximum([row[k] for row in rows], _FLOOR) for k in (1, 2))
    worst, mean = np.where(np.isfinite([worst, mean]), [worst, mean], np.nan)
    floor = min(allowed, *(v for v in (*worst, *mean) if v > _FLOOR), 1.0) / 5
    if many:
        at = [int(name) for name in names]
        axes.plot(at, worst, color="#b91c1c", label="largest", linewidth=1.8)
        axes.plot(at, mean, color="#1d4ed8", label="mean", linewidth=1.4, linestyle="--")
    else:
        place = np.arange(len(names))
        axes.bar(place - 0.2, worst - floor, 0.38, floor, color="#b91c1c", label="largest")
        axes.bar(place + 0.2, mean - floor, 0.38, floor, color="#1d4ed8", label="mean")
        shown = place[:: max(1, len(names) // 12)]
        axes.set_xticks(shown, [names[k] for k in shown])
    axes.set_yscale("log")
    if allowed > 0:
        axes.axhline(allowed, color="#15803d", linewidth=1.2, label="allowed")
    axes.set_ylim(bottom=floor)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def inline(svg: str) -> str:
    """The svg element alone, sized by the page."""
    element = svg[svg.index("<svg") :]
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"|(<svg[^>]*?) height="[^"]*"',
        r"\1\2",
        element,
        count=1,
    )
