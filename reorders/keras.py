"""Converts weights of Keras 2 and 3's SimpleRNN, LSTM and GRU to the pivot layout, and back.

Names, layouts and formulas: documentation and source of keras.layers.SimpleRNN, LSTM, GRU and
Bidirectional. A GRU computes h = z h' + (1-z) h~. With reset_after, the reset gate is applied after
the product, and the bias has two rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.ir.errors import ShapeError
from onernn.ir.spec import Activation, Direction
from onernn.reorders.layers import (
    SIMPLE,
    Arrays,
    Framework,
    NamedArrays,
    PivotLayer,
    gates_of,
)


def _place(name: str, layer: int, direction: int, layers: int, directions: int) -> str:
    side = ("forward/", "backward/")[direction] if directions == 2 else ""
    return f"{layer}/{side}{name}" if layers > 1 else side + name


GATES = gates_of(lstm="i f c o", gru="u r o")
NAMES = NamedArrays(GATES, _place, ("kernel", "recurrent_kernel"), ("bias",), turned=False)


def read(
    arrays: Arrays,
    *,
    reset_after: bool | None = None,
    function: str = "tanh",
    activations: tuple[Activation, ...] | None = None,
    merge: Direction = "bidirectional_concat",
) -> PivotLayer:
    """Returns a layer from kernel (I, G*O), recurrent_kernel (O, G*O) and bias.

    Names in stacks begin with 0/, 1/, ..., in a Bidirectional with forward/ and backward/.
    `from_cudnn` reads arrays of CuDNNLSTM and CuDNNGRU.

    ``reset_after``: Keras's option of GRU layers. If it is None, the shape of the bias decides;
    without a bias it is true, Keras's default. ``function``: the activation that a SimpleRNN uses.
    ``activations``: the cell's functions, None for the usual ones. ``merge``: how Bidirectional
    merges the outputs of both directions. Raises `ShapeError` that names the array.
    """
    arrays = from_cudnn(arrays)
    layers, sides, _ = NAMES.sizes(arrays)
    bias = arrays.get(NAMES.place("bias", 0, 0, layers, sides))
    if reset_after is None:
        reset_after = bias is None or np.ndim(bias) == 2
    return NAMES.read_stack(
        arrays,
        linear_before_reset=reset_after,
        function=function,
        direction=merge if sides == 2 else None,
        activations=activations,
    )


def is_cudnn(arrays: Arrays, prefix: str = "") -> bool:
    """Returns whether arrays belong to a CuDNN layer, whose bias (2*G*O,) joins two biases."""
    recurrent, bias = arrays.get(f"{prefix}recurrent_kernel"), arrays.get(f"{prefix}bias")
    if recurrent is None or bias is None:
        return False
    sizes = np.shape(recurrent)
    gates = {3, 4} & {sizes[1] // max(sizes[0], 1)} if len(sizes) == 2 else set()
    return bool(gates) and np.shape(bias) == (2 * sizes[1],)


def from_cudnn(arrays: Arrays) -> Arrays:
    """Converts arrays of CuDNNLSTM and CuDNNGRU to the layout of LSTM and GRU; returns all other
    arrays unchanged.

    Each gate's block of kernel (I, O) has the memory order (O, I). The blocks of recurrent_kernel
    are transposed. The bias (2*G*O,) has the biases of x, followed by the biases of h. An LSTM's
    biases are added; a GRU's become the two rows of a layer with reset_after. Source:
    _convert_rnn_weights in Keras 2's hdf5_format.py.
    """
    result = dict(arrays)
    for name in arrays:
        prefix = name.removesuffix("recurrent_kernel")
        if prefix == name or f"{prefix}kernel" not in arrays or not is_cudnn(arrays, prefix):
            continue
        kernel, recurrent, bias = (
            np.asarray(arrays[f"{prefix}{own}"]) for own in ("kernel", "recurrent_kernel", "bias")
        )
        hidden = recurrent.shape[0]
        gates = recurrent.shape[1] // hidden
        if kernel.ndim != 2 or kernel.shape[1] != gates * hidden:
            raise ShapeError(f"{prefix}kernel: expected (I, {gates * hidden}), got {kernel.shape}")
        blocks = [block.reshape(hidden, -1).T for block in np.hsplit(kernel, gates)]
        result[f"{prefix}kernel"] = np.hstack(blocks)
        blocks = [block.T for block in np.hsplit(recurrent, gates)]
        result[f"{prefix}recurrent_kernel"] = np.hstack(blocks)
        rows = bias.reshape(2, -1)
        result[f"{prefix}bias"] = rows.sum(0, dtype=bias.dtype) if gates == 4 else rows
    return result


FRAMEWORK = Framework(
    "keras",
    "Keras",
    "kernel (I, G*O), recurrent_kernel (O, G*O)",
    "bias (G*O,); reset_after: (2, G*O)",
    GATES,
    read,
    NAMES.write,
    limits=replace(
        SIMPLE,
        directions=("left2right", "bidirectional_concat", "bidirectional_sum"),
        functions=None,
    ),
)
