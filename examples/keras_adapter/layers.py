"""Keras's layers as its documentation writes them, in NumPy: the framework, where it is missing."""

from __future__ import annotations

import numpy as np
from adapter import LayerArrays

ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
}
States = list[np.ndarray]


def run(layer: LayerArrays, x: np.ndarray, lengths: np.ndarray, states: States) -> tuple:
    """(y (N, T, O) or (N, T, 2*O), final states), behind the sentences anything.

    ``states`` and final states: h, or h and c, (N, O), of Bidirectional of both directions.
    """
    if layer.merge_mode is None:
        return _one(layer, layer.arrays, x, lengths, states, layer.go_backwards)
    half, count = len(layer.arrays) // 2, len(states) // 2
    forward, ahead = _one(layer, layer.arrays[:half], x, lengths, states[:count], False)
    backward, back = _one(layer, layer.arrays[half:], x, lengths, states[count:], True)
    y = forward + backward if layer.merge_mode == "sum" else np.concatenate([forward, backward], 2)
    return y, [*ahead, *back]


def _one(layer, arrays, x, lengths, states, backwards: bool) -> tuple[np.ndarray, States]:
    after = [state.copy() for state in states]
    y = np.zeros((*x.shape[:2], arrays[1].shape[0]), x.dtype)
    for n, length in enumerate(lengths):
        held = [state[n] for state in states]
        for t in range(length)[:: -1 if backwards else 1]:
            held = _step(layer, arrays, x[n, t], held)
            y[n, t] = held[0]
        for state, value in zip(after, held, strict=True):
            state[n] = value
    return y, after


def _step(layer: LayerArrays, arrays, x: np.ndarray, held: States) -> States:
    kernel, recurrent, bias = arrays
    act, sigmoid, h = ACTIVATIONS[layer.activation], ACTIVATIONS["sigmoid"], held[0]
    if layer.kind == "SimpleRNN":
        return [act(x @ kernel + bias + h @ recurrent)]
    if layer.kind == "LSTM":
        i, f, c, o = np.split(x @ kernel + h @ recurrent + bias, 4)
        c = sigmoid(f) * held[1] + sigmoid(i) * act(c)
        return [sigmoid(o) * act(c), c]
    units = len(h)
    of_x = x @ kernel + (bias[0] if layer.reset_after else bias)
    of_h = h @ recurrent + (bias[1] if layer.reset_after else 0)
    z, r = (sigmoid(of_x[k] + of_h[k]) for k in (slice(units), slice(units, 2 * units)))
    candidate = slice(2 * units, None)
    if layer.reset_after:
        new = act(of_x[candidate] + r * of_h[candidate])
    else:
        new = act(of_x[candidate] + (r * h) @ recurrent[:, candidate])
    return [z * h + (1 - z) * new]
