"""Rnn: stacks and directions become runs of one cell's code, each with numbers of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from onernn.core.errors import UnsupportedError
from onernn.core.rnn import Recurrent, parts
from onernn.core.sizes import Size
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights
from onernn.emit.cells import CellCode
from onernn.emit.operators.operator_code import OperatorCode, rule
from onernn.emit.program import CTYPES, Code, Program, Sentences
from onernn.emit.storing import Store


def batch_of(program: Program, x: str) -> tuple[Size, Size | None, Size, Sentences | None]:
    """(words, time or None where ragged, sentences, their offsets) of a layer's input."""
    lod, shape = program.sentences(x), program.shape(x)
    if len(shape) != (2 if lod else 3):
        raise UnsupportedError(f"of {len(shape)} axes{' under a LoD' * bool(lod)}")
    if lod:
        return lod.words, None, lod.count, lod
    return shape[0] * shape[1], shape[0], shape[1], None


@rule("Rnn")
def recurrent(op: OperatorCode) -> Code:
    rnn = Recurrent.of(op.node)
    spec, dtype = rnn.spec, rnn.layers[0].iter.dtype.name
    for at, name in enumerate(op.node.inputs):
        if name and op.dtype(at) != dtype:
            op.refuse(f"weights of {dtype}, but {name!r} of {op.dtype(at)}")
    if rnn.cells:
        op.refuse("the cell state of every word as an output")
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
        given = op.read(1 + at)
        states.append({"name": state, "given": given, "final": final, "held": held, "width": width})
    if rnn.attention:
        if op.program.sentences(rnn.attention) not in (None, lod):
            op.refuse("attention under other offsets than its input")
        _same(op, 3, (*shape[:-1], 1))
    op.read(0)
    runs, batch = _runs(op, rnn, words), {"time": time, "count": count, "lod": lod}
    more = {"states": states, "count": count, "parts": len(runs), "real": CTYPES[dtype]}
    return op.code("rnn", runs=runs, batch=batch, attention=op.read(3), **more)


def _same(op: OperatorCode, at: int, expected: tuple[Any, ...]) -> None:
    """An input's sizes are as expected."""
    given = op.shape(at)
    if len(given) != len(expected):
        op.refuse(f"{op.node.inputs[at]!r} of {len(given)} axes, not {len(expected)}")
    for size, other in zip(given, expected, strict=True):
        op.same(size, other)


def _runs(op: OperatorCode, rnn: Recurrent, words: Size) -> list[dict[str, Any]]:
    """What the cells' code is called with, one layer and direction after the other."""
    spec, layers = rnn.spec, rnn.layers
    dtype = layers[0].iter.dtype.name
    between: dict[tuple[int, int], str] = {}
    runs: list[dict[str, Any]] = []
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
        run = {"title": title, "x": between.get((layer, d), rnn.x), "y": y, "width": width}
        run |= {"offset": d * spec.recurrent_size if concat else 0, "backwards": part.backwards}
        run["added"] = joins and d == 1 and spec.direction == "bidirectional_sum"
        run["at"] = len(runs)
        runs.append(run)
        between[layer + 1, d] = y
        op.packs(partial(_pack, run, part.spec, layers[layer].part(0, d)))
    return runs


def _pack(run: dict[str, Any], spec: RnnSpec, weights: RnnWeights, store: Store) -> None:
    """Puts a part's numbers into the weights file, and tells its run where they are."""
    real = CTYPES[weights.iter.dtype.name]
    stored = real if real == "double" else store.stored
    spec = replace(spec, direction="left2right")
    run["cell"] = code = CellCode(spec, weights.layer is not None, real, stored)
    run["fields"] = code.pack(weights, store)
