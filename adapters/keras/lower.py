"""Turns a Keras model into a graph of onernn's canonical operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onernn.adapters.common.caller_rules import CallerRule, read_callers
from onernn.adapters.keras import functions, layers, rules
from onernn.adapters.keras.read import Model, read_model
from onernn.adapters.keras.table import KerasSignature, KerasTensor, Lowering, name_of_result
from onernn.ir.graph import Graph

__all__ = ["functions", "layers", "load_keras", "rules"]
"""Includes the modules that are imported because they add their rules to the table."""


def load_keras(
    path: str | Path,
    params: str | Path | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
) -> Graph:
    """Returns the graph of a saved model. A layer that onernn cannot run becomes a node that
    contains the reason.

    ``params``: the weights of a ``.json``. Raises `ModelFormatError` if the file is not a model.
    """
    return lower(read_model(path, params), read_callers(rules, KerasSignature, KerasTensor))


def lower(model: Model, callers: Mapping[str, CallerRule] = MappingProxyType({})) -> Graph:
    """Returns the graph of a model. Raises `ModelFormatError` if the model contradicts itself."""
    lowering = Lowering(model)
    builder, net = lowering.builder, model.network
    builder.rules = callers
    given = [lowering.input(net.layers[ref.layer]) for ref in net.inputs]
    made = lowering.run(net, given, "", 0)
    names = map(name_of_result, net.outputs)
    outputs = [lowering.output(each.value, name) for each, name in zip(made, names, strict=True)]
    for name, variable in lowering.states.items():
        outputs.append(lowering.output(builder.value(variable), f"{name}/next"))
    return builder.graph(outputs)
