"""Finds known faults of MXNet 1.9.1 that affect a symbol: faults of the RNN operator on a CPU, and
of the ONNX exporter.

The faults were measured: design/0018, tests/frameworks/test_mxnet_audit.py. The exporter raises its
errors in convert_RNN of mxnet/onnx/mx2onnx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.fault import FaultyModel, FrameworkFault, keep_unchanged
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.lower import lower, read_caller_rules, read_model
from onernn.adapters.mxnet.read import Symbol, SymbolNode
from onernn.adapters.mxnet.table import output_name
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, NativeOp

PATHS = {
    "cpu": "MXNet 1.9.1 on a CPU, as installed",
    "native": "the same with MXNET_USE_MKLDNN_RNN=0",
}
EXPORT, TRAINING = ("export",), ("training",)

MxnetFault = FrameworkFault[Symbol]
_NO_LENGTHS = {"use_sequence_length": "False"}
_NO_CLIPS = dict.fromkeys(parse.CLIPS, "None")


def find_faults(
    path: str | Path,
    params: str | Path | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
) -> FaultyModel[Symbol]:
    """Returns the symbol in a file, together with its known faults; for the arguments see
    `load_mxnet`.
    """
    callers = read_caller_rules(rules)
    files, symbol, result = read_model(path, params)
    doubles = all(array.dtype == np.float64 for array in result.arrays.values())
    faults: list[MxnetFault] = []
    for position, node in enumerate(symbol.nodes):
        if node.op in ("RNN", "_npx_rnn"):
            with suppress(UnsupportedError):  # the lowered graph contains the reason
                faults += _find(NativeOp(position, node.op, node.name), node, doubles)

    def lower_changed(symbol: Symbol) -> Graph:
        return lower(symbol, result.arrays, "documented", str(files.symbol), callers)

    return FaultyModel("MXNet 1.9.1", symbol, lower_changed, PATHS, tuple(faults))


def _find(at: NativeOp, node: SymbolNode, doubles: bool) -> Iterator[MxnetFault]:
    read, stack = node.attributes, parse.stack_of(node.attributes)
    everywhere, fault = tuple(PATHS), partial(FrameworkFault, at=at, value=output_name(node, 0, 1))
    native = doubles or stack.projection is not None  # MXNet runs these without oneDNN
    has_lengths = parse.is_set(read, "use_sequence_length")
    has_clips = stack.mode == "lstm" and all(read.get(n, "None") != "None" for n in parse.CLIPS[:2])
    hides_states = not parse.is_set(read, "state_outputs")
    no_clips = partial(_change, at.position, _NO_CLIPS)
    for what, name, hit, change in (
        ("sequence lengths", "lengths", has_lengths, partial(_change, at.position, _NO_LENGTHS)),
        ("clips of the cell state", "clip", has_clips, no_clips),
    ):
        if hit and not native:
            text = f"{what} are ignored without a warning"
            yield fault(f"{name}_ignored", text, change, "wrong", ("cpu",))
        if hit:
            text = f"{what} raise an error in MXNet's own kernels"
            paths = everywhere if native else ("native",)
            yield fault(f"{name}_refused", text, keep_unchanged, "refuses", paths)
    if stack.projection and hides_states:
        text = "a projection with state_outputs=False: a segmentation fault"
        yield fault("projection_crashes", text, keep_unchanged, "crashes", everywhere)
    if parse.number(read.get("p", "0")) > 0 and stack.layers > 1 and not native:
        text = f"dropout p={read['p']} between layers is ignored in training"
        yield fault("dropout_ignored", text, keep_unchanged, "unmeasured", TRAINING)
    both = stack.directions == 2
    refused = {
        "two directions": both and (stack.mode != "lstm" or stack.layers == 2),
        "sequence lengths": has_lengths,
        "a projection": stack.projection,
        "state_outputs=False": hides_states,
        f"{stack.layers} layers": stack.layers > 2,
    }
    if reasons := [reason for reason, hit in refused.items() if hit]:
        text = f"its ONNX exporter raises NotImplementedError for {', '.join(reasons)}"
        yield fault("export_refused", text, keep_unchanged, "refuses", EXPORT)
        return
    if has_clips:
        text = "its ONNX exporter drops the clips of the cell state"
        yield fault("export_drops_clip", text, no_clips, "wrong", EXPORT)
    if stack.layers == 2:
        text = "its ONNX exporter cuts the weights of two layers as if the input had state_size"
        text += f" = {stack.hidden} channels: wrong for any other width"
        yield fault("export_two_layers", text, keep_unchanged, "unmeasured", EXPORT)


def _change(position: int, attributes: Mapping[str, str], symbol: Symbol) -> Symbol:
    """Returns the symbol in which ``attributes`` replace attributes of a node. If they turn the
    sequence lengths off, the node also loses its input of lengths.
    """
    node = symbol.nodes[position]
    inputs = node.inputs[:-1] if attributes is _NO_LENGTHS else node.inputs
    node = replace(node, attributes={**node.attributes, **attributes}, inputs=inputs)
    nodes = (*symbol.nodes[:position], node, *symbol.nodes[position + 1 :])
    return replace(symbol, nodes=nodes)
