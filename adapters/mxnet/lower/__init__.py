"""MXNet's symbols as graphs of canonical operators. The modules of rules fill the table."""

from onernn.adapters.mxnet.lower import (
    arithmetic,
    control,
    convolution,
    elementwise,
    layers,
    recurrent,
    shaping,
)
from onernn.adapters.mxnet.lower.model import load_mxnet, lower, read_model, traced

__all__ = ["load_mxnet", "lower", "read_model", "traced"]
__all__ += ["arithmetic", "control", "convolution", "elementwise", "layers", "recurrent"]
__all__ += ["shaping"]
