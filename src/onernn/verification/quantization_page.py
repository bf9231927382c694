"""The result of `quantize` as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onernn.ir.errors import printable
from onernn.ir.weights import Scale
from onernn.verification.inspecting import filled, write_text
from onernn.verification.quantizing import Histogram, Quantized, QuantizedLayer
from onernn.verification.report import Plot, check_report, figure, least, versions

_COLOURS = {"f32": "#5b6876", "bf16": "#1d4ed8", "u8": "#b91c1c"}


def write_page(result: Quantized, path: str | Path, command: str = "") -> None:
    """Writes the page. ``command``: what reproduces it, as typed.

    Raises `MissingDependencyError` without jinja2 and matplotlib, `OSError` if it cannot write.
    """
    check_report(path)
    write_text(filled("quantized.html.jinja", _content(result, command)), path)


def _content(result: Quantized, command: str) -> dict[str, Any]:
    return {
        "result": result,
        "command": command,
        "model": result.model.name,
        "shown": result.budget.shown,
        "whole": [
            *((f"all {dtype}", trial) for dtype, trial in result.plain.items()),
            ("taken", result.trials[-1]),
        ],
        "curve": _curve(result),
        "ranges": [row for each in result.layers for row in _ranges(each)],
        "histograms": list(_histograms(result)),
        "versions": list(versions()),
    }


def _ranges(layer: QuantizedLayer) -> Iterator[dict[str, Any]]:
    """A row for what each layer and direction reads, and for its states."""
    for part, scales in zip(layer.parts, layer.scales, strict=True):
        for kind, seen, scale in (("x", part.x, scales.data), ("h", part.h, scales.state)):
            yield {
                "part": part.name,
                "kind": kind,
                "seen": seen.ends,
                "held": None if scale is None else held(scale),
                "outside": 0.0 if scale is None else seen.outside(scale),
            }


def held(scale: Scale) -> tuple[float, float]:
    """The least and the largest number that bytes of a scale hold."""
    return -scale.shift / scale.factor, (255 - scale.shift) / scale.factor


def _curve(result: Quantized) -> Plot:
    """Every choice that was measured: how fast, and how far from f32."""
    base = result.plain["f32"].seconds
    rows = [(base / max(t.seconds, 1e-9), t.bound) for t in result.trials if np.isfinite(t.bound)]
    speed, error = zip(*rows, strict=True)
    limit = result.budget.limit

    def draw(axes: Any) -> None:
        axes.set_yscale("symlog", linthresh=least(error, limit))  # a logarithm has no zero
        axes.scatter(speed, error, s=18, color="#94a3b8", label="measured")
        for dtype, trial in result.plain.items():
            place = base / max(trial.seconds, 1e-9), trial.bound
            axes.scatter(*place, s=36, color=_COLOURS[dtype], label=f"all {dtype}")
        ring = {"facecolors": "none", "edgecolors": "#15803d", "linewidths": 2}
        axes.scatter(speed[-1], error[-1], s=90, label="taken", **ring)
        if 0 < limit < np.inf:
            axes.axhline(limit, color="#15803d", linewidth=1.2, label="budget")
        axes.set(xlabel="times the speed of f32", ylabel=_limited(result))
        axes.legend(fontsize=7, frameon=False, ncols=2)

    label = f"{len(rows)} choices of dtypes: {_limited(result)} against speed"
    return figure("curve", label, draw)


def _limited(result: Quantized) -> str:
    """The name of the limited measure."""
    return "labels, 95 % bound" if result.budget.name == "labels" else result.budget.name


def _histograms(result: Quantized) -> Iterator[Plot]:
    """A histogram of the input of each layer and direction, with the range of its bytes."""
    for layer in result.layers:
        for part, scales in zip(layer.parts, layer.scales, strict=True):
            if scales.data is not None:
                draw = partial(_counts, part.name, part.x, scales.data)
                yield figure(part.name, f"what {part.name} reads", draw)


def _counts(name: str, seen: Histogram, scale: Scale, axes: Any) -> None:
    values, counts = seen.sorted()
    axes.hist(values, bins=80, weights=counts, color="#94a3b8")
    for end in held(scale):
        axes.axvline(end, color="#b91c1c", linewidth=1.2)
    axes.set(yscale="log", xlabel="number", ylabel="how often")
    axes.set_title(printable(name), fontsize=10, loc="left")
