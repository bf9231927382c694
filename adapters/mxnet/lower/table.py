"""The table: MXNet's operators -> canonical ones. Importing it registers every rule."""

from __future__ import annotations

from onernn.adapters.mxnet.lower import arithmetic, control, elementwise, layers, recurrent, shaping
from onernn.adapters.mxnet.lower.rules import RULES

__all__ = ["RULES", "arithmetic", "control", "elementwise", "layers", "recurrent", "shaping"]
