"""What the small symbols for each operator of MXNet are written with, and their list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from tests.frameworks.mxnet_graphs import Case

from onernn.ir.arrays import Array

CASES: list[Case] = []
S: Any = mx.sym


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    rng = np.random.default_rng((seed, *shape))
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, 9, shape).astype(dtype)
    return rng.uniform(-2, 2, shape).astype(dtype)


def given(spec: Any, seed: int) -> Array:
    return values(*spec, seed=seed) if isinstance(spec, tuple) else np.asarray(spec)


def case(name: str, build: Callable[..., Any], numpy: bool = False, **inputs: Any) -> None:
    """Inputs are arrays or shapes; those with a name in capitals are parameters."""
    arrays = {key: given(spec, seed) for seed, (key, spec) in enumerate(inputs.items())}
    CASES.append(
        Case(
            name,
            build,
            {key: a for key, a in arrays.items() if not key.isupper()},
            {key: a for key, a in arrays.items() if key.isupper()},
            numpy,
        )
    )


POSITIVE = np.abs(values(2, 3)) + np.float32(0.1)
SPECIAL = np.array([[-2.5, -1.5, -0.5, 0, 0.5], [1.5, 2.5, 7, -7, 1e-3]], np.float32)
IDS = np.array([[0, 3, 5], [4, 1, 1]], np.float32)
OUTSIDE = np.array([[-1, 0, 5], [6, 9, 2]], np.float32)
LENGTHS = np.array([4, 1, 3], np.float32)
DIVIDENDS = np.array([[5, -5, 5, -5, 0, 5.5], [3, 3, -6, 6, 7, -0.25]], np.float32)
DIVISORS = np.array([[3, 3, -3, -3, 3, 2], [0, -0.0, 3, 3, -2, -2]], np.float32)
