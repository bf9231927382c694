"""The recurrent layer as an operator; a session prepares and runs it."""

from __future__ import annotations

from onernn.core.errors import ShapeError
from onernn.core.inference import Context
from onernn.core.operator import REQUIRED, define
from onernn.core.precision import OWN
from onernn.core.sizes import Size
from onernn.core.types import Type, sequences_of
from onernn.core.weights import RnnWeights
from onernn.operators import growth


def _layer_types(context: Context, x: Type, *states: Type | None) -> tuple[Type, ...]:
    """(y, h, c where the cell has one, the cell state of every word)."""
    spec = context.at.spec
    weights = context.at.weights
    first = weights if isinstance(weights, RnnWeights) else weights[0]
    dtype = first.iter.dtype.name
    if x.lod is None:
        return (Type(dtype),) * context.at.outputs
    axes = 2 if x.lod else 3
    *front, width = (None,) * axes if x.shape is None else x.shape
    if len(front) != axes - 1:
        raise ShapeError(f"x: expected {axes} axes, got {x}")
    context.same(width, Size.of(spec.input_size))
    batch = sequences_of(x) if x.lod else front[1]
    finals = {"h": spec.recurrent_size, "c": spec.hidden_size}

    def each_word(width: int) -> Type:
        return Type(dtype, (*front, Size.of(width)), x.lod)

    def final(width: int) -> Type:
        sizes = (spec.layers, spec.directions, batch, width)
        return Type(dtype, tuple(None if s is None else Size.of(s) for s in sizes), ())

    return (
        each_word(spec.output_size),
        *(final(finals[name]) for name in spec.cell.states),
        each_word(spec.hidden_size * (spec.output_size // spec.recurrent_size)),
    )


define(
    "Rnn",
    kind="layer",
    inputs="x h? c? attention?",
    attributes={"spec": REQUIRED, "weights": REQUIRED, "precision": OWN},
    outputs=4,
    type=_layer_types,
    compute=None,
    growth=growth.rnn,
)
