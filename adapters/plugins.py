"""How a model runs that ours alone cannot run: inside its framework, the recurrent layers ours."""

from __future__ import annotations

from onernn.adapters.mxnet.live.plugin import RNN
from onernn.adapters.mxnet.read import is_symbol
from onernn.adapters.onnx.splitting import RECURRENT as ONNX
from onernn.adapters.paddle.live.replaceable_parts import RECURRENT as PADDLE
from onernn.core.graph import Graph


def plugin_for(graph: Graph) -> str:
    """The plug-in that runs a loaded model, and how it is called; "" where none replaces a layer.

    Plug-ins replace layers that are operators of their own, not unrolled cells and loops.
    """
    file, replaced, who = graph.name, PADDLE, "Paddle"
    if file.endswith(".onnx"):
        replaced, who, call = frozenset(ONNX), "ONNX Runtime", f"onnx.optimize({file!r})"
    elif is_symbol(file):
        replaced, who, call = frozenset(RNN), "MXNet", f"mxnet.optimize(mx.sym.load({file!r}))"
    elif file.endswith(".json"):
        call = "paddle.optimize(layer), of the paddle.nn.Layer that it was saved from"
    else:
        call = f"paddle.optimize(paddle.inference.Config({file!r}, PARAMETERS))"
    native = {op.type for node in graph.nodes if node.op == "Rnn" for op in node.origin}
    return f"onernn.adapters.{call}: {who} runs the rest" if native & replaced else ""
