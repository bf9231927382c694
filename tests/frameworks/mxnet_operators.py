"""A small symbol for each operator of MXNet that we read, and for each of its attributes."""

from __future__ import annotations

from tests.frameworks import mxnet_convolutions, mxnet_elements, mxnet_layers, mxnet_numpy
from tests.frameworks.mxnet_cases import CASES, S, values

__all__ = [
    "CASES",
    "S",
    "mxnet_convolutions",
    "mxnet_elements",
    "mxnet_layers",
    "mxnet_numpy",
    "values",
]
