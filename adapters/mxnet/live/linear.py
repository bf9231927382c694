"""A FullyConnected in front of an RNN operator: its numbers in the layer's, and gradients back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onernn.core.arrays import Array
from onernn.reorders import mxnet


def folded(flat: Array, linear: Sequence[Array], stack: mxnet.Stack) -> Array:
    """The parameter vector of the layer over what the projection reads.

    ``linear``: weight (P, I), and bias (P,) if there is one. Made in float64 and rounded once.
    """
    weight, *bias = (array.astype(np.float64) for array in linear)
    named = dict(mxnet.split(flat, stack))
    for side in "lr"[: stack.directions]:
        of_x = named[f"{side}0_i2h_weight"].astype(np.float64)
        named[f"{side}0_i2h_weight"] = (of_x @ weight).astype(flat.dtype)
        for added in bias:
            moved = named[f"{side}0_i2h_bias"] + of_x @ added
            named[f"{side}0_i2h_bias"] = moved.astype(flat.dtype)
    return mxnet.join(named, stack)


def unfolded(
    gradients: Mapping[str, Array], flat: Array, linear: Sequence[Array], stack: mxnet.Stack
) -> tuple[dict[str, Array], list[Array]]:
    """Gradients of the layer's own parts and of ``linear``, from those of the parts `folded`."""
    (weight, *bias), named = linear, mxnet.split(flat, stack)
    own, of_linear = dict(gradients), [np.zeros_like(array) for array in linear]
    for side in "lr"[: stack.directions]:
        of_x = named[f"{side}0_i2h_weight"]
        d_of_x, d_bias = (gradients[f"{side}0_i2h_{kind}"] for kind in ("weight", "bias"))
        own[f"{side}0_i2h_weight"] = d_of_x @ weight.T
        of_linear[0] += of_x.T @ d_of_x
        for added in bias:
            own[f"{side}0_i2h_weight"] += np.outer(d_bias, added)
            of_linear[1] += of_x.T @ d_bias
    return own, of_linear
