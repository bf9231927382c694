"""The formula of one step of each recurrent cell. A builder object makes the operands of the
formula. With NumPy arrays as operands, the formula computes a step. With operands that record their
operations, it makes the tape for gradients. With operands that are names in an ONNX graph, it
writes the body of a Scan. Equations: RNN developer guide of oneDNN; oneAPI specification 1.3, RNN
(AUGRU cells).
"""

from __future__ import annotations

from typing import Any

from onernn.ir.spec import Cell, RnnSpec


def step(spec: RnnSpec, b: Any, h: Any, c: Any = None) -> list[Any]:
    """Returns the states after a step, [h] or [h, c], from the states ``h`` and ``c`` before the
    step.

    ``b`` is the builder; its methods return values (N, O), which support ``+``, ``*`` and ``1 -
    value``. ``x(gate)`` is the product of the input with a gate's weights, plus the gate's bias.
    ``h(gate, state)`` is the product of a state with a gate's weights. ``inner(product)`` adds the
    bias row u' of LBR cells. ``gate(k, sum)`` clips the sum and applies the cell's function number
    k. ``apply(k, value)`` does not clip. ``peephole(row, state)``, ``clip(state)`` and
    ``project(h)`` are for LSTMs. ``attention`` is (N, 1), or None for cells without attention.
    """
    if spec.cell is Cell.LSTM:
        return _lstm(spec, b, h, c)
    if not spec.cell.is_gru:
        return [b.gate(0, b.x(0) + b.h(0, h))]
    u, r = (b.gate(0, b.x(place) + b.h(place, h)) for place in (0, 1))
    behind = r * b.inner(b.h(2, h)) if spec.cell.linear_before_reset else b.h(2, r * h)
    o = b.gate(1, b.x(2) + behind)
    keep = u if b.attention is None else (1 - b.attention) * u
    if spec.update == "replace":
        keep = 1 - keep
    return [keep * h + (1 - keep) * o]


def _lstm(spec: RnnSpec, b: Any, h: Any, c: Any) -> list[Any]:
    def add_peephole(place: int, state: Any) -> Any:
        whole = b.x(place) + b.h(place, h)
        return whole + b.peephole(min(place, 2), state) if spec.peephole else whole

    i, g = b.gate(0, add_peephole(0, c)), b.gate(1, b.x(2) + b.h(2, h))
    f = 1 - i if spec.input_forget else b.gate(0, add_peephole(1, c))
    after = f * c + i * g
    if spec.cell_clip is not None:
        after = b.clip(after)
    out = b.gate(0, add_peephole(3, after)) * b.apply(2, after)
    return [out if spec.projection_size is None else b.project(out), after]
