"""Which recurrent layers a backend can run, or a framework's operators can say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import get_args

from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import RnnWeights

CELL_NAMES = {
    Cell.RNN_TANH: "plain RNN with tanh",
    Cell.RNN_RELU: "plain RNN with relu",
    Cell.RNN_SIGMOID: "plain RNN with sigmoid",
    Cell.LSTM: "LSTM",
    Cell.GRU: "GRU with the reset gate before the product",
    Cell.LBR_GRU: "GRU with the reset gate behind the product",
    Cell.AUGRU: "GRU with attention (AUGRU)",
    Cell.LBR_AUGRU: "GRU with attention (LBR AUGRU)",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What somebody takes of a recurrent layer; a field's default takes all there is.

    ``who`` and ``kind`` are for messages: "oneDNN" and "u8" give "oneDNN has no u8 LSTM with ...".
    ``functions``: names of those that any gate may have, () for the cell's own only, None for all.
    ``parameters``: whether these may have an alpha and a beta. ``replaces``: update="replace".
    ``projected``: an input that is projected already. ``apart``: stacks whose directions meet at
    the end only, stacking="onednn". ``dtypes``: of the weights.
    """

    who: str
    kind: str = ""
    cells: Collection[Cell] = tuple(Cell)
    directions: Collection[Direction] = get_args(Direction)
    functions: Collection[str] | None = None
    parameters: bool = True
    replaces: bool = True
    gate_clip: bool = True
    cell_clip: bool = True
    input_forget: bool = True
    peephole: bool = True
    projection: bool = True
    projected: bool = True
    stacks: bool = True
    apart: bool = True
    dtypes: Collection[str] = ("float32", "float64")


def why_not(spec: RnnSpec, weights: Sequence[RnnWeights], limits: Limits) -> str:
    """The first reason why a layer is beyond the limits, "" where it is within.

    ``weights``: those of each layer, as `layers_of` gives them.
    """
    cell, dtype, deep = spec.cell.name, weights[0].iter.dtype.name, spec.layers > 1
    functions = _other_functions(spec, limits)
    beyond = {
        CELL_NAMES[spec.cell]: spec.cell not in limits.cells,
        f"layers that run {spec.direction}": spec.direction not in limits.directions,
        "stacks of layers": deep and not limits.stacks,
        "stacks whose directions meet at the end only (stacking='onednn')": (
            deep and spec.stacking == "onednn" and not limits.apart
        ),
        f"{cell} with {functions}": bool(functions),
        f"{cell} that replaces with its update gate": (
            spec.update == "replace" and not limits.replaces
        ),
        f"{cell} with clipped gates": spec.gate_clip is not None and not limits.gate_clip,
        f"{cell} with a clipped cell state": spec.cell_clip is not None and not limits.cell_clip,
        f"{cell} with coupled input and forget gates": (
            spec.input_forget and not limits.input_forget
        ),
        f"{cell} with peepholes": spec.peephole and not limits.peephole,
        f"{cell} with a projection": spec.projection_size is not None and not limits.projection,
        f"{cell} whose input is projected already": (
            not limits.projected and any(layer.layer is None for layer in weights)
        ),
        f"{cell} in {dtype}": dtype not in limits.dtypes,
    }
    kind = f"{limits.kind} " if limits.kind else ""
    return next(
        (f"{limits.who} has no {kind}{what}" for what, holds in beyond.items() if holds), ""
    )


def _other_functions(spec: RnnSpec, limits: Limits) -> str:
    """The functions of the gates that are beyond the limits, and what there is; "" if none are."""
    known = limits.functions
    if spec.activations is not None and known is not None and not known:
        wanted, usual = (", ".join(map(str, f)) for f in (spec.functions, spec.cell.activations))
        return f"functions {wanted}, only with {usual}"
    for each in spec.activations or ():
        if known is not None and each.name not in known:
            return f"function {each}, only with {', '.join(known)}"
        if not limits.parameters and each != (each.name, None, None):
            return f"function {each}, only with those without parameters"
    return ""
