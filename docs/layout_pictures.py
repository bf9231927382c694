"""Draws pictures of layouts and cells: ``python docs/layout_pictures.py`` writes the pictures.

Functions of onernn compute the gate orders, the converted weights and the positions of a batch's
steps in the pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

import onernn
from onernn.ir.spec import Cell
from onernn.reorders.layouts import FRAMEWORKS
from onernn.reorders.lod import Packing

FOLDER = Path(__file__).resolve().parent / "pictures"

COLOURS = {"u": "#93c5fd", "r": "#fcd34d", "i": "#93c5fd", "f": "#fcd34d", "c": "#fca5a5"}
COLOURS |= {"o": "#86efac", "": "#ffffff", "box": "#e2e8f0"}
GRU = COLOURS | {"o": "#fca5a5"}  # o is the candidate of a GRU, c of an LSTM
SEQUENCES = ("#93c5fd", "#86efac", "#fcd34d")
STYLE = "font-family:sans-serif;font-size:14px;fill:#1f2937"


def svg(title: str, width: int, height: int, lines: Iterable[str]) -> str:
    head = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {head} style="{STYLE}">\n<title>{title}</title>\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def text(x: float, y: float, words: object, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{words}</text>'


def box(x: float, y: float, wide: float, colour: str, words: object = "", high: int = 26) -> str:
    drawn = f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high}" fill="{colour}"'
    return f'{drawn} stroke="#64748b"/>' + text(x + wide / 2, y + high / 2 + 5, words, "middle")


BOLD = ' font-weight="bold"'
SMALL = ' font-size="12"'


# Weights


NAMES = {"onednn": "onernn, oneDNN", "onnx": "ONNX", "torch": "PyTorch", "keras": "Keras",
         "paddle-gru": "Paddle: gru", "paddle-lstm": "Paddle: lstm",
         "paddle-rnn": "paddle.nn", "mxnet": "MXNet"}  # fmt: skip


def gate_orders() -> str:
    """Returns a picture of each framework's gate order, with onernn's letters for the gates."""
    lines = [text(150, 24, "LSTM", more=BOLD), text(340, 24, "GRU", more=BOLD)]
    for place, (name, shown) in enumerate(NAMES.items()):
        y, gates = 36 + 32 * place, FRAMEWORKS[name].gates
        lines.append(text(10, y + 18, shown))
        for left, colours, cells in (
            (150, COLOURS, (Cell.LSTM,)),
            (340, GRU, (Cell.GRU, Cell.LBR_GRU)),
        ):
            order = next((gates[cell].split() for cell in cells if cell in gates), [])
            lines += [box(left + 40 * k, y, 40, colours[g], g) for k, g in enumerate(order)]
    return svg("The order of gates in each framework", 480, 36 + 32 * len(NAMES) + 8, lines)


def _matrix(left: int, top: int, rows: np.ndarray, gates: Sequence[Sequence[str]]) -> list[str]:
    return [
        box(left + 38 * k, top + 26 * r, 38, GRU[gates[r][k]], f"{number:g}".replace("-", "−"))
        for r, row in enumerate(rows)
        for k, number in enumerate(row)
    ]


def ldigo() -> str:
    """Returns a picture of a GRU's input weights in the layouts of PyTorch, Paddle and onernn.

    The GRU has two inputs and two units.
    """
    torch = np.arange(1, 13, dtype=np.float32).reshape(6, 2)
    zeros = np.zeros(6, np.float32)
    own = onernn.convert_weights(
        {"weight_ih_l0": torch, "weight_hh_l0": torch, "bias_ih_l0": zeros, "bias_hh_l0": zeros},
        source="torch",
        to="onednn",
    )["weights_layer"][0, 0]
    paddle = np.arange(1, 13, dtype=np.float32).reshape(2, 6)
    turned = onernn.convert_weights(
        {"WeightX": paddle, "WeightH": paddle, "Bias": zeros[None]},
        source="paddle-gru",
        to="onednn",
    )["weights_layer"][0, 0]
    ours = [[g for g in "uro" for _ in range(2)]] * 2
    lines = [
        text(10, 24, "PyTorch: weight_ih (G*O, I)", more=BOLD),
        *_matrix(10, 34, torch, [[g] * 2 for g in "ruo" for _ in range(2)]),
        text(270, 24, "onernn: ldigo (I, G, O)", more=BOLD),
        text(100, 120, "the same numbers →", more=' font-size="13"'),
        *_matrix(270, 34, own.reshape(2, 6), ours),
        text(10, 224, "Paddle: WeightX (I, G*O)", more=BOLD),
        *_matrix(10, 234, paddle, ours),
        text(270, 224, "onernn: u has turned its sign", more=BOLD),
        *_matrix(270, 234, turned.reshape(2, 6), ours),
    ]
    return svg("Input weights of a GRU in PyTorch, Paddle and onernn", 510, 300, lines)


# Cells


def _arrow(left: float, right: float, y: float) -> str:
    line = f'<line x1="{left:g}" y1="{y:g}" x2="{right - 6:g}" y2="{y:g}" stroke="#1f2937"/>'
    return f'{line}<path d="M{right:g} {y:g}l-8 -4v8z"/>'


def _chain(y: int, *boxes: tuple[str, str]) -> list[str]:
    lines, x = [], 10.0
    for place, (words, colour) in enumerate(boxes):
        wide = 20 + 8 * len(words)
        lines += [_arrow(x, x + 24, y + 13)] if place else []
        x += 24 if place else 0
        lines.append(box(x, y, wide, colour, words))
        x += wide
    return lines


def reset_placement() -> str:
    """Returns a picture of what the reset gate multiplies in a GRU and in an LBR_GRU."""
    plain, gate, new = COLOURS["box"], GRU["r"], GRU["o"]
    lines = [
        text(10, 24, "reset first (GRU): Paddle's gru, Keras reset_after=False", more=BOLD),
        *_chain(36, ("h", plain), ("times r", gate), ("times W", plain), ("+ x part", plain),
                ("tanh: new", new)),
        text(10, 104, "reset behind (LBR_GRU): PyTorch, MXNet, reset_after=True", more=BOLD),
        *_chain(116, ("h", plain), ("times W + b", plain), ("times r", gate), ("+ x part", plain),
                ("tanh: new", new)),
    ]  # fmt: skip
    return svg("Where the reset gate acts", 510, 156, lines)


def update_gate() -> str:
    """Returns a picture of the shares of the old state and of the candidate in h if u = 0.75."""
    lines = []
    for y, title, kept in (
        (0, "origin_mode=True, and all others: h' = u h + (1-u) new", 0.75),
        (80, "Paddle's gru, its default: h' = (1-u) h + u new", 0.25),
    ):
        lines += [text(10, y + 24, title, more=BOLD)]
        lines += [box(10, y + 36, 480 * kept, COLOURS["box"], f"h: {kept:.0%}")]
        lines += [box(10 + 480 * kept, y + 36, 480 * (1 - kept), GRU["o"], f"new: {1 - kept:.0%}")]
    return svg("What the update gate keeps where u = 0.75", 510, 156, lines)


# Batches


def ragged() -> str:
    """Returns a picture of a batch of 4, 2 and 3 steps in three layouts: ragged, padded, packed."""
    names = [["A0", "A1", "A2", "A3"], ["B0", "B1"], ["C0", "C1", "C2"]]
    steps = onernn.Ragged.from_list([np.arange(len(row)) for row in names])
    lengths, offsets = steps.lengths.tolist(), steps.offsets.tolist()
    flat = [name for row in names for name in row]
    left, wide = 90, 50

    def cell(x: float, y: float, name: str) -> str:
        return box(x, y, wide, SEQUENCES["ABC".index(name[0])], name)

    lines = [text(10, 24, "ragged: the steps of one sequence after those of another", more=BOLD)]
    lines += [text(10, 60, "9 rows"), text(10, 96, "offsets"), text(10, 120, "lengths")]
    lines += [cell(left + wide * w, 42, name) for w, name in enumerate(flat)]
    for offset in offsets:
        x = left + wide * offset
        lines.append(f'<line x1="{x}" y1="68" x2="{x}" y2="82" stroke="#1f2937"/>')
        lines.append(text(x, 96, offset, "middle"))
    for start, length in zip(offsets, lengths, strict=False):
        lines.append(text(left + wide * (start + length / 2), 120, length, "middle"))
    longest = max(lengths)
    places = longest * len(lengths)
    lines += [
        text(
            10, 162, f"padded: {places} rows for {len(flat)} steps, the others are zeros", more=BOLD
        )
    ]
    right = left + wide * longest + 40
    lines.append(text(right, 178, "lengths", "middle"))
    for n, row in enumerate(names):
        y = 186 + 26 * n
        lines += [cell(left + wide * t, y, name) for t, name in enumerate(row)]
        lines += [
            box(left + wide * t, y, wide, COLOURS["box"], 0) for t in range(len(row), longest)
        ]
        lines.append(text(right, y + 18, lengths[n], "middle"))
    packing = Packing.of(steps.offsets)
    columns = np.repeat(np.arange(len(packing.batch_sizes)), packing.batch_sizes).tolist()
    lines += [text(10, 306, "packed: step 0 of each sequence, then step 1, ...", more=BOLD)]
    for w, place in enumerate(packing.rows.tolist()):
        lines.append(cell(left + wide * w + 14 * columns[w], 320, flat[place]))
    lines.append(text(10, 370, "running"))
    for t, size in enumerate(packing.batch_sizes.tolist()):
        middle = columns.index(t) + size / 2
        lines.append(text(left + wide * middle + 14 * t, 370, size, "middle"))
    return svg("One batch in three layouts", 600, 384, lines)


def streams() -> str:
    """Returns a picture of streams: frames of several clients become one batch and one call."""
    clients = (("anna", 7), ("ben", 3), ("carl", 9))
    top, high = 48, 34
    titles = ((85, "clients push"), (275, "one batch"), (655, "results"), (835, "clients pull"))
    lines = [text(x, 24, words, "middle", BOLD) for x, words in titles]
    lines.append(text(465, 24, "one call", "middle", BOLD))
    for n, ((name, frame), colour) in enumerate(zip(clients, SEQUENCES, strict=True)):
        y = top + high * n
        lines += [
            box(10, y + 8 * (n - 1), 150, colour, f"{name}: frame {frame}", high),
            _arrow(164, 206, y + 8 * (n - 1) + high / 2),
            box(210, y, 130, colour, f"frame {frame}", high),
            box(210, y + 140, 130, colour, f"state of {name}", high),
            box(580, y, 150, colour, f"result {frame}", high),
            box(580, y + 140, 150, colour, f"next state of {name}", high),
            _arrow(734, 766, y + 8 * (n - 1) + high / 2),
            box(770, y + 8 * (n - 1), 130, colour, f"{name}: result {frame}", high),
        ]
    lines += [
        box(400, top, 130, COLOURS["box"], "", 140 + 3 * high),
        text(465, top + 115, "the model", "middle", BOLD),
        text(465, top + 137, "reads its weights", "middle", SMALL),
        text(465, top + 153, "once for all rows", "middle", SMALL),
    ]
    for y in (top + 1.5 * high, top + 140 + 1.5 * high):
        lines += [_arrow(344, 396, y), _arrow(534, 576, y)]
    bottom = top + 140 + 3 * high
    lines += [
        f'<path d="M655 {bottom + 4}v26H275v-18" fill="none" stroke="#1f2937"/>',
        f'<path d="M275 {bottom + 4}l-4 8h8z"/>',
        text(465, bottom + 48, "onernn keeps a row of states for each client", "middle", SMALL),
    ]
    return svg("Frames of many clients as one batch", 910, bottom + 60, lines)


# The stages of a model


def pipeline() -> str:
    """Returns a picture of the stages from a model's file to the programs that run the model."""
    files = ("Paddle", "MXNet", "ONNX", "PyTorch", "Keras")
    left, top, high = 10, 34, 34
    lines = [text(left, 20, "a file of", more=BOLD)]
    for k, each in enumerate(files):
        lines.append(box(left, top + 44 * k, 90, COLOURS["box"], each, high))
    stages = (
        (160, "Graph", "one set of operators", COLOURS["i"]),
        (380, "fused Graph", "FC + GRU is one layer", COLOURS["f"]),
        (600, "plan", "C++ kernels, oneDNN", COLOURS["o"]),
    )
    for x, name, what, colour in stages:
        middle = x + 75
        lines.append(box(x, 92, 150, colour, "", 68))
        lines.append(text(middle, 120, name, "middle", BOLD))
        lines.append(text(middle, 144, what, "middle", SMALL))
    for start, words in ((104, "adapter"), (316, "passes"), (536, "engine")):
        lines.append(_arrow(start + 2, start + 46, 126))
        lines.append(text(start + 24, 114, words, "middle", SMALL))
    uses = (
        (
            340,
            248,
            "back in the live framework",
            "plug-in: Paddle, MXNet, PyTorch, ONNX Runtime",
        ),
        (340, 304, "files", "ONNX, Paddle, C++ source without dependencies"),
        (690, 248, "Python", "Session, streams, score"),
        (690, 304, "one compiled file", "for C, Go, Java, C#, Rust, Node"),
    )
    for x, y, name, what in uses:
        wide = 320 if x < 600 else 210
        lines.append(box(x, y, wide, COLOURS[""], "", 46))
        lines.append(text(x + wide / 2, y + 19, name, "middle", BOLD))
        lines.append(text(x + wide / 2, y + 37, what, "middle", SMALL))
    for x in (455, 720):
        lines.append(f'<g transform="rotate(90 {x} 164)">{_arrow(x, x + 80, 164)}</g>')
    lines.append(text(235, 180, "unknown: refused, with the reason", "middle", SMALL))
    return svg("From a model's file to its result", 910, 360, lines)


PICTURES: dict[str, Callable[[], str]] = {
    "pipeline": pipeline,
    "gates": gate_orders,
    "ldigo": ldigo,
    "reset": reset_placement,
    "update": update_gate,
    "ragged": ragged,
    "streams": streams,
}

if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(drawn())
