"""Rnn: stacks and directions become runs of one cell, each with numbers of its own."""

from __future__ import annotations

from typing import Any

from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.program import CTYPES, Program
from onernn.engine.steps import Layer, Run, Sentences, State
from onernn.ir.errors import UnsupportedError
from onernn.ir.rnn import Recurrent, check_cells, parts
from onernn.ir.types import Size


def batch_of(program: Program, x: str) -> tuple[Size, Size | None, Size, Sentences | None]:
    """(words, time or None where ragged, sentences, their offsets) of a layer's input."""
    lod, shape = program.sentences(x), program.shape(x)
    if len(shape) != (2 if lod else 3):
        raise UnsupportedError(f"of {len(shape)} axes{' under a LoD' * bool(lod)}")
    if lod:
        return lod.words, None, lod.count, lod
    return shape[0] * shape[1], shape[0], shape[1], None


@rule("Rnn")
def recurrent(op: OperatorCode) -> Layer:
    rnn = Recurrent.of(op.node)
    spec, dtype = rnn.spec, rnn.layers[0].iter.dtype.name
    for at, name in enumerate(op.node.inputs):
        if name and op.dtype(at) != dtype:
            op.refuse(f"weights of {dtype}, but {name!r} of {op.dtype(at)}")
    cells = rnn.cells if op.program.graph.is_read(rnn.cells) else ""
    if cells:
        check_cells(spec)
    words, time, count, lod = batch_of(op.program, rnn.x)
    op.mixes = [time] if time is not None and spec.direction != "left2right" else []
    shape = op.shape()
    op.same(shape[-1], spec.input_size)
    stack, widths = (spec.layers, spec.directions, count), (spec.recurrent_size, spec.hidden_size)
    states = []
    for at, (state, width) in enumerate(zip(spec.cell.states, widths, strict=False)):
        if rnn.states[at]:
            _same(op, 1 + at, (*stack, width))
        held = op.keep(f"held_{state}", dtype, (*stack, width), held=True)
        final = rnn.finals[at] or op.keep(f"final_{state}", dtype, (*stack, width), held=True)
        states.append(State(state, op.read(1 + at), final, held, width))
    if rnn.attention:
        if op.program.sentences(rnn.attention) not in (None, lod):
            op.refuse("attention under other offsets than its input")
        _same(op, 3, (*shape[:-1], 1))
    op.read(0)
    runs, attention = _runs(op, rnn, words), op.read(3)
    of = (words, time, count, lod, CTYPES[dtype], cells)
    return Layer(op.node, runs, tuple(states), attention, *of)


def _same(op: OperatorCode, at: int, expected: tuple[Any, ...]) -> None:
    """An input's sizes are as expected."""
    given = op.shape(at)
    if len(given) != len(expected):
        op.refuse(f"{op.node.inputs[at]!r} of {len(given)} axes, not {len(expected)}")
    for size, other in zip(given, expected, strict=True):
        op.same(size, other)


def _runs(op: OperatorCode, rnn: Recurrent, words: Size) -> tuple[Run, ...]:
    """What a cell runs over, one layer and direction after the other."""
    spec, layers = rnn.spec, rnn.layers
    dtype = layers[0].iter.dtype.name
    between: dict[tuple[int, int], str] = {}
    runs: list[Run] = []
    for part in parts(spec):
        layer, d = part.layer, part.direction
        # Directions that are not joined after each layer have inner layers of their own.
        joins, side = spec.joins(layer), "" if spec.stacking == "framework" else f"_{d}"
        concat = joins and spec.direction == "bidirectional_concat"
        width, y = spec.recurrent_size * (2 if concat else 1), rnn.y
        if layer < spec.layers - 1:
            y = op.keep(f"layer{layer}{side}", dtype, (words, width))
        title = f"layer {layer + 1} of {spec.layers}" if spec.layers > 1 else ""
        if spec.directions > 1:
            title += ", " * bool(title) + ("right to left" if d else "left to right")
        runs.append(
            Run(
                title,
                part.spec,
                layers[layer].part(0, d),
                x=between.get((layer, d), rnn.x),
                y=y,
                width=width,
                offset=d * spec.recurrent_size if concat else 0,
                backwards=part.backwards,
                added=joins and d == 1 and spec.direction == "bidirectional_sum",
                at=len(runs),
            )
        )
        between[layer + 1, d] = y
    return tuple(runs)
