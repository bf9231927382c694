"""Known faults that hit a symbol: of MXNet 1.9.1's RNN operator on a CPU, of its ONNX exporter.

Measured with 1.9.1: design/0018, tests/frameworks/test_mxnet_audit.py. What the exporter refuses
stands in convert_RNN of mxnet/onnx/mx2onnx.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.fault import Effect, FaultyModel, FrameworkFault, unchanged
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.lower import lower, read_model
from onernn.adapters.mxnet.read import Symbol, SymbolNode
from onernn.adapters.mxnet.table import output_name
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, NativeOp

PATHS = {
    "cpu": "MXNet 1.9.1 on a CPU, as installed",
    "native": "the same with MXNET_USE_MKLDNN_RNN=0",
}
EXPORT, TRAINING = "export", "training"

MxnetFault = FrameworkFault[Symbol]


class _Layer(NamedTuple):
    at: NativeOp
    node: SymbolNode
    native: bool  # runs on MXNet's own kernels wherever it runs: float64, or a projection


def find_faults(path: str | Path, params: str | Path | None = None) -> FaultyModel[Symbol]:
    """The symbol in a file with its faults; see `load_mxnet`."""
    files, symbol, result = read_model(path, params)
    doubles = all(array.dtype == np.float64 for array in result.arrays.values())
    faults: list[MxnetFault] = []
    for position, node in enumerate(symbol.nodes):
        if node.op in ("RNN", "_npx_rnn"):
            native = doubles or node.attributes.get("projection_size", "None") != "None"
            faults += _faults(_Layer(NativeOp(position, node.op, node.name), node, native))

    def lowered(symbol: Symbol) -> Graph:
        return lower(symbol, result.arrays, "documented", str(files.symbol))

    return FaultyModel("MXNet 1.9.1", symbol, lowered, PATHS, tuple(faults))


def _faults(layer: _Layer) -> Iterator[MxnetFault]:
    try:
        stack = parse.stack_of(layer.node.attributes)
    except UnsupportedError:
        return  # the graph says why it cannot be run
    read = layer.node.attributes
    clips = (
        all(read.get(name, "None") != "None" for name in parse.CLIPS[:2]) and stack.mode == "lstm"
    )
    for what, name, change in (
        (
            "sequence lengths",
            "lengths",
            _without_lengths if parse.is_set(read, "use_sequence_length") else None,
        ),
        ("clips of the cell state", "clip", _without_clips if clips else None),
    ):
        if change is None:
            continue
        refusing = tuple(PATHS) if layer.native else ("native",)
        if not layer.native:
            text = f"{what} are ignored without a word"
            changed = partial(change, position=layer.at.position)
            yield _fault(layer, f"{name}_ignored", "wrong", ("cpu",), text, changed)
        text = f"{what} raise an error in MXNet's own kernels"
        yield _fault(layer, f"{name}_refused", "refuses", refusing, text)
    if stack.projection and not parse.is_set(read, "state_outputs"):
        text = "a projection with state_outputs=False: a segmentation fault"
        yield _fault(layer, "projection_crashes", "crashes", tuple(PATHS), text)
    if parse.number(read.get("p", "0")) > 0 and stack.layers > 1 and not layer.native:
        text = f"dropout p={read['p']} between layers is ignored in training"
        yield _fault(layer, "dropout_ignored", "unmeasured", (TRAINING,), text)
    yield from _exported(layer, clips)


def _exported(layer: _Layer, clips: bool) -> Iterator[MxnetFault]:
    read, stack = layer.node.attributes, parse.stack_of(layer.node.attributes)
    both = stack.directions == 2
    refused = [
        reason
        for reason, hit in (
            ("two directions", both and (stack.mode != "lstm" or stack.layers == 2)),
            ("sequence lengths", parse.is_set(read, "use_sequence_length")),
            ("a projection", stack.projection),
            ("state_outputs=False", not parse.is_set(read, "state_outputs")),
            (f"{stack.layers} layers", stack.layers > 2),
        )
        if hit
    ]
    if refused:
        text = f"its ONNX exporter raises NotImplementedError for {', '.join(refused)}"
        yield _fault(layer, "export_refused", "refuses", (EXPORT,), text)
        return
    if clips:
        change = partial(_without_clips, position=layer.at.position)
        text = "its ONNX exporter drops the clips of the cell state"
        yield _fault(layer, "export_drops_clip", "wrong", (EXPORT,), text, change)
    if stack.layers == 2:
        text = "its ONNX exporter cuts the weights of two layers as if the input had state_size"
        text += f" = {stack.hidden} channels: broken where it has not"
        yield _fault(layer, "export_two_layers", "unmeasured", (EXPORT,), text)


def _fault(
    layer: _Layer,
    name: str,
    effect: Effect,
    paths: tuple[str, ...],
    text: str,
    change: Any = unchanged,
) -> MxnetFault:
    value = output_name(layer.node, 0, 1)
    return FrameworkFault(name, text, change, effect, paths, layer.at, value)


def _without_lengths(symbol: Symbol, *, position: int) -> Symbol:
    node = symbol.nodes[position]
    attributes = {**node.attributes, "use_sequence_length": "False"}
    count = 4 if attributes.get("mode") == "lstm" else 3
    changed = replace(node, attributes=attributes, inputs=node.inputs[:count])
    return _with_node(symbol, position, changed)


def _without_clips(symbol: Symbol, *, position: int) -> Symbol:
    node = symbol.nodes[position]
    kept = {name: text for name, text in node.attributes.items() if name not in parse.CLIPS}
    return _with_node(symbol, position, replace(node, attributes=kept))


def _with_node(symbol: Symbol, position: int, node: SymbolNode) -> Symbol:
    nodes = (*symbol.nodes[:position], node, *symbol.nodes[position + 1 :])
    return replace(symbol, nodes=nodes)
