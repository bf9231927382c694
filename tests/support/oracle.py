"""Every cell once more: sentence by sentence, gate by gate, in float64, from the guide's equations.

Written apart from the package's reference and from its layouts' helpers, for tests to trust.
"""

from __future__ import annotations

from math import exp, tanh

import numpy as np

from onernn import Cell, RnnSpec, RnnWeights


def _logistic(a: float) -> float:
    return 1 / (1 + exp(-a)) if a > -700 else 0.0


LOGISTIC, TANH = np.vectorize(_logistic, otypes=[float]), np.vectorize(tanh, otypes=[float])
PLAIN = {
    Cell.RNN_TANH: TANH,
    Cell.RNN_RELU: lambda a: np.where(a > 0, a, 0.0),
    Cell.RNN_SIGMOID: LOGISTIC,
}


def run_oracle(
    spec: RnnSpec,
    layers: list[RnnWeights],
    sentences: list[np.ndarray],
    state: tuple[np.ndarray, ...],
    attention: list[np.ndarray] | None = None,
) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
    """Outputs of each sentence (T_n, O) and final states (L, D, N, O), all float64."""
    final = tuple(s.astype(np.float64) for s in state)
    outputs = []
    for n, words in enumerate(sentences):
        scale = None if attention is None else attention[n].astype(np.float64)
        sides = [words.astype(np.float64)] * spec.directions
        for layer in range(spec.layers):
            for d in range(spec.directions):
                backwards = d == 1 or spec.direction == "right2left"
                order = range(len(words))[:: -1 if backwards else 1]
                arrays = _arrays(layers[layer], d)
                held = [s[layer, d, n] for s in final]
                y = np.zeros((len(words), spec.recurrent_size))
                for t in order:
                    held = _step(spec, arrays, sides[d][t], held, scale, t)
                    y[t] = held[0]
                for s, value in zip(final, held, strict=True):
                    s[layer, d, n] = value
                sides[d] = y
            if spec.stacking == "framework" or layer == spec.layers - 1:
                sides = [_join(spec, sides)] * spec.directions
        outputs.append(sides[0])
    return outputs, final


def _join(spec: RnnSpec, sides: list[np.ndarray]) -> np.ndarray:
    if spec.direction == "bidirectional_sum":
        return sides[0] + sides[1]
    return np.concatenate(sides, axis=1)


def _arrays(weights: RnnWeights, d: int) -> dict[str, np.ndarray | None]:
    named = {"w": weights.layer, "u": weights.iter, "b": weights.bias}
    named |= {"p": weights.peephole, "proj": weights.projection}
    return {k: None if a is None else a[0, d].astype(np.float64) for k, a in named.items()}


def _step(spec, arrays, x, held, scale, t):
    w, u, b = arrays["w"], arrays["u"], arrays["b"]
    h = held[0]
    if b is None:
        b = np.zeros((spec.cell.bias_rows, spec.hidden_size))

    def a(gate: int, state: np.ndarray = h) -> np.ndarray:
        from_x = x.reshape(spec.gates, -1)[gate] if w is None else x @ w[:, gate]
        return from_x + b[gate] + state @ u[:, gate]

    if spec.cell in PLAIN:
        return [PLAIN[spec.cell](a(0))]
    if spec.cell is Cell.LSTM:
        c, p = held[1], np.zeros((3, spec.hidden_size)) if arrays["p"] is None else arrays["p"]
        i, f = LOGISTIC(a(0) + p[0] * c), LOGISTIC(a(1) + p[1] * c)
        new = f * c + i * TANH(a(2))
        out = LOGISTIC(a(3) + p[2] * new) * TANH(new)
        return [out if arrays["proj"] is None else out @ arrays["proj"], new]
    keep, reset = LOGISTIC(a(0)), LOGISTIC(a(1))
    if spec.cell in (Cell.LBR_GRU, Cell.LBR_AUGRU):
        from_x = x.reshape(3, -1)[2] if w is None else x @ w[:, 2]
        candidate = TANH(from_x + b[2] + reset * (h @ u[:, 2] + b[3]))
    else:
        candidate = TANH(a(2, reset * h))
    if scale is not None:
        keep = (1 - scale[t]) * keep
    if spec.update == "replace":
        keep = 1 - keep
    return [keep * h + (1 - keep) * candidate]
