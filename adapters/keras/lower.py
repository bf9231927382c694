"""A Keras model as a graph of canonical operators."""

from __future__ import annotations

from pathlib import Path

from onernn.adapters.keras import layers, rules
from onernn.adapters.keras.read import Model, read_model
from onernn.adapters.keras.table import Lowering, name_of_result
from onernn.ir.graph import Graph

__all__ = ["layers", "load_keras", "rules"]
"""With the modules whose rules fill the table."""


def load_keras(path: str | Path) -> Graph:
    """Returns the graph of a saved model; layers that cannot be lowered are in it, with the reason.

    Raises `ModelFormatError` for a file that is no model.
    """
    return lower(read_model(path))


def lower(model: Model) -> Graph:
    """Returns the graph of a model. Raises `ModelFormatError` where the model contradicts
    itself.
    """
    lowering = Lowering(model)
    builder, net = lowering.builder, model.network
    given = [lowering.input(net.layers[ref.layer]) for ref in net.inputs]
    made = lowering.run(net, given, "", 0)
    names = map(name_of_result, net.outputs)
    outputs = [lowering.output(each.value, name) for each, name in zip(made, names, strict=True)]
    for name, variable in lowering.states.items():
        outputs.append(lowering.output(builder.value(variable), f"{name}/next"))
    return builder.graph(outputs)
