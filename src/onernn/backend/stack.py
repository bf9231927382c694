"""A layer or stack that is ready to run and to train. It checks arguments, and returns results in
the layout of x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

import numpy as np

from onernn.backend.arguments import (
    Gradients,
    Layout,
    State,
    Tape,
    TapeError,
    WeightGradients,
    check_gradient,
    check_input,
    check_state,
    check_sums,
    lay_out,
)
from onernn.backend.onednn.precision import DTYPES, Quantization, U8Options, unknown
from onernn.backend.process import CREATION
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import NOTHING, NamedTuple, dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Layers, RnnWeights, Weights, layers_of

if TYPE_CHECKING:
    from onernn.backend.layer_walk import LayerWalk


class Backend(Protocol):
    """A factory of layers that are ready to run.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> from onernn.backend import open_backend
    >>> open_backend("reference").prepare(spec, weights).kernel
    'NumPy reference'
    """

    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> Stack:
        """Returns a layer from its weights: one `RnnWeights`, or a sequence of them with one layer
        each.

        If the backend cannot run the layer, the NumPy reference runs it, and the layer's ``why``
        says so. With ``strict``, raises `UnsupportedError` instead. Raises `ShapeError` for weights
        that do not fit the spec.
        """


_FLOAT32 = np.dtype(np.float32)


class StackKernel(Protocol):
    """Runs all layers and directions of a stack, on arguments that were checked before."""

    def takes(self, x: Batch, initial: State) -> bool:
        """Returns whether the kernel's results are right for this batch."""

    def run_again(self, x: Any, state: Any) -> tuple[Array, State] | None:
        """Returns the result for a dense batch that needs no conversion, None for any other
        batch.
        """

    def run(self, x: Batch, initial: State, attention: Batch | None) -> tuple[Array, State]:
        """Returns (y, final states) for ragged or dense (T, N, I) x; y is (W, D*O) or (T, N,
        D*O).
        """

    def cache_info(self) -> dict[str, int]:
        """Returns how many primitives were found and created so far."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """A stack's kernel for training. ``why``: why oneDNN does not train the stack, "" if no reason
    is needed.
    """

    walk: LayerWalk
    name: str
    why: str


class Origin(NamedTuple):
    """The arguments from which a stack was prepared, for pickling.

    ``packed``: see `Layers`; only the same kernels can use it.
    """

    backend: Backend
    spec: RnnSpec
    weights: Weights
    packed: Mapping[Any, Any]
    options: Mapping[str, Any]


_Prepare = TypeVar("_Prepare", bound=Callable[..., "Stack"])


def picklable(prepare: _Prepare) -> _Prepare:
    """Decorates `Backend.prepare`. The stacks that it returns keep its arguments in their field
    ``origin``, so that they can be pickled.
    """

    @wraps(prepare)
    def remember(
        backend: Backend,
        spec: RnnSpec,
        weights: Weights,
        *,
        packed: Mapping[Any, Any] = NOTHING,
        **options: Any,
    ) -> Stack:
        layers = layers_of(spec, weights)
        layers.packed.update(packed)
        stack = prepare(backend, spec, layers, **options)
        source = weights if isinstance(weights, RnnWeights) else tuple(weights)
        stack.origin = Origin(backend, spec, source, layers.packed, options)
        return stack

    return remember  # type: ignore[return-value]


def _prepare_again(origin: Origin) -> Stack:
    backend: Any = origin.backend
    arguments = origin.spec, origin.weights
    return backend.prepare(*arguments, packed=origin.packed, **origin.options)


class LayerBackend:
    """A backend whose subclasses implement `stack`; it checks data types and options for them.

    ``dtypes``: the data types that the backend knows.
    """

    dtypes: Sequence[str] = DTYPES

    @picklable
    def prepare(
        self,
        spec: RnnSpec,
        weights: Weights,
        *,
        dtype: str = "f32",
        strict: bool = False,
        **quantization: Unpack[Quantization],
    ) -> Stack:
        """Implements `Backend.prepare`.

        design/0020 and 0013 describe bf16 and f16; design/0034 describes u8, int8-dynamic and
        int8-weights. ``data_scale`` applies to x in the first layer. On oneDNN, ``weights_scales``
        and ``projection_scales`` need a ``data_scale``, and ``scales`` must have one scale for x
        and h.
        """
        if dtype not in self.dtypes:
            raise UnsupportedError(unknown(dtype))
        layers = layers_of(spec, weights)
        options = U8Options.of(spec, dtype, **quantization)
        try:
            return self.stack(spec, layers, dtype, options, strict)
        except UnsupportedError as error:
            # imported only if a layer needs it
            from onernn.backend.reference import reference_instead

            return reference_instead(spec, layers, error, strict)

    def stack(
        self, spec: RnnSpec, layers: Layers, dtype: str, options: U8Options | None, strict: bool
    ) -> Stack:
        """Returns the layer on this backend. Raises `UnsupportedError` if the backend cannot run
        it.
        """
        raise NotImplementedError


class Stack:
    """A layer or stack that is ready to run; threads may share it.

    ``kernel`` names the implementation. ``why`` says why no faster implementation runs ("" if it is
    the fastest). ``backend`` is the backend's name for `open_backend`.

    A backend passes the `StackKernel`, its ``name``, and for `explain` how it ``reads`` x.
    ``real``: the dtype of inputs and results. ``compiled``: the `CompiledStack` that the engine may
    call directly instead of the kernel, or None. ``other``: the stack that runs batches for which
    the kernel's results would be wrong. ``trainer`` returns the trainer; it is called at the first
    use, because many layers never train. It raises `UnsupportedError` if nothing can train the
    layer.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> from onernn.backend import open_backend
    >>> stack = open_backend().prepare(spec, weights)
    >>> y, (h,) = stack.run(np.ones((4, 1, 2), "f4"))
    >>> y.shape, h.shape
    ((4, 1, 3), (1, 1, 1, 3))
    """

    origin: Origin | None = None

    def __init__(
        self,
        spec: RnnSpec,
        dtype: str,
        kernel: StackKernel,
        trainer: Callable[[], Trainer],
        *,
        backend: str,
        name: str,
        reads: str,
        why: str = "",
        real: np.dtype[Any] = _FLOAT32,
        other: Stack | None = None,
        compiled: Any = None,
    ) -> None:
        self.spec, self.dtype, self.backend, self.kernel, self.why = spec, dtype, backend, name, why
        self._stack_kernel, self._real, self._other = kernel, real, other
        self.compiled = compiled
        self.new_trainer, self._reads = trainer, reads
        self._trainer: Trainer | None = None

    def __reduce__(self) -> Any:
        """Pickles the stack's arguments; unpickling prepares the layer again for the current
        CPU.
        """
        if self.origin is None:
            raise UnsupportedError(
                "only layers that a backend has prepared can be pickled: use"
                " open_backend(...).prepare(spec, weights)"
            )
        return _prepare_again, (self.origin,)

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """Returns (y, state). x: `Ragged` (W, I) or (T, N, I) float32; state: (h,) or (h, c), each
        (L, D, N, O).

        y is like x, with O (or D*O) channels. ``layout``: the layout of dense x, attention and y,
        "tnc" or "ntc". x may have any strides: `explain` says which arrays are read in place and
        which are copied. The final state is the state at each sequence's own end, in the caller's
        order. A sequence of length zero keeps its initial state. Raises `ShapeError` that names the
        argument. Writes nothing into the caller's arrays.
        """
        if attention is None and layout == "tnc":
            if (
                isinstance(x, Ragged)
                and len(x) == 1
                and x.data.shape[1:] == (self.spec.input_size,)
            ):
                # a single sequence runs as a dense batch, without sorting
                dense, state = self.run(x.data[:, None], state)
                return x.with_data(data_of(dense)[:, 0]), state
            result = self._stack_kernel.run_again(x, state)
            if result is not None:
                return result
        arguments = (x, state, attention, layout)
        x, initial, attention = check_input(self.spec, x, state, attention, self._real, layout)
        if self._other is not None and not self._stack_kernel.takes(x, initial):
            return self._other.run(*arguments)
        y, final = self._stack_kernel.run(x, initial, attention)
        return _frame(x, y, layout), final

    @property
    def mixes_rows(self) -> bool:
        """Whether a sequence's results depend on the other sequences of its batch.

        oneDNN's u8 takes its scale from the whole batch unless a scale is passed.
        """
        options = self.origin.options if self.origin else {}
        parts = options.get("scales") or ()
        has_scale = options.get("data_scale") or (parts and all(part.data for part in parts))
        return self.dtype == "u8" and self.backend != "kernels" and not has_scale

    def explain(self) -> str:
        """Returns one line: cell, direction, dtype, kernel, why no faster kernel runs, which inputs
        are copied, and how many threads the kernels use.
        """
        reason = f" ({self.why})" if self.why else ""
        threads = f"; threads: {self.compiled.threads}" if self.compiled else ""
        return (
            f"{self.spec.cell.name} {self.spec.direction}, {self.dtype}, {self.kernel}{reason};"
            f" x: {self._reads}{threads}"
        )

    def trainer(self) -> Trainer:
        """Returns the trainer; the first call makes it. Raises `UnsupportedError` if nothing can
        train the layer.
        """
        with CREATION:
            self._trainer = self._trainer or self.new_trainer()
            return self._trainer

    def run_training(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State, Tape]:
        """Runs like `run`, and also returns a tape for one `backward`. The caller may change the
        arguments afterwards.

        Kernels and oneDNN train in f32 and bf16. oneDNN never trains two kinds of layers: AUGRU
        cells, whose gradients it computes wrong, and bf16 LSTM with projection, for which it has no
        backward pass. The kernels train both kinds, or the NumPy reference does in float32, and
        ``tape.why`` says so. A strict layer raises `UnsupportedError` instead of using the
        reference. u8, f16, clipped gates, and activations other than sigmoid, tanh, relu and
        identity always raise it. For a clipped cell state, the gradient of the clipping is 1 within
        the bounds, including the bounds, and 0 outside.
        """
        trainer = self.trainer()
        x, initial, attention = check_input(self.spec, x, state, attention, self._real)
        y, final, record = trainer.walk.run_training(x, initial, attention)
        frame = _frame(x, y[:, :0].copy())
        return _frame(x, y), final, Tape(trainer, trainer.name, trainer.why, frame, record)

    def zero_gradients(self) -> WeightGradients:
        """Returns zeroed arrays for ``backward(into=)``: one dict for each layer of the stack.

        The keys are the names of `RnnWeights`. Each array has the shape (1, D, ...) of its weights,
        and the dtype of the layer's results. Raises `UnsupportedError` if the layer cannot be
        trained.
        """
        return self.trainer().walk.zero_gradients(self._real)

    def backward(
        self,
        tape: Tape,
        dy: Ragged | Array | None,
        dstate: State | None = None,
        into: WeightGradients | None = None,
    ) -> Gradients:
        """Returns the gradients of a loss, from its gradients with respect to the results of
        `run_training`.

        dy: like y; dstate: like the state; None means zeros. Gradients are float32, also for bf16.

        ``into``: arrays, like the result of `zero_gradients`, to which the gradients of weights are
        added, over any number of calls. oneDNN's primitives add to diff_weights in the same way
        (RNN developer guide, considerations for training). The arrays may have any strides.
        `Gradients.layers` is then (). If ``into`` is None, each call returns new gradients. A call
        that raises an error adds nothing.

        Raises `ShapeError` that names the argument, and `TapeError` for a used tape or a tape of
        another layer.

        >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
        >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
        >>> from onernn.backend import open_backend
        >>> stack = open_backend().prepare(spec, weights)
        >>> y, state, tape = stack.run_training(np.ones((4, 1, 2), "f4"))
        >>> gradients = stack.backward(tape, np.ones_like(y))
        >>> gradients.x.shape, gradients.layers[0].iter.shape
        ((4, 1, 2), (1, 1, 3, 3, 3))
        """
        if not isinstance(tape, Tape):
            got = type(tape).__name__
            raise TapeError(f"tape: expected the tape that run_training returned, got {got}")
        trainer, frame = self.trainer(), tape.frame
        tape.check_maker(trainer)
        gradient = check_gradient(dy, frame, self.spec.output_size, self._real)
        sentences = len(frame) if isinstance(frame, Ragged) else frame.shape[1]
        dend = check_state(self.spec, dstate, sentences, self._real, "dstate")
        if into is not None:
            check_sums(into, trainer.walk.zero_gradients(self._real))
        dx, dbegin, layers, dscale = trainer.walk.backward(tape.take(), frame, gradient, dend)
        if into is not None:
            for sums, result in zip(into, layers, strict=True):
                for name, array in result.arrays.items():
                    sums[name][...] += array
            layers = ()
        has_attention = self.spec.cell.has_attention
        return Gradients(
            _frame(frame, dx), dbegin, layers, _frame(frame, dscale) if has_attention else None
        )

    def cache_info(self) -> dict[str, int]:
        """Returns how many primitives were found and created so far, over all layers and
        directions.
        """
        return self._stack_kernel.cache_info()


def _frame(like: Batch, words: Array, layout: Layout = "tnc") -> Batch:
    if isinstance(like, Ragged):
        return like.with_data(words)
    return np.ascontiguousarray(lay_out(words.reshape(*like.shape[:2], words.shape[-1]), layout))
