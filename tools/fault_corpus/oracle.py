"""Computes operators by their documentation, in float64, with NumPy only, one step at a time.

Shares no code with onernn. Paddle: documentation of ``gru``, ``fusion_gru``, ``lstm`` and
``fusion_lstm``; MXNet: documentation of ``mx.nd.RNN``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def sigmoid(a: F64) -> F64:
    return 0.5 * (1.0 + np.tanh(0.5 * a))


def relu(a: F64) -> F64:
    return np.maximum(a, 0)


ACTIVATIONS = {"tanh": np.tanh, "relu": relu}


def paddle_gru(
    projected: F64,
    offsets: list[int],
    weight: F64,
    h0: F64 | None = None,
    origin_mode: bool = False,
    activation: str = "tanh",
) -> F64:
    """Returns Hidden (W, D) of ``gru``; ``projected`` (W, 3*D) is x*Wx with biases, gates u, r, c.

    ``weight`` is declared (D, 3*D); memory holds (D, 2*D) for u and r, then (D, D) for c.
    """
    size = len(weight)
    flat = weight.astype(np.float64).reshape(-1)
    w_gates, w_state = flat[: 2 * size * size].reshape(size, -1), flat[2 * size * size :]
    w_state = w_state.reshape(size, size)
    hidden = np.zeros((len(projected), size))
    for n, (first, last) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        h = np.zeros(size) if h0 is None else h0[n].astype(np.float64)
        for word in range(first, last):
            u, r = np.split(sigmoid(projected[word, : 2 * size] + h @ w_gates), 2)
            c = ACTIVATIONS[activation](projected[word, 2 * size :] + (r * h) @ w_state)
            h = u * h + (1 - u) * c if origin_mode else (1 - u) * h + u * c
            hidden[word] = h
    return hidden


def paddle_lstm(
    projected: F64, offsets: list[int], weight: F64, candidate_activation: str = "tanh"
) -> tuple[F64, F64]:
    """Returns Hidden and Cell (W, D) of ``lstm`` without peepholes; gates c, i, f, o."""
    size = len(weight)
    hidden, cell = np.zeros((2, len(projected), size))
    for first, last in zip(offsets[:-1], offsets[1:], strict=True):
        h, c = np.zeros((2, size))
        for word in range(first, last):
            gc, gi, gf, go = np.split(projected[word] + h @ weight.astype(np.float64), 4)
            c = ACTIVATIONS[candidate_activation](gc) * sigmoid(gi) + c * sigmoid(gf)
            h = sigmoid(go) * np.tanh(c)
            hidden[word], cell[word] = h, c
    return hidden, cell


def mxnet_rnn(
    mode: str,
    data: F64,
    parameters: F64,
    states: list[F64],
    *,
    size: int,
    layers: int = 1,
    directions: int = 1,
    projection: int | None = None,
    lengths: list[int] | None = None,
    clip: tuple[float, float] | None = None,
) -> tuple[F64, list[F64]]:
    """Returns the output (T, N, R*D), zero after a sequence's end, and final states of ``RNN``.

    ``parameters``: i2h (G*H, I), h2h (G*H, R) and h2r (R, H) of every layer and direction, then
    their biases i2h and h2h (G*H,). Gates of lstm: i, f, g, o; ``clip`` bounds its cell state.
    Gates of gru: r, z, n.
    """
    gates, width = {"lstm": 4, "gru": 3}.get(mode, 1) * size, projection or size
    flat, at = parameters.astype(np.float64), 0

    def take(*shape: int) -> F64:
        nonlocal at
        at += int(np.prod(shape))
        return flat[at - int(np.prod(shape)) : at].reshape(shape)

    channels = [data.shape[2]] + [width * directions] * (layers - 1)
    matrices = [
        (take(gates, inputs), take(gates, width), take(width, size) if projection else np.eye(size))
        for inputs in channels
        for _ in range(directions)
    ]
    biases = [(take(gates), take(gates)) for _ in matrices]
    assert at == len(flat)  # all weights and biases, and nothing else
    words, final = data.astype(np.float64), [each.astype(np.float64) for each in states]
    steps, sentences = data.shape[:2]
    for layer in range(layers):
        sides = np.zeros((directions, steps, sentences, width))
        for d in range(directions):
            part = layer * directions + d
            of_x, of_h, of_r = matrices[part]
            for n in range(sentences):
                last = steps if lengths is None else int(lengths[n])
                held = [each[part, n] for each in final]
                for t in range(last)[:: -1 if d else 1]:
                    x = of_x @ words[t, n] + biases[part][0]
                    h = of_h @ held[0] + biases[part][1]
                    if mode == "rnn_relu":
                        held = [relu(x + h)]
                    elif mode == "rnn_tanh":
                        held = [np.tanh(x + h)]
                    elif mode == "gru":
                        (xr, xz, xn), (hr, hz, hn) = np.split(x, 3), np.split(h, 3)
                        z, new = sigmoid(xz + hz), np.tanh(xn + sigmoid(xr + hr) * hn)
                        held = [(1 - z) * new + z * held[0]]
                    else:
                        i, f, g, o = np.split(x + h, 4)
                        c = sigmoid(f) * held[1] + sigmoid(i) * np.tanh(g)
                        c = c if clip is None else np.clip(c, *clip)
                        held = [of_r @ (sigmoid(o) * np.tanh(c)), c]
                    sides[d, t, n] = held[0]
                for each, value in zip(final, held, strict=True):
                    each[part, n] = value
        words = np.concatenate(sides, axis=-1)
    return words, final
