"""MXNet: reads its models without MXNet, and works inside a live one."""

from onernn.adapters.mxnet.live.plugin import optimize, rnn

__all__ = ["optimize", "rnn"]
