"""What `quantize` found, as one HTML file that needs nothing else."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.requirements import require
from onernn.core.errors import printable
from onernn.core.files import replacing
from onernn.core.precision import Scale
from onernn.verification.quantizing.observing import Histogram
from onernn.verification.quantizing.quantize import Quantized, QuantizedLayer
from onernn.verification.reporting.plots import Plot, inline
from onernn.verification.reporting.report import check_report, filled, versions

_COLOURS = {"f32": "#5b6876", "bf16": "#1d4ed8", "u8": "#b91c1c"}
_CHANNELS = 5
"""Channels named where some saturate."""


def write_page(found: Quantized, path: str | Path, command: str = "") -> None:
    """Writes the page. ``command``: what reproduces it, as typed.

    Raises `MissingDependencyError` without jinja2 and matplotlib, `OSError` where it cannot write.
    """
    check_report(path)
    page = filled("quantized.html.jinja", _content(found, command))
    with replacing(path) as stream:
        stream.write(page.encode())


def _content(found: Quantized, command: str) -> dict[str, Any]:
    return {
        "found": found,
        "command": command,
        "model": found.model.name,
        "shown": found.budget.shown,
        "whole": [
            *((f"all {dtype}", trial) for dtype, trial in found.plain.items()),
            ("taken", found.trials[-1]),
        ],
        "curve": _curve(found),
        "ranges": [row for each in found.layers for row in _ranges(each)],
        "histograms": list(_histograms(found)),
        "changed": [(each, _marked(each.exact, each.given)) for each in found.changed],
        "versions": list(versions()),
    }


def _ranges(layer: QuantizedLayer) -> Iterator[dict[str, Any]]:
    """A row for what each layer and direction reads, and for its states."""
    for part, scales in zip(layer.parts, layer.scales, strict=True):
        for kind, seen, scale in zip(("x", "h"), (part.x, part.h), scales, strict=True):
            yield {
                "part": part.name,
                "kind": kind,
                "seen": seen.ends,
                "held": None if scale is None else held(scale),
                "outside": 0.0 if scale is None else seen.outside(scale),
                "channels": () if scale is None else saturating(seen, scale),
            }


def held(scale: Scale) -> tuple[float, float]:
    """The least and the largest number that bytes of a scale hold."""
    return -scale.shift / scale.factor, (255 - scale.shift) / scale.factor


def saturating(seen: Histogram, scale: Scale) -> list[int]:
    """The channels that left the range of bytes furthest, at most `_CHANNELS`."""
    low, high = held(scale)
    beyond = np.maximum(low - seen.least, seen.most - high) - 0.5 / scale.factor
    worst = np.argsort(-beyond, kind="stable")[:_CHANNELS]
    return [int(at) for at in worst if beyond[at] > 0]


def _figure(name: str, label: str, draw: Any) -> Plot:
    require("matplotlib", "report")
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # no window, no global state

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": printable(name)}):
        figure = Figure(figsize=(4.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Plot(label, inline(text.getvalue()))


def _curve(found: Quantized) -> Plot:
    """Every choice that was measured: how fast, and how far from f32."""
    base = found.plain["f32"].seconds
    rows = [(base / max(t.seconds, 1e-9), t.error) for t in found.trials if np.isfinite(t.error)]
    speed, error = (np.array(each) for each in zip(*rows, strict=True))
    floor = min((each for each in error if each > 0), default=1e-6) / 3
    limit = found.budget.limit

    def draw(axes: Any) -> None:
        axes.scatter(speed, np.maximum(error, floor), s=18, color="#94a3b8", label="measured")
        for dtype, trial in found.plain.items():
            at = base / max(trial.seconds, 1e-9), max(trial.error, floor)
            axes.scatter(*at, s=36, color=_COLOURS[dtype], label=f"all {dtype}")
        axes.scatter(
            speed[-1],
            max(error[-1], floor),
            s=90,
            facecolors="none",
            edgecolors="#15803d",
            linewidths=2,
            label="taken",
        )
        if 0 < limit < np.inf:
            axes.axhline(limit, color="#15803d", linewidth=1.2, label="budget")
        axes.set(yscale="log", xlabel="times the speed of f32", ylabel=found.budget.name)
        axes.legend(fontsize=7, frameon=False, ncols=2)

    label = f"{len(rows)} choices of dtypes: {found.budget.name} against speed"
    return _figure("curve", label, draw)


def _histograms(found: Quantized) -> Iterator[Plot]:
    """Of what each layer and direction reads, with the range of its bytes."""
    for layer in found.layers:
        for part, (scale, _) in zip(layer.parts, layer.scales, strict=True):
            if scale is None:
                continue
            yield _figure(part.name, f"what {part.name} reads", _Counts(part.name, part.x, scale))


class _Counts:
    def __init__(self, name: str, seen: Histogram, scale: Scale) -> None:
        self.name, self.seen, self.scale = name, seen, scale

    def __call__(self, axes: Any) -> None:
        values, counts = self.seen.sorted()
        axes.hist(values, bins=80, weights=counts, color="#94a3b8")
        for end in held(self.scale):
            axes.axvline(end, color="#b91c1c", linewidth=1.2)
        axes.set(yscale="log", xlabel="number", ylabel="how often")
        axes.set_title(printable(self.name), fontsize=10, loc="left")


def _marked(exact: str, given: str) -> Sequence[tuple[str, str, bool]]:
    """(exact, given, whether they differ) token by token."""
    pairs = zip(exact.split(), given.split(), strict=False)
    return [(one, other, one != other) for one, other in pairs]
