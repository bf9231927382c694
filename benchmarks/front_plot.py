"""Draws the plot of the front page: ``python -m benchmarks.front_plot`` writes
docs/pictures/speed.svg.

The plot shows the times of ragged layers in other frameworks, as multiples of onernn's time. Each
framework runs in its fastest form. The times are measurements on one machine
(results/zen4-ragged.json). This program writes the SVG itself, so that the file has the same bytes
on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import OURS

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "zen4-ragged.json"
PICTURE = HERE.parent / "docs" / "pictures" / "speed.svg"

PEERS = {
    "PyTorch": ("torch packed", "torch lod", "torch padded"),
    "Paddle": ("paddle unfused", "paddle native", "paddle batched", "paddle onednn"),
    "OpenVINO": ("openvino",),
    "ONNX Runtime": ("onnxruntime",),
    "MXNet": ("mxnet",),
}
"""The modes in which each framework is measured. In each row the fastest mode counts."""


def ratios(results: Mapping[str, Any], *, dtype: str, threads: int) -> dict[str, list[float]]:
    """Returns by framework the ratios of its time to onernn's time, one for each row in which it
    was measured. A time is the median of the framework's fastest mode.
    """
    found: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for row in results["rows"]:
        if (row["dtype"], row["threads"]) != (dtype, threads):
            continue
        times = {c["name"]: c["median"] for c in row["contenders"] if "median" in c}
        for peer, forms in PEERS.items():
            if there := [times[form] for form in forms if form in times]:
                found[peer].append(min(there) / times[OURS])
    return {peer: rows for peer, rows in found.items() if rows}


_LEFT, _WIDTH, _HIGH, _TOP = 130, 520, 34, 64
_STYLE = "font-family:sans-serif;font-size:14px;fill:#1f2937"


def drawn(results: Mapping[str, Any]) -> str:
    """Returns the plot as SVG. A bar is the median of a framework's ratios, and a line goes from
    the smallest to the largest ratio.
    """
    found = {OURS: [1.0], **ratios(results, dtype="f32", threads=1)}
    most = max(max(rows) for rows in found.values())
    scale = _WIDTH / most
    height = _TOP + _HIGH * len(found) + 34
    rows = max(len(rows) for rows in found.values())
    title = "Time for ragged GRU and LSTM layers, as a multiple of onernn's (shorter is faster)"
    machine = f"{results['cpu']}, one thread, float32, {results['date'][:10]}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 70} {height}"'
        f' width="{_LEFT + _WIDTH + 70}" height="{height}" role="img" style="{_STYLE}">',
        f"<title>{title}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="24" font-weight="bold">{title}</text>',
        f'<text x="10" y="46" font-size="12">{machine}; bars: median of up to {rows} layers;'
        " lines: from the least to the largest</text>",
    ]
    for place, (name, values) in enumerate(found.items()):
        y = _TOP + place * _HIGH
        long, low, high = (scale * v for v in (median(values), min(values), max(values)))
        colour = "#1d4ed8" if name == OURS else "#94a3b8"
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 19}" text-anchor="end">{name}</text>',
            f'<rect x="{_LEFT}" y="{y + 4}" width="{long:.1f}" height="22" fill="{colour}"/>',
        ]
        if name != OURS:
            lines.append(
                f'<line x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" y1="{y + 15}" y2="{y + 15}"'
                ' stroke="#1f2937" stroke-width="2"/>'
            )
        number = f"{median(values):.1f}"
        lines.append(f'<text x="{_LEFT + max(long, high) + 8:.1f}" y="{y + 19}">{number}</text>')
    foot = "Every output was checked. Each peer in its fastest form; how, and all rows: benchmarks."
    lines += [f'<text x="10" y="{height - 12}" font-size="12">{foot}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def main() -> None:
    PICTURE.write_text(drawn(json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main()
