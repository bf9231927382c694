"""Which layers oneDNN runs: known before its library is loaded."""

from __future__ import annotations

from dataclasses import replace

from onernn.backend.onednn.precision import GUIDE
from onernn.ir.rnn import Limits
from onernn.ir.spec import Cell

CREATORS = {
    Cell.RNN_TANH: "vanilla_rnn",
    Cell.RNN_RELU: "vanilla_rnn",
    Cell.RNN_SIGMOID: "vanilla_rnn",
    Cell.LSTM: "lstm",
    Cell.GRU: "gru",
    Cell.LBR_GRU: "lbr_gru",
    Cell.AUGRU: "augru",
    Cell.LBR_AUGRU: "lbr_augru",
}
"""The cells that oneDNN has."""

FLOAT = Limits(
    who="oneDNN",
    cells=tuple(CREATORS),
    functions=(),
    replaces=False,
    gate_clip=False,
    cell_clip=False,
    input_forget=False,
    dtypes=("float32",),
)
U8 = replace(
    FLOAT,
    kind="u8",
    cells=tuple(Cell[name] for name in GUIDE["u8"].cells),
    peephole=GUIDE["u8"].peephole,
    projection=GUIDE["u8"].projection,
    projected=False,
)
