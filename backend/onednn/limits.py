"""Which layers oneDNN runs: known before its library is loaded."""

from __future__ import annotations

from dataclasses import replace

from onernn.core.limits import Limits
from onernn.core.spec import Cell

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
U8_LBR_GRU = replace(FLOAT, kind="u8", cells=(Cell.LSTM, Cell.GRU, Cell.LBR_GRU), peephole=False)
U8 = replace(U8_LBR_GRU, projected=False)
