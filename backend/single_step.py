"""One step of a layer whose initial state has other channels than the state that it gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn.backend.gradients import Gradients, Tape
from onernn.backend.protocol import Backend
from onernn.backend.run_arguments import State, checked_numbers
from onernn.core.arrays import Array, sealed
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights


class SingleStep:
    """A layer over one step, T = 1, with weights iter (1, D, R, G, O) of any R.

    oneDNN's RNN developer guide asks for channels(src_iter) = channels(dst_iter) where T > 1 only:
    here src_iter has R channels, and dst_iter has O, or those of the projection. W x + U h is one
    product, that of [W; U] and [x; h], so this is an ordinary layer that reads both, on any backend
    and in any of its data types.

    Raises `ShapeError` for weights that do not fit, and `UnsupportedError` for more than one layer
    and for GRU cells, which add a part of the old state to the new one (the guide does not say so;
    oneDNN refuses them).
    """

    def __init__(
        self, backend: Backend, spec: RnnSpec, weights: RnnWeights, **options: Any
    ) -> None:
        """``options``: those of `Backend.prepare`."""
        if spec.layers > 1:
            raise UnsupportedError("a single step is one layer; make one of each layer's weights")
        if spec.cell.is_gru:
            raise UnsupportedError(
                f"{spec.cell.name} adds a part of src_iter to dst_iter: both have the same channels"
            )
        if weights.layer is None:
            raise UnsupportedError("a single step has weights layer, got None")
        D, R = spec.directions, weights.iter.shape[2]
        rest = (spec.gates, spec.hidden_size)
        if weights.iter.shape != (1, D, R, *rest):
            expected = f"(1, {D}, R, {rest[0]}, {rest[1]})"
            raise ShapeError(f"weights iter: expected {expected}, got {weights.iter.shape}")
        dtype = weights.iter.dtype
        none = np.zeros((1, D, spec.recurrent_size, *rest), dtype)
        plain = {**weights.arrays, "iter": sealed(none)}
        RnnWeights(**plain).check(spec)
        # Each direction reads the states of both, the other one's times zero.
        whole = np.zeros((1, D, spec.input_size + D * R, *rest), dtype)
        whole[:, :, : spec.input_size] = weights.layer
        for d in range(D):
            whole[:, d, spec.input_size + d * R :][:, :R] = weights.iter[:, d]
        self.spec, self.state_size = spec, R
        joined = spec.one_layer(whole.shape[2], spec.direction)
        self.layer = backend.prepare(
            joined, RnnWeights(**{**plain, "layer": sealed(whole)}), **options
        )

    def run(self, x: Array, state: State | None = None) -> tuple[Array, State]:
        """(y, final state). x: (1, N, I); state: (h (1, D, N, R),) or (h, c (1, D, N, O)).

        Without a state it is zero. Raises `ShapeError` naming the argument.
        """
        joined, begin = self._joined(x, state)
        y, final = self.layer.run(joined, begin)
        return np.asarray(y), final

    def run_training(self, x: Array, state: State | None = None) -> tuple[Array, State, Tape]:
        """`run`, and a tape for one `backward`."""
        joined, begin = self._joined(x, state)
        y, final, tape = self.layer.run_training(joined, begin)
        return np.asarray(y), final, tape

    def backward(self, tape: Tape, dy: Array | None, dstate: State | None = None) -> Gradients:
        """See `Stack.backward`; the first of the state's gradients has R channels."""
        found = self.layer.backward(tape, dy, dstate)
        D, R, size = self.spec.directions, self.state_size, self.spec.input_size
        dx, dh = np.split(np.asarray(found.x), [size], axis=2)
        dh = dh.reshape(1, dh.shape[1], D, R).swapaxes(1, 2)
        arrays = found.layers[0].arrays
        whole = arrays.pop("layer")
        parts = [whole[:, d : d + 1, size + d * R :][:, :, :R] for d in range(D)]
        weights = RnnWeights(
            **{**arrays, "layer": whole[:, :, :size], "iter": np.concatenate(parts, axis=1)}
        )
        return Gradients(dx, (dh, *found.state[1:]), (weights,))

    def _joined(self, x: Array, state: State | None) -> tuple[Array, State]:
        """x and h side by side, and the state of a layer that has read h."""
        real = np.dtype(np.float64 if self.layer.dtype == "f64" else np.float32)
        x = np.asarray(x)
        if x.ndim != 3 or x.shape[0] != 1 or x.shape[2] != self.spec.input_size:
            raise ShapeError(f"x: expected (T=1, N, {self.spec.input_size}), got {x.shape}")
        parts, N, D = self.spec.cell.states, x.shape[1], self.spec.directions
        if state is None:
            widths = (self.state_size, self.spec.hidden_size)[: len(parts)]
            state = tuple(np.zeros((1, D, N, width), real) for width in widths)
        if len(state) != len(parts):
            raise ShapeError(f"state: expected ({', '.join(parts)}), got {len(state)} arrays")
        h = np.asarray(state[0])
        if h.shape != (1, D, N, self.state_size):
            raise ShapeError(
                f"state h: expected (L, D, N, R) = {(1, D, N, self.state_size)}, got {h.shape}"
            )
        h = checked_numbers("state h", h, real)
        rows = h[0].swapaxes(0, 1).reshape(1, N, D * self.state_size)
        joined = np.concatenate([checked_numbers("x", x, real), rows], axis=2)
        zeros = np.zeros((1, D, N, self.spec.recurrent_size), real)
        return joined, (zeros, *state[1:])
