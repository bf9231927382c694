"""One bias of several, doubled or left out: fusion would add the projection's to the layer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from onernn.core.graph import Graph
from onernn.core.rnn import Recurrent
from onernn.core.weights import RnnWeights
from onernn.verification.diagnosis.graph_faults import Hypothesis
from onernn.verification.graph_changes import with_layers


def bias_sources(model: Graph) -> Iterator[tuple[str, Hypothesis]]:
    """A bias of the projection or of the layer alone: before fusion they are apart."""
    scales: dict[str, Callable[[float], Graph]] = {}
    for node in model.nodes:
        if node.op in ("Add", "Gemm"):
            for name in node.inputs:
                array = model.constants.get(name)
                if (
                    array is not None
                    and array.dtype.kind == "f"
                    and array.size == max(array.shape, default=0)
                ):
                    scales[f"bias {name!r}"] = partial(_scaled, model, name)
        elif node.op == "Rnn":
            rnn = Recurrent.of(node)
            if isinstance(rnn.weights, RnnWeights) and rnn.weights.bias is not None:
                scales[node.label] = partial(_scaled_layer, model, rnn.y, rnn.weights)
    if len(scales) < 2:
        return
    for factor, cause, how in (
        (2.0, "bias_doubled", "is added twice"),
        (0.5, "bias_doubled", "is halved: it is added twice"),
        (0.0, "bias_merged", "is left out: there is one bias instead of two"),
    ):
        for name, scaled in scales.items():
            yield name, Hypothesis(cause, f"one bias {how}", scaled(factor), True)


def _scaled(model: Graph, name: str, factor: float) -> Graph:
    array = model.constants[name]
    return replace(model, constants={**model.constants, name: array * array.dtype.type(factor)})


def _scaled_layer(model: Graph, name: str, weights: RnnWeights, factor: float) -> Graph:
    assert weights.bias is not None
    scaled = replace(weights, bias=weights.bias * weights.bias.dtype.type(factor))
    changed = with_layers(
        model, lambda rnn: replace(rnn, weights=scaled) if rnn.y == name else None
    )
    return changed or model
