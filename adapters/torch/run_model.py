"""Runs models in PyTorch itself: an exported program, or a module in memory."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.ir.ragged import Batch

_RECURRENT = ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")


def run_model(path: str, _: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs of a .pt2, in order. Raises PyTorch's errors.

    The size checks in the exported program are skipped. Zero initial states are resized to the
    given batch, because an export stores the states for the batch size of its example.
    """
    torch = require("torch", "torch")
    program = torch.export.load(path)
    taken = program.graph_signature.inputs_to_parameters | program.graph_signature.inputs_to_buffers
    held = {**program.state_dict, **program.constants}
    taken |= program.graph_signature.inputs_to_lifted_tensor_constants
    values: list[Any] = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            name = node.name
            given = held[taken[name]] if name in taken else _make_input(torch, feed, name)
            values.append(given)
    with torch.no_grad():
        outputs = _interpreter(torch)(program.graph_module).run(*values)
    return list_tensors(torch, outputs)


def run_module(module: Any, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs of a module that takes the inputs by name or in order.

    If there are more inputs than arguments, the last argument is a tuple with the remaining inputs.
    """
    torch = require("torch", "torch")
    values = {name: _make_input(torch, feed, name) for name in feed}
    parameters = signature(module.forward).parameters
    with torch.no_grad():
        if set(values) <= set(parameters):
            return list_tensors(torch, module(**values))
        taken, left = [*values.values()][: len(parameters)], [*values.values()][len(parameters) :]
        if left:  # (h, c) of an LSTM
            taken[-1] = (taken[-1], *left)
        return list_tensors(torch, module(*taken))


def list_tensors(torch: Any, outputs: Any) -> list[Batch]:
    """Returns the tensors and numbers of an output, including those inside containers, as
    arrays.
    """
    flat, _ = torch.utils._pytree.tree_flatten(outputs)
    return [
        each.detach().cpu().numpy() if isinstance(each, torch.Tensor) else np.asarray(each)
        for each in flat
        if each is not None
    ]


def _make_input(torch: Any, feed: Mapping[str, Batch], name: str) -> Any:
    array = np.array(feed[name])
    return torch.from_numpy(array) if array.ndim else array.item()


def _interpreter(torch: Any) -> Any:
    class Interpreter(torch.fx.Interpreter):  # type: ignore[misc]
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if str(target) in _RECURRENT:
                args = _with_states(args)
            elif (
                str(target).startswith("aten._assert")
                or getattr(target, "__name__", "") == "_guards_fn"
            ):
                return None
            return super().call_function(target, args, kwargs)

        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            return None if target == "_guards_fn" else super().call_module(target, args, kwargs)

    return Interpreter


def _with_states(args: Any) -> Any:
    """Returns the arguments of a layer, with zero initial states resized to the batch size of x."""
    x, states, *rest = args
    batch = x.shape[0 if rest[-1] else 1]
    single = not isinstance(states, list | tuple)
    given = [states] if single else [*states]
    if all(not state.any() for state in given):
        given = [s.new_zeros(s.shape[0], batch, s.shape[2]) for s in given]
    return (x, given[0] if single else given, *rest)
