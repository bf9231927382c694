"""``paddle.nn.RNN`` and ``BiRNN`` of Paddle's own cells, which Paddle runs step by step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from onernn.adapters.paddle.live.execution import LayerKind, Options
from onernn.adapters.paddle.live.layer_calls import Described, run_layer, untraced
from onernn.adapters.requirements import require

_WEIGHTS = ("weight_ih", "weight_hh"), ("bias_ih", "bias_hh")


def cells_obstacle(layer: Any, kind: Any) -> str:
    """Why a RNN or BiRNN of this class cannot be ours, "" where it can."""
    nn = require("paddle.nn", "paddle")
    cells = _cells(layer)
    base = nn.BiRNN if len(cells) > 1 else nn.RNN
    if kind.forward is not base.forward:
        return "its forward() is a class's own"
    for cell in cells:
        if type(cell) not in (nn.SimpleRNNCell, nn.LSTMCell, nn.GRUCell):
            return f"{type(cell).__name__} is no cell of paddle.nn"
        if getattr(cell, "proj_size", 0):
            return "a projection (proj_size)"
        if cell._forward_pre_hooks or cell._forward_post_hooks:
            return "its cell has hooks, which are called in each step"
    if len({(_mode(cell), cell.input_size, cell.hidden_size) for cell in cells}) > 1:
        return "its cells are not alike"
    return ""


@cache
def ours_of_cells(kind: Any, chosen: Options) -> type:
    """The layer, all steps in one call; parameters, arguments and results stay."""

    @untraced
    def run(self: Any, inputs: Any, states: Any, lengths: Any, more: dict[str, Any]) -> Any:
        # What Paddle gives behind a length is computed from what stands there; hooks may be new.
        if not more and lengths is None and not cells_obstacle(self, kind):
            if (found := _run(self, inputs, states, chosen)) is not None:
                return found
        return kind.forward(self, inputs, states, lengths, **more)

    def forward(
        self: Any,
        inputs: Any,
        initial_states: Any = None,
        sequence_length: Any = None,
        **kwargs: Any,
    ) -> Any:
        return run(self, inputs, initial_states, sequence_length, kwargs)

    own = {"forward": forward, "onernn_options": chosen}
    return type(kind.__name__, (kind,), own)


def _run(layer: Any, inputs: Any, initial: Any, chosen: Options) -> tuple[Any, Any] | None:
    """The outputs and the final states as Paddle gives them; None where it stays with Paddle."""
    paddle = require("paddle", "paddle")
    cells, time_axis = _cells(layer), 0 if layer.time_major else 1
    first = cells[0]
    kind = LayerKind(_mode(first), first.input_size, first.hidden_size, 1, len(cells))
    if initial is None:
        begin = [
            cell.get_initial_states(batch_ref=inputs, batch_dim_idx=1 - time_axis) for cell in cells
        ]
    else:
        begin = [*initial] if len(cells) > 1 else [initial]
    by_cell = [_listed(each) for each in begin]
    states = [paddle.stack(each, 0) for each in zip(*by_cell, strict=True)]
    weights = [getattr(cell, name) for names in _WEIGHTS for cell in cells for name in names]
    reverse = getattr(layer, "is_reverse", False)
    x = paddle.flip(inputs, time_axis) if reverse else inputs
    described = Described(kind, layer.time_major, layer.training, False, weights)
    found = run_layer(layer, described, x, states, None, chosen)
    if found is None:
        return None
    out, after = found
    ends = [tuple(state[k] for state in after) for k in range(len(cells))]
    final = [each if len(each) > 1 else each[0] for each in ends]
    if reverse:
        out = paddle.flip(out, time_axis)
    return out, tuple(final) if len(cells) > 1 else final[0]


def _cells(layer: Any) -> list[Any]:
    return [layer.cell] if hasattr(layer, "cell") else [layer.cell_fw, layer.cell_bw]


def _listed(states: Any) -> Sequence[Any]:
    return states if isinstance(states, list | tuple) else [states]


def _mode(cell: Any) -> str:
    """Of the operator ``rnn``, which computes what this cell does."""
    name = type(cell).__name__.removesuffix("Cell")
    return f"RNN_{cell.activation.upper()}" if name == "SimpleRNN" else name
