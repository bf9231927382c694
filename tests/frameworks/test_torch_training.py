"""Gradients beside PyTorch's autograd in float64: ours in float32, the reference's in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support.gradients import Problem, assert_gradients, map_weights
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from onernn import Cell, Ragged, RnnSpec, RnnWeights
from onernn.backend import open_backend

INPUT, UNITS = 9, 12
MODULES: list[tuple[Cell, Any, dict[str, Any]]] = [
    (Cell.LSTM, torch.nn.LSTM, {}),
    (Cell.LSTM, torch.nn.LSTM, {"proj_size": 5}),
    (Cell.LBR_GRU, torch.nn.GRU, {}),  # torch applies r after the product with h
    (Cell.RNN_TANH, torch.nn.RNN, {"nonlinearity": "tanh"}),
    (Cell.RNN_RELU, torch.nn.RNN, {"nonlinearity": "relu"}),
]
GATES = {Cell.LSTM: [0, 1, 2, 3], Cell.LBR_GRU: [1, 0, 2]}  # torch: i, f, g, o and r, z, n


def in_our_layouts(
    module: Any, cell: Cell, values: Mapping[str, torch.Tensor], *, gradients: bool
) -> list[RnnWeights]:
    """The parameters of a torch module, or the gradients by them."""
    order = GATES.get(cell, [0])

    def gates(name: str) -> np.ndarray:
        """(G, O, ...) in oneDNN's order."""
        array = values[name].detach().numpy()
        return array.reshape(len(order), UNITS, *array.shape[1:])[order]

    def part(end: str) -> list[np.ndarray]:
        ih, hh = gates(f"bias_ih_{end}"), gates(f"bias_hh_{end}")
        # Of two summands each has the gradient of the sum.
        bias = ih.copy() if gradients else ih + hh
        if cell.linear_before_reset:
            bias = np.stack([*bias[:2], ih[2], hh[2]])
        arrays = [gates(f"weight_{kind}_{end}").transpose(2, 0, 1) for kind in ("ih", "hh")]
        projection = [values[f"weight_hr_{end}"].detach().numpy().T] if module.proj_size else []
        return [*arrays, bias, *projection]

    layers = []
    for layer in range(module.num_layers):
        sides = [part(f"l{layer}{s}") for s in ("", "_reverse")[: 1 + module.bidirectional]]
        first, second, bias, *rest = (np.stack(arrays)[None] for arrays in zip(*sides, strict=True))
        layers.append(RnnWeights(first, second, bias, None, *rest))
    return layers


def torch_gradients(
    module: Any, cell: Cell, x: list[np.ndarray], state: Any, dy: list[np.ndarray], dstate: Any
) -> dict[str, np.ndarray]:
    """By the names of `support.gradients.by_name`, for sentences (T_n, I)."""
    lengths = torch.tensor([len(s) for s in x])
    inputs = [torch.tensor(s, requires_grad=True) for s in x]
    states = [torch.tensor(s.reshape(-1, *s.shape[2:]), requires_grad=True) for s in state]
    padded = torch.nn.utils.rnn.pad_sequence(inputs)
    packed = pack_padded_sequence(padded, lengths, enforce_sorted=False)
    out, final = module(packed, tuple(states) if len(states) == 2 else states[0])
    y, _ = pad_packed_sequence(out)
    ends = final if isinstance(final, tuple) else (final,)
    loss = sum(
        (e * torch.tensor(d).reshape(e.shape)).sum() for e, d in zip(ends, dstate, strict=True)
    )
    loss = loss + sum((y[: len(d), n] * torch.tensor(d)).sum() for n, d in enumerate(dy))
    loss.backward()
    named = {name: p.grad for name, p in module.named_parameters()}
    found = {"x": np.concatenate([i.grad.numpy() for i in inputs])}
    found |= {f"state {k}": s.grad.numpy().reshape(state[k].shape) for k, s in enumerate(states)}
    for layer, weights in enumerate(in_our_layouts(module, cell, named, gradients=True)):
        for name in ("layer", "iter", "bias", "projection"):
            if (array := getattr(weights, name)) is not None:
                found[f"layer {layer} {name}"] = array
    return found


@pytest.mark.parametrize("backend", ["onednn", "kernels"])
@pytest.mark.parametrize("lengths", [[7, 7, 7], [5, 11, 1, 5]], ids=["dense", "ragged"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell, kind, more", MODULES)
def test_gradients_are_autograds(
    cell: Cell,
    kind: Any,
    more: dict,
    layers: int,
    bidirectional: bool,
    lengths: list[int],
    backend: str,
    request: pytest.FixtureRequest,
) -> None:
    if backend == "kernels":
        request.getfixturevalue("built")
    torch.manual_seed(1)
    module = kind(INPUT, UNITS, layers, bidirectional=bidirectional, **more).double()
    spec = RnnSpec(
        cell,
        INPUT,
        UNITS,
        layers=layers,
        direction="bidirectional_concat" if bidirectional else "left2right",
        projection_size=module.proj_size or None,
    )
    rng = np.random.default_rng(2)
    widths = {"h": spec.recurrent_size, "c": UNITS}

    def states() -> tuple[np.ndarray, ...]:
        shape = (layers, spec.directions, len(lengths))
        return tuple(rng.uniform(-1, 1, (*shape, widths[s])) for s in cell.states)

    x = [rng.uniform(-2, 2, (t, INPUT)) for t in lengths]
    dy = [rng.standard_normal((t, spec.output_size)) for t in lengths]
    state, dstate = states(), states()
    want = torch_gradients(module, cell, x, state, dy, dstate)

    weights = in_our_layouts(module, cell, dict(module.named_parameters()), gradients=False)
    batch, outer = Ragged.from_list(x), Ragged.from_list(dy)
    problem = Problem(spec, weights, batch, state, None, outer, dstate)
    _, exact = problem.train(open_backend("reference").prepare(spec, weights, dtype="f64"))
    assert_gradients(exact, want, 1e-12)
    single = [map_weights(w, lambda a: a.astype(np.float32)) for w in weights]
    layer = open_backend(backend, threads=1).prepare(spec, single, strict=True)
    tape, gradients = problem.train(layer)
    assert not tape.why
    assert_gradients(gradients, want, 1e-5)
    if len(set(lengths)) == 1:
        dense = problem._replace(x=np.stack(x, axis=1), dy=np.stack(dy, axis=1))
        _, gradients = dense.train(layer)
        gradients["x"] = gradients["x"].swapaxes(0, 1).reshape(want["x"].shape)
        assert_gradients(gradients, want, 1e-5)
