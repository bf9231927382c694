"""One bias of several, doubled or left out: before fusion the projection's and the layer's are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from onernn.core.graph import Graph
from onernn.verification.diagnosis.graph_faults import Hypothesis


def bias_sources(model: Graph) -> Iterator[tuple[str, Hypothesis]]:
    """A bias of the projection or of the layer alone: before fusion they are apart."""
    changed: list[tuple[str, Callable[[float], Graph]]] = []
    for node in model.nodes:
        if node.op in ("Add", "Gemm"):
            for name in node.inputs:
                array = model.constants.get(name)
                if (
                    array is not None
                    and array.dtype.kind == "f"
                    and max(array.shape, default=0) == array.size
                ):
                    changed.append((f"bias {name!r}", lambda f, n=name: _scaled(model, n, f)))  # type: ignore[misc]
        elif node.op == "Rnn":
            weights = node.attributes["weights"]
            if not isinstance(weights, list | tuple) and weights.bias is not None:
                changed.append((node.label, lambda f, n=node: _scaled_layer(model, n, f)))  # type: ignore[misc]
    if len(changed) < 2:
        return
    for factor, cause, how in (
        (2.0, "bias_doubled", "is added twice"),
        (0.5, "bias_doubled", "is halved: it is added twice"),
        (0.0, "bias_merged", "is left out: there is one bias instead of two"),
    ):
        for name, scale in changed:
            yield name, Hypothesis(cause, f"one bias {how}", scale(factor), True)


def _scaled(model: Graph, name: str, factor: float) -> Graph:
    array = model.constants[name]
    return replace(model, constants={**model.constants, name: array * array.dtype.type(factor)})


def _scaled_layer(model: Graph, node: Any, factor: float) -> Graph:
    weights = node.attributes["weights"]
    bias = weights.bias * weights.bias.dtype.type(factor)
    attributes = {**node.attributes, "weights": replace(weights, bias=bias)}
    nodes = tuple(replace(n, attributes=attributes) if n is node else n for n in model.nodes)
    return replace(model, nodes=nodes)
