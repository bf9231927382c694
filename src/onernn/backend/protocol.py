"""What `open_backend` gives."""

from __future__ import annotations

from typing import Protocol

from onernn.backend.stack import Stack
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Weights


class Backend(Protocol):
    """Makes layers ready to run."""

    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> Stack:
        """A layer from its weights: one `RnnWeights`, or a list of one-layer ones.

        What the backend cannot run goes to the NumPy reference, which the layer's ``why`` tells;
        ``strict`` raises `UnsupportedError` instead. Raises `ShapeError` for weights that do not
        fit the spec.
        """
