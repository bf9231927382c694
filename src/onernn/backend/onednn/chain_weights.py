"""The constants of a chain of products: weights gate by gate, biases, scales, packed once."""

from __future__ import annotations

import numpy as np

from onernn.backend.creation_lock import CREATION
from onernn.backend.onednn.library import Library
from onernn.backend.onednn.matmul import MatmulPrimitive
from onernn.backend.onednn.memory import Descriptor, Memory, reordered
from onernn.backend.onednn.precision import Precision
from onernn.ir.arrays import Array
from onernn.ir.precision import PartScales
from onernn.ir.weights import RnnWeights


class ChainWeights:
    """Weights gate by gate, (K, O) each, with the update gate's sign turned; packed once."""

    def __init__(
        self, library: Library, weights: RnnWeights, precision: Precision, scales: PartScales
    ) -> None:
        self._library, self._precision, self._scales = library, precision, scales
        gates = weights.iter.shape[3]
        sign = np.ones((gates, 1), np.float32)
        sign[0] = -1 if gates == 3 else 1  # the update gate of GRUs
        self._sign = sign
        self.layer = None if weights.layer is None else weights.layer[0, 0] * sign
        self._iter = weights.iter[0, 0] * sign
        bias = np.zeros((gates + 1, weights.iter.shape[4]), np.float32)
        if weights.bias is not None:
            bias[: weights.bias.shape[2]] = weights.bias[0, 0]
        bias[:gates] *= sign
        self._bias = bias
        self._packed: list[tuple[tuple[str, str, int], Memory]] = []

    def add_bias(self, x: Array, gate: int, out: Array) -> None:
        """The share of an input that is projected already: its columns, with bias and sign."""
        units = self._bias.shape[1]
        np.multiply(x[:, gate * units : (gate + 1) * units], self._sign[gate], out=out)
        out += self._bias[gate]

    def memory(self, name: str, side: str, gate: int, primitive: MatmulPrimitive) -> Memory:
        """The constant behind an argument: weights, bias, scales or zero point."""
        key, layout = (name, side, gate), primitive.layouts[name]
        with CREATION:
            for held, memory in self._packed:
                if held == key and memory.descriptor == layout:
                    return memory
            memory = self._make(name, side, gate, layout)
            self._packed.append((key, memory))
            return memory

    def _make(self, name: str, side: str, gate: int, layout: Descriptor) -> Memory:
        if name == "bias":
            row = len(self._bias) - 1 if side == "iter" else gate
            return Memory(layout, np.ascontiguousarray(self._bias[row]))
        if name == "src_zero_point":
            return Memory(layout, np.array([128], np.int32))
        if name in ("src", "dst", "scratchpad"):
            return Memory(layout)
        if name == "src_scale":
            return Memory(layout, np.array([1 / 127], np.float32))
        whole = self._iter if side == "iter" or self.layer is None else self.layer
        array = np.ascontiguousarray(whole[:, gate])
        factors = getattr(self._scales, side)
        scale = np.abs(array).max(axis=0) / 127 if factors is None else 1 / factors[gate]
        scale[scale == 0] = 1
        if name == "weights_scale":
            return Memory(layout, scale.astype(np.float32))
        kind = "f32"
        if self._precision.weights == "s8":
            kind, array = "s8", np.rint(array / scale).clip(-127, 127).astype(np.int8)
        plain = Memory(Descriptor.tagged(self._library, array.shape, kind, "ab"), array)
        return reordered(plain, layout)
