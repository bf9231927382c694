"""Random samples: the seed is an input, so that equal inputs lead to equal outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context
from onernn.ir.operator import REQUIRED, op
from onernn.ir.types import Size, Type
from onernn.ops.growth import results
from onernn.ops.rules import broadcast

_DRAWS: dict[str, Callable[..., Any]] = {
    "uniform": lambda random, size, low, high: random.uniform(low, high, size),
    "normal": lambda random, size, mean, deviation: random.normal(mean, deviation, size),
    "gamma": lambda random, size, shape, scale: random.gamma(shape, scale, size),
    "exponential": lambda random, size, rate: random.exponential(1 / rate, size),
    "poisson": lambda random, size, rate: random.poisson(rate, size),
}


def _sample_type(context: Context, seed: Type, *parameters: Type) -> Type:
    front = broadcast(*(each.shape for each in parameters))
    more = map(Size.of, context.attrs.shape)
    return Type(context.attrs.dtype, None if front is None else (*front, *more))


@op(
    "Sample",
    kind="mixes",
    since=0,
    type=_sample_type,
    growth=lambda node, *values: 8 * results(node, *values),
)
def sample(
    seed: Array,
    *parameters: Array,
    distribution: str = REQUIRED,  # type: ignore[assignment]
    shape: tuple[int, ...] = (),
    stream: int = 0,
    dtype: str = "float32",
) -> Array:
    """Returns samples of a distribution: an array of ``shape`` for each element of its parameters.

    ``stream``: nodes with the same seed and different streams draw different samples.
    """
    if distribution not in _DRAWS:
        raise ShapeError(f"distribution: expected one of {', '.join(_DRAWS)}, got {distribution!r}")
    if seed.size != 1 or seed.dtype.kind not in "iu" or seed.reshape(()) < 0:
        raise ShapeError(f"seed: expected one integer of at least 0, got {seed.tolist()}")
    random = np.random.default_rng([int(seed.reshape(())), stream])
    each = np.broadcast_arrays(*parameters)
    size = (*each[0].shape, *shape)
    wide = [one.reshape(*one.shape, *[1] * len(shape)) for one in each]
    try:
        return np.asarray(_DRAWS[distribution](random, size, *wide)).astype(dtype)
    except ValueError as error:
        raise ShapeError(f"{distribution}: {error}") from None
