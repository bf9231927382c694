"""A model run by MXNet itself, as documented by Symbol.bind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onernn.adapters.mxnet.lower  # noqa: F401  # its rules fill the table
from onernn.adapters.common.adapter import require
from onernn.adapters.mxnet.read import Files, find, parse_symbol, read_symbol
from onernn.adapters.mxnet.table import slots_of_node
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Batch, Ragged


def run_model(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """The outputs, in order. Raises what MXNet raises."""
    mx = require("mxnet", "mxnet")
    files = find(path, params or None)
    numpy = read_symbol(files.symbol).np_shape
    with mx.util.np_shape(numpy):
        return _bound(mx, files, feed)


def _bound(mx: Any, files: Files, feed: Mapping[str, Batch]) -> list[Batch]:
    symbol, labels = _without_labels(mx, mx.sym.load(str(files.symbol)))
    saved = mx.nd.load(str(files.params)) if files.params else {}
    arrays = {key.partition(":")[2] or key: value for key, value in saved.items()}
    arrays |= {name: mx.nd.array(value, dtype=_plain(value)) for name, value in feed.items()}
    taken = {name: arrays[name] for name in symbol.list_arguments() if name in arrays}
    shapes = {name: taken[name].shape for name in feed if name in taken}
    for name, shape in zip(
        symbol.list_arguments(), symbol.infer_shape_partial(**shapes)[0], strict=True
    ):
        if name in labels:
            taken[name] = mx.nd.zeros(shape)
        elif name not in taken:
            raise UnsupportedError(f"{files.params} holds no {name!r}: was it unpacked on saving?")
    auxiliary = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    bound = symbol.bind(mx.cpu(), taken, aux_states=auxiliary, grad_req="null")
    return [each.asnumpy() for each in bound.forward(is_train=False)]


def _without_labels(mx: Any, symbol: Any) -> tuple[Any, set[str]]:
    """The symbol with a variable in the place of each label, and these variables' names.

    In inference MXNet reads no label, but wants one. A variable's shape it infers from what it is
    compared with, which it cannot where the symbol computes the label.
    """
    text = symbol.tojson()
    graph, labels = json.loads(text), set()
    for node, read in zip(graph["nodes"], parse_symbol(text).nodes, strict=False):
        for at, slot in enumerate(slots_of_node(read)):
            if slot == "label":
                labels.add(name := f"the label of {node['name']}")
                node["inputs"][at] = [len(graph["nodes"]), 0, 0]
                graph["nodes"].append({"op": "null", "name": name, "inputs": []})
    return mx.sym.load_json(json.dumps(graph)), labels


def _plain(value: Batch) -> Any:
    if isinstance(value, Ragged):
        raise UnsupportedError("MXNet has no ragged inputs")
    return value.dtype
