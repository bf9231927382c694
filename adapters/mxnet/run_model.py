"""Runs a model with MXNet itself, in the way that Symbol.bind documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onernn.adapters.mxnet.lower  # noqa: F401  # its rules fill the table
from onernn.adapters.common.adapter import require
from onernn.adapters.mxnet.originals import Rewriting
from onernn.adapters.mxnet.read import find, parse_symbol, read_symbol
from onernn.adapters.mxnet.table import slots_of_node
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Batch, Ragged


def run_model(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs, in order. Raises MXNet's errors."""
    mx = require("mxnet", "mxnet")
    files = find(path, params or None)
    with mx.util.np_shape(read_symbol(files.symbol).np_shape):
        symbol, labels = _replace_labels(mx, mx.sym.load(str(files.symbol)))
        saved = mx.nd.load(str(files.params)) if files.params else {}
        arrays = {key.partition(":")[2] or key: value for key, value in saved.items()}
        arrays |= {name: _array(mx, value) for name, value in feed.items()}
        names = symbol.list_arguments()
        shapes = {name: arrays[name].shape for name in feed if name in names}
        for name, shape in zip(names, symbol.infer_shape_partial(**shapes)[0], strict=True):
            if name in labels:
                arrays[name] = mx.nd.zeros(shape)
            elif name not in arrays:
                raise UnsupportedError(
                    f"{files.params}: expected an array {name!r}, got none; if"
                    " mx.rnn.save_rnn_checkpoint unpacked it, use mx.model.save_checkpoint"
                )
        taken, auxiliary = (
            {name: arrays[name] for name in each}
            for each in (names, symbol.list_auxiliary_states())
        )
        bound = symbol.bind(mx.cpu(), taken, aux_states=auxiliary, grad_req="null")
        return [each.asnumpy() for each in bound.forward(is_train=False)]


def _replace_labels(mx: Any, symbol: Any) -> tuple[Any, set[str]]:
    """Returns the symbol with a variable in place of each label, and these variables' names.

    In inference MXNet reads no label, but requires one. It infers a label's shape from the value
    that the label is compared with, but not if the symbol computes the label.
    """
    text, labels = symbol.tojson(), set[str]()
    rewriting = Rewriting(text)
    for at, node in enumerate(parse_symbol(text).nodes):
        for place, slot in enumerate(slots_of_node(node)):
            if slot == "label":
                labels.add(name := f"the label of {node.name}")
                rewriting.nodes[at]["inputs"][place] = rewriting.add("null", name, [])
    return mx.sym.load_json(json.dumps(rewriting.graph)), labels


def _array(mx: Any, value: Batch) -> Any:
    if isinstance(value, Ragged):
        raise UnsupportedError("MXNet takes dense inputs only, got a ragged one; pad its sequences")
    return mx.nd.array(value, dtype=value.dtype)
