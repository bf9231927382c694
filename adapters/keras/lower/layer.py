"""One call of a Keras layer as the rules read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from onernn.adapters.keras.read import Layer, Reader, inner_layer
from onernn.adapters.lowering import GraphBuilder, NativeOperator, Results
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import NativeOp

if TYPE_CHECKING:
    from onernn.adapters.keras.lower.model import Lowering

INERT = frozenset(
    """name trainable dtype seed dropout recurrent_dropout rate noise_shape stddev momentum
    unit_forget_bias implementation use_cudnn input_length input_dim autocast batch_input_shape
    batch_shape input_shape activity_regularizer synchronized fused l1 l2""".split()
)
"""Options without effect on what is run: training's, and how the same numbers are computed."""
T = TypeVar("T")
_ENDINGS = ("_initializer", "_regularizer", "_constraint")


class Tensor(NamedTuple):
    """A value, the mask of its steps (N, T), "" where it has none; and the steps that the mask
    leaves, as sequences, where the layer before has them."""

    value: str
    mask: str = ""
    words: str = ""


Made = str | Tensor | Sequence[Tensor]
"""What a rule gives: a value under the mask of the first input, or tensors with their own masks."""


class KerasLayer(NativeOperator):
    """A layer with the graph it is lowered into.

    ``tensors``: those that it is called with, in order. ``reader`` gives its weights.
    ``compute``: the dtype it computes in. ``major``: of the Keras that wrote the file.
    ``path``: its name with those of the models around it, ``depth`` of these. ``wraps``: another
    layer takes its weights.
    """

    def __init__(
        self,
        lowering: Lowering,
        layer: Layer,
        reader: Reader | None,
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        path: str = "",
        depth: int = 0,
    ) -> None:
        config = {k: v for k, v in layer.config.items() if v is not None}
        options = {k: v for k, v in (options or {}).items() if v is not None}
        if options.pop("training", False):
            raise UnsupportedError("called with training=True: only inference is run")
        mask = options.pop("mask", None)
        given = {f"{name}=": value for name, value in options.items()}
        inert = INERT | {name for name in config if name.endswith(_ENDINGS)}
        at = NativeOp(layer.position, layer.kind, path or layer.name)
        super().__init__(at, {}, {}, {**config, **given}, inert)
        self.lowering, self.layer, self.config = lowering, layer, layer.config
        self.builder: GraphBuilder = lowering.builder
        self.major = lowering.major
        self.path, self.depth, self.wraps = path, depth, False
        self._reader, self.arguments = reader, list(arguments)
        self.compute = _compute_dtype(layer.config.get("dtype"))
        if mask:
            self.arguments[0] = self._under(self.arguments[0], mask)

    # What it is called with.

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the first argument, or of all where each is one."""
        given = self.arguments
        if len(given) == 1 and isinstance(given[0], list):
            given = given[0]
        if not all(isinstance(each, Tensor) for each in given):
            raise UnsupportedError("called with constants, or with tensors in an unknown structure")
        return [self.cast(each) for each in given]

    @property
    def tensor(self) -> Tensor:
        found = self.tensors
        if len(found) != 1:
            raise UnsupportedError(f"expected to be called with one tensor, got {len(found)}")
        return found[0]

    @property
    def x(self) -> str:
        return self.tensor.value

    @property
    def floats(self) -> str:
        """The only input, in the layer's float type where it is integers."""
        x = self.x
        return x if self.dtype(x).startswith("float") else self.emit("Cast", x, to=self.compute)

    def cast(self, tensor: Tensor) -> Tensor:
        """A float tensor in the type that the layer computes in; others as they are."""
        dtype = self.builder.type_of(tensor.value).dtype
        return self.cast_to(tensor, self.compute) if str(dtype).startswith("float") else tensor

    def cast_to(self, tensor: Tensor, dtype: str | None) -> Tensor:
        if dtype in (None, self.builder.type_of(tensor.value).dtype):
            return tensor
        return Tensor(self.emit("Cast", tensor.value, to=dtype), tensor.mask)

    def _under(self, given: Any, mask: Any) -> Any:
        """Tensors under the masks that the call names."""
        if isinstance(given, list):
            masks = mask if isinstance(mask, list) else [mask]
            pairs = zip_longest(given, masks)
            return [self._under(*pair) if pair[1] else pair[0] for pair in pairs]
        if not isinstance(given, Tensor) or not isinstance(mask, Tensor):
            raise UnsupportedError("argument mask: expected a tensor for each tensor")
        flags = mask.value
        if self.dtype(flags) != "bool":
            flags = self.emit("Cast", flags, to="bool")
        return given._replace(mask=flags, words=given.words if flags == given.mask else "")

    def option(self, name: str) -> Any:
        """An argument of the call, None where it is absent."""
        return self.attribute(f"{name}=", None)

    # What it is.

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.attribute(name, default))

    def integer(self, name: str, default: int | None = None) -> int:
        found = self.attribute(name, default)
        if not isinstance(found, int) or isinstance(found, bool):
            raise UnsupportedError(f"attribute {name}={found!r}: expected an integer")
        return found

    def number(self, name: str, default: float) -> float:
        """A number; Keras 3 may write an array of one."""
        found = self.attribute(name, None)
        if isinstance(found, dict) and isinstance(found.get("config"), dict):
            found = found["config"].get("value")
        if found is None:
            return default
        if not isinstance(found, int | float):
            raise UnsupportedError(f"attribute {name}={found!r:.100}: expected a number")
        return float(found)

    def integers(self, name: str, count: int, default: int) -> tuple[int, ...]:
        """A number for each axis; one stands for all."""
        found = self.attribute(name, None)
        found = default if found is None else found
        found = tuple(found) if isinstance(found, list | tuple) else (found,) * count
        if len(found) != count or not all(type(each) is int for each in found):
            raise UnsupportedError(f"attribute {name}={found!r}: expected {count} integers")
        return found

    def inner(self, told: Mapping[str, Any], *path: str) -> KerasLayer:
        """A layer that this one holds, with its weights; it is not called by itself."""
        layer = inner_layer(told, None, position=self.layer.position)
        reader = self._reader
        for name in path:
            reader = reader and reader.inside(name)
        return KerasLayer(self.lowering, layer, reader)

    def weights(self, *names: str, inside: str = "") -> list[Array]:
        """The layer's own variables, or those of its cell, in the type that it computes in."""
        if self._reader is None:
            raise UnsupportedError("its weights are not in the file")
        found = (self._reader.inside(inside) if inside else self._reader).take(names)
        for name, array in zip(names, found, strict=True):
            if array.dtype.name not in ("float32", "float64"):
                raise UnsupportedError(f"{name}: {array.dtype} numbers, not float32 or float64")
        return [array.astype(self.compute, copy=False) for array in found]

    def read(self, rule: Callable[[KerasLayer], T]) -> T:
        """What a rule gives. Raises `UnsupportedError` for what it did not read."""
        made: list[T] = []

        def run(op: KerasLayer) -> Results:
            made.append(rule(op))
            return ()

        self.lowered(run)
        if self._reader is not None and not self.wraps:
            self._reader.finish()
        return made[0]

    # What becomes of it.

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.emit(op, inputs, attributes)

    def emit_many(self, op: str, count: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        return self.builder.emit_many(op, inputs, count, attributes)

    def constant(self, array: Any, name: str = "constant") -> str:
        return self.builder.constant(np.asarray(array), f"{self.layer.name}/{name}")

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64), "ints")

    def scalar(self, value: float, like: str) -> str:
        """A number in the type of a value."""
        return self.constant(np.asarray(value, self.dtype(like)), "number")

    def dtype(self, value: str) -> str:
        found = self.builder.type_of(value).dtype
        if found is None:
            raise UnsupportedError("its input's type is not known")
        return found

    def shape(self, value: str) -> tuple[int | None, ...]:
        """The sizes of a value, None where a run tells."""
        found = self.builder.type_of(value)
        if found.shape is None:
            raise UnsupportedError("its input's number of axes is not known")
        return tuple(found.counts)

    def rank(self, value: str) -> int:
        return len(self.shape(value))

    def transposed(self, value: str, *perm: int) -> str:
        return self.emit("Transpose", value, perm=perm)

    def channels_first(self, value: str) -> str:
        """(N, ..., C) -> (N, C, ...)."""
        rank = self.rank(value)
        return self.transposed(value, 0, rank - 1, *range(1, rank - 1))

    def channels_last(self, value: str) -> str:
        rank = self.rank(value)
        return self.transposed(value, 0, *range(2, rank), 1)


def _compute_dtype(told: Any) -> str:
    """What a dtype or a policy computes in. Raises `UnsupportedError` for all but floats."""
    name = told
    if isinstance(told, dict):
        name = told.get("config", {}).get("name") if isinstance(told.get("config"), dict) else told
    if name is None:
        return "float32"
    if name not in ("float32", "float64"):
        raise UnsupportedError(f"dtype {name!r:.100}: only float32 and float64 are computed in")
    return str(name)


Rule = Callable[[KerasLayer], Made]
RULES: dict[str, Rule] = {}
"""By the name of the class."""
PASSING: set[str] = set()
"""Those that hand on the mask of their first input; the others end it."""


def rule(*kinds: str, masks: bool = False) -> Callable[[Rule], Rule]:
    """Enters a rule; ``masks``: the layer hands on the mask of its first input."""

    def enter(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
            if masks:
                PASSING.add(kind)
        return function

    return enter
