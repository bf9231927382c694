"""What oneDNN's guide and the oneAPI specification get wrong or leave open, measured.

Each line of the page for users (design/guide-references.md) about which layers and types the
library takes is a line here. Wrong numbers are in test_wrong_numbers.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.raw_creation import answer, shapes

from onernn import Cell
from onernn.backend.onednn.library import load_library

LSTM, AUGRU = shapes(Cell.LSTM), shapes(Cell.AUGRU)
CELLS = ("src_iter_c", "dst_iter_c")
CONCAT: Any = {"direction": "bidirectional_concat"}
TAKEN, UNIMPLEMENTED, INVALID = "success", "unimplemented", "invalid_arguments"


def without(wanted: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: shape for name, shape in wanted.items() if name not in names}


def typed(data: str, weights: str, **more: str) -> dict[str, Any]:
    """Types as a row of the tables combines them: bias and cell state in f32."""
    named = ("src_layer", "src_iter", "dst_iter", "dst_layer", "augru_attention")
    matrices = ("weights_layer", "weights_iter", "weights_projection")
    return {"types": {**dict.fromkeys(named, data), **dict.fromkeys(matrices, weights), **more}}


BF16, U8 = typed("bf16", "bf16"), typed("u8", "s8")
PEEPHOLE, PROJECTION = shapes(Cell.LSTM, peephole=True), shapes(Cell.LSTM, projection=8)
NARROW = shapes(Cell.LSTM, projection=4, R=4)
# The library's answer for a cell, the shapes of its arguments, and what else the creator takes.
FINDINGS: dict[str, list[tuple[str, Cell, dict[str, Any], dict[str, Any]]]] = {
    "a bias is not optional": [
        (TAKEN, Cell.LSTM, LSTM, {}),
        *((UNIMPLEMENTED, cell, without(shapes(cell), "bias"), {}) for cell in Cell),
    ],
    "states are, and h and c go together": [
        (TAKEN, Cell.LSTM, without(LSTM, "src_iter", "src_iter_c"), {}),
        (TAKEN, Cell.LSTM, without(LSTM, "dst_iter", "dst_iter_c"), {}),
        *(
            (INVALID, Cell.LSTM, without(LSTM, name), {})
            for name in ("src_iter", "src_iter_c", "dst_iter", "dst_iter_c")
        ),
    ],
    "stacked layers read the channels of one direction": [
        (wanted, Cell.LSTM, shapes(Cell.LSTM, L=2, O=8, direction=way, **size), {"direction": way})
        for way in ("left2right", "bidirectional_sum", "bidirectional_concat")
        for size, wanted in (({"I": 8}, TAKEN), ({"I": 16}, INVALID), ({"I": 6}, INVALID))
    ],
    "cells that add nothing of the old state take another width at one step": [
        (TAKEN, Cell.LSTM, shapes(Cell.LSTM, T=1, R=5), {}),
        (TAKEN, Cell.RNN_TANH, shapes(Cell.RNN_TANH, T=1, R=5), {}),
        *(
            (INVALID, cell, shapes(cell, T=2 - cell.is_gru, R=5), {})
            for cell in Cell
            if cell not in (Cell.RNN_RELU, Cell.RNN_SIGMOID)
        ),
    ],
    "a cell state has the units": [
        (TAKEN, Cell.LSTM, NARROW, {}),
        (
            INVALID,
            Cell.LSTM,
            NARROW | dict.fromkeys(("src_iter_c", "dst_iter_c"), (1, 1, 2, 4)),
            {},
        ),
    ],
    "joined directions have twice the channels of dst_iter": [
        (TAKEN, Cell.GRU, shapes(Cell.GRU, **CONCAT), CONCAT),
        (INVALID, Cell.GRU, shapes(Cell.GRU, **CONCAT) | {"dst_layer": (3, 2, 8)}, CONCAT),
    ],
    "attention cells run left to right in one layer, and take no attention": [
        (TAKEN, Cell.AUGRU, without(AUGRU, "augru_attention"), {}),
        (INVALID, Cell.AUGRU, AUGRU | {"augru_attention": (3, 2, 8)}, {}),
        *(
            (wanted, cell, shapes(cell, **more), way)
            for cell in (Cell.AUGRU, Cell.LBR_AUGRU)
            for wanted, more, way in (
                (TAKEN, {}, {}),
                (INVALID, {"L": 2}, {}),
                *(
                    (INVALID, {"direction": way}, {"direction": way})
                    for way in ("right2left", "bidirectional_sum", "bidirectional_concat")
                ),
            )
        ),
    ],
    "an LBR bias has a fourth row": [
        (wanted, cell, shapes(cell) | {"bias": (1, 1, rows, 8)}, {})
        for cell in (Cell.LBR_GRU, Cell.LBR_AUGRU)
        for rows, wanted in ((4, TAKEN), (3, INVALID))
    ],
    "bf16: more types than its row has, a projection, and peepholes in f32 alone": [
        *(
            (TAKEN, Cell.LSTM, LSTM, typed("bf16", "bf16", bias=b, src_iter_c=c, dst_iter_c=c))
            for b in ("f32", "bf16")
            for c in ("f32", "bf16")
        ),
        (TAKEN, Cell.LSTM, PEEPHOLE, BF16),
        (UNIMPLEMENTED, Cell.LSTM, PEEPHOLE, typed("bf16", "bf16", weights_peephole="bf16")),
        (UNIMPLEMENTED, Cell.LSTM, LSTM, typed("bf16", "bf16", dst_layer="f32")),
        *(
            (TAKEN, Cell.LSTM, PROJECTION, BF16 | {"kind": kind})
            for kind in ("forward_inference", "forward_training")
        ),
    ],
    "u8: GRU and projections, states in f32 too, no plain weights": [
        *(
            (TAKEN, cell, made, typed("u8", "s8", dst_layer=output))
            for output in ("u8", "f32")
            for cell, made in (
                (Cell.LSTM, LSTM),
                (Cell.GRU, shapes(Cell.GRU)),
                (Cell.LSTM, PROJECTION),
            )
        ),
        (TAKEN, Cell.LSTM, LSTM, typed("u8", "s8", src_iter="f32", dst_iter="f32")),
        *(
            (UNIMPLEMENTED, cell, shapes(cell), U8)
            for cell in (Cell.RNN_TANH, Cell.LBR_GRU, Cell.AUGRU, Cell.LBR_AUGRU)
        ),
        (UNIMPLEMENTED, Cell.LSTM, PEEPHOLE, U8),
        (UNIMPLEMENTED, Cell.LSTM, LSTM, U8 | {"kind": "forward_training"}),
        (
            UNIMPLEMENTED,
            Cell.LSTM,
            LSTM,
            U8 | {"tags": {"weights_layer": "ldigo", "weights_iter": "ldigo"}},
        ),
    ],
    "s8 is taken without AMX": [(TAKEN, Cell.LSTM, LSTM, typed("s8", "s8"))],
    "ldgoi and ldoi go backward only": [
        (wanted, Cell.LSTM, made, {"tags": dict.fromkeys(names, tag)})
        for made, names, tag, wanted in (
            (LSTM, ("weights_layer", "weights_iter"), "ldigo", TAKEN),
            (LSTM, ("weights_layer", "weights_iter"), "ldgoi", UNIMPLEMENTED),
            (PROJECTION, ("weights_projection",), "ldio", TAKEN),
            (PROJECTION, ("weights_projection",), "ldoi", UNIMPLEMENTED),
        )
    ],
    "data may be ntc or tnc or either": [
        (TAKEN, Cell.LSTM, LSTM, {"tags": {"src_layer": source, "dst_layer": target}})
        for source, target in (("ntc", "ntc"), ("tnc", "tnc"), ("ntc", "tnc"), ("any", "any"))
    ],
}
NEEDS = {"bf16": ("bf16", "fp16", "amx", "avx512"), "u8": ("vnni", "bf16", "fp16", "amx")}


@pytest.mark.parametrize("finding", FINDINGS)
def test_the_library_takes_what_the_page_says(finding: str) -> None:
    isa = load_library().effective_isa
    needed = NEEDS.get(finding.partition(":")[0])
    if needed and not any(each in isa for each in needed) or finding[:2] == "s8" and "amx" in isa:
        pytest.skip(f"this CPU is {isa}")
    for wanted, cell, made, more in FINDINGS[finding]:
        assert answer(cell, made, **more) == wanted, (cell, made, more)


def test_the_execution_arguments_are_called_otherwise_in_the_headers(repo: Path) -> None:
    """The guide says DNNL_WORKSPACE, and both texts leave attention and scratchpad out."""
    declared = (repo / "src" / "onernn" / "backend" / "onednn" / "dnnl.cdef.h").read_text()
    for name in ("WORKSPACE", "AUGRU_ATTENTION", "SCRATCHPAD", "DIFF_AUGRU_ATTENTION"):
        assert f"DNNL_ARG_{name} " in declared
    assert "DNNL_WORKSPACE" not in declared
