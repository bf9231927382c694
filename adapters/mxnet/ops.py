"""The table: MXNet's operators -> canonical ones. Importing it registers every rule."""

from __future__ import annotations

from onernn.adapters.mxnet import control, elementwise, layers, recurrent, shaping
from onernn.adapters.mxnet.native import RULES

__all__ = ["RULES", "control", "elementwise", "layers", "recurrent", "shaping"]
