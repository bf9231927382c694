"""Keras's layers under the conformance kit: onernn's own reader, and the example's."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from onernn.adapters.weight_conversion import read_layer
from onernn.verification.suite import Case

os.environ.setdefault("KERAS_BACKEND", "jax")
EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_adapter"
sys.path.insert(0, str(EXAMPLE))
_spec = importlib.util.spec_from_file_location("keras_example", EXAMPLE / "test_adapter.py")
example = importlib.util.module_from_spec(_spec)
sys.modules["keras_example"] = example
_spec.loader.exec_module(example)


class TestExample(example.TestAgainstKeras):
    """As it stands in examples/keras_adapter."""

    known_failures = EXAMPLE / "known_failures.toml"


class TestReader(example.TestAgainstKeras):
    """The layout "keras", of every direction but the one that read_layer refuses."""

    known_failures = None
    directions = ("left2right", "bidirectional_concat", "bidirectional_sum")

    def weights(self, layer: list[Any], case: Case) -> Any:
        arrays = {}
        names = ("kernel", "recurrent_kernel", "bias")
        for k, each in enumerate(layer):
            prefix = f"{k}/" if len(layer) > 1 else ""
            sides = ("forward/", "backward/") if each.merge_mode else ("",)
            places = [f"{prefix}{side}{name}" for side in sides for name in names]
            arrays |= dict(zip(places, each.arrays, strict=True))
        options: dict[str, Any] = {"function": layer[0].activation}
        if layer[0].merge_mode:
            options["merge"] = case.spec.direction
        if layer[0].kind == "GRU":
            options["reset_after"] = layer[0].reset_after
        return tuple(read_layer(arrays, "keras", **options))
