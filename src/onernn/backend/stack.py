"""A layer or stack ready to run: arguments are checked, results framed, and training done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, Unpack

import numpy as np

from onernn.backend.arguments import (
    Gradients,
    Layout,
    State,
    Tape,
    TapeError,
    WeightGradients,
    check_sums,
    checked_gradient,
    checked_input,
    checked_state,
    laid_out,
)
from onernn.backend.onednn.precision import DTYPES, Quantization, U8Options, unknown
from onernn.backend.process import CREATION
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.spec import RnnSpec
from onernn.ir.weights import Layers, RnnWeights, Weights, layers_of

if TYPE_CHECKING:
    from onernn.backend.layer_walk import LayerWalk


class Backend(Protocol):
    """Makes layers ready to run."""

    def prepare(
        self, spec: RnnSpec, weights: Weights, *, dtype: str = "f32", strict: bool = False
    ) -> Stack:
        """Returns a layer from its weights: one `RnnWeights`, or a list of one-layer ones.

        What the backend cannot run goes to the NumPy reference, and the layer's ``why`` says so;
        ``strict`` raises `UnsupportedError` instead. Raises `ShapeError` for weights that do not
        fit the spec.
        """


_FLOAT32 = np.dtype(np.float32)


class StackKernel(Protocol):
    """All layers and directions of a stack, for arguments that are checked."""

    def takes(self, x: Ragged | Array, initial: State) -> bool:
        """Returns whether the kernel computes this batch right."""

    def run_again(self, x: Any, state: Any) -> tuple[Array, State] | None:
        """Returns the result for a dense batch that needs no more checks; None: it has to be
        checked.
        """

    def run(
        self, x: Ragged | Array, initial: State, attention: Ragged | Array | None
    ) -> tuple[Array, State]:
        """Returns (y (W, D*O) or (T, N, D*O), final states) for ragged or dense (T, N, I) x, like
        x.
        """

    def cache_info(self) -> dict[str, int]:
        """Primitives found and made so far."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """The trainer of a stack; ``why``: why not oneDNN, "" if it is."""

    walk: LayerWalk
    name: str
    why: str


class Origin(NamedTuple):
    """The arguments that made a stack. ``packed``: see `Layers`, good for the same kernels only."""

    backend: Backend
    spec: RnnSpec
    weights: Weights
    packed: Mapping[Any, Any]
    options: Mapping[str, Any]


_Prepare = TypeVar("_Prepare", bound=Callable[..., "Stack"])


def picklable(prepare: _Prepare) -> _Prepare:
    """`Backend.prepare` whose stacks know their origin."""

    @wraps(prepare)
    def prepared(
        backend: Backend,
        spec: RnnSpec,
        weights: Weights,
        *,
        packed: Mapping[Any, Any] = MappingProxyType({}),
        **options: Any,
    ) -> Stack:
        layers = layers_of(spec, weights)
        layers.packed.update(packed)
        stack = prepare(backend, spec, layers, **options)
        source = weights if isinstance(weights, RnnWeights) else tuple(weights)
        stack.origin = Origin(backend, spec, source, layers.packed, options)
        return stack

    return prepared  # type: ignore[return-value]


def _made_again(origin: Origin) -> Stack:
    backend: Any = origin.backend
    arguments = origin.spec, origin.weights
    return backend.prepare(*arguments, packed=origin.packed, **origin.options)


class LayerBackend:
    """A backend that gives `stack`: data types and options are checked here, for all alike.

    ``dtypes``: those that it may run.
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
        """See `Backend.prepare`. bf16, f16: see design/0020 and 0013; u8, int8-dynamic and
        int8-weights: design/0034. A ``data_scale`` is that of x in the first layer. On oneDNN
        ``weights_scales`` and ``projection_scales`` need one, and ``scales`` one scale of x and h.
        """
        if dtype not in self.dtypes:
            raise UnsupportedError(unknown(dtype))
        layers = layers_of(spec, weights)
        options = U8Options.of(spec, dtype, **quantization)
        try:
            return self.stack(spec, layers, dtype, options, strict)
        except UnsupportedError as error:
            from onernn.backend.reference import reference_instead  # most layers are supported

            return reference_instead(spec, layers, error, strict)

    def stack(
        self, spec: RnnSpec, layers: Layers, dtype: str, options: U8Options | None, strict: bool
    ) -> Stack:
        """Returns the layer on this backend. Raises `UnsupportedError` for what it does not run."""
        raise NotImplementedError


class Stack:
    """A layer or stack made ready to run; may be shared between threads.

    ``kernel`` names what runs it, ``why`` says why not something faster ("" where it is),
    ``backend`` which one of `open_backend` it belongs to.

    A backend gives a `StackKernel` and its ``name``, how it ``reads`` x, for `explain`, and
    ``real``: the dtype that it computes from and gives.
    ``compiled``: the `CompiledStack` that a plan may call instead; None where there is none.
    ``other``: the stack for batches that the kernel does not take. ``trainer`` makes what trains
    it, at first use: many layers never train; it raises `UnsupportedError` where nothing does.
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
        """Pickles the stack's arguments; unpickling makes it again for the CPU at hand."""
        if self.origin is None:
            raise UnsupportedError(
                "only layers that a backend has prepared can be pickled: use"
                " open_backend(...).prepare(spec, weights)"
            )
        return _made_again, (self.origin,)

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """Returns (y, state). x: `Ragged` (W, I) or (T, N, I) float32; state (h,) or (h, c), each
        ldnc.

        y is like x with O (or D*O) channels. ``layout``: of dense x, attention and y, "tnc" or
        "ntc". x may have any strides: `explain` says what is read in place and what is copied. The
        final state is that of each sentence's own end, in the caller's order; a sentence of length
        zero keeps its initial state. Raises `ShapeError` naming the argument; writes nothing into
        the caller's arrays.
        """
        if attention is None and layout == "tnc":
            if (
                isinstance(x, Ragged)
                and len(x) == 1
                and x.data.shape[1:] == (self.spec.input_size,)
            ):
                dense, state = self.run(x.data[:, None], state)  # nothing to sort or to gather
                return x.with_data(data_of(dense)[:, 0]), state
            result = self._stack_kernel.run_again(x, state)
            if result is not None:
                return result
        arguments = (x, state, attention, layout)
        x, initial, attention = checked_input(self.spec, x, state, attention, self._real, layout)
        if self._other is not None and not self._stack_kernel.takes(x, initial):
            return self._other.run(*arguments)
        y, final = self._stack_kernel.run(x, initial, attention)
        return _frame(x, y, layout), final

    @property
    def mixes_rows(self) -> bool:
        """Whether a sequence's results depend on others in its batch: oneDNN's u8 takes its scale
        from the whole batch unless one is given."""
        options = self.origin.options if self.origin else {}
        parts = options.get("scales") or ()
        has_scale = options.get("data_scale") or (parts and all(part.data for part in parts))
        return self.dtype == "u8" and self.backend != "kernels" and not has_scale

    def explain(self) -> str:
        """Returns one line: cell, direction, dtype, kernel, why no faster one, which inputs are
        copied, and how many threads the kernels use.
        """
        reason = f" ({self.why})" if self.why else ""
        threads = f"; threads: {self.compiled.threads}" if self.compiled else ""
        return (
            f"{self.spec.cell.name} {self.spec.direction}, {self.dtype}, {self.kernel}{reason};"
            f" x: {self._reads}{threads}"
        )

    def trainer(self) -> Trainer:
        """Returns the trainer, made only once."""
        with CREATION:
            self._trainer = self._trainer or self.new_trainer()
            return self._trainer

    def run_training(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State, Tape]:
        """`run`, and a tape for one `backward`; the arguments may be changed afterwards.

        Kernels and oneDNN train in f32 and bf16. AUGRU cells (wrong gradients in oneDNN) and bf16
        LSTM with projection (no backward there) train on kernels, or on the NumPy reference in
        float32, and ``tape.why`` says so, or raise `UnsupportedError` where the layer is strict. So
        do u8 and f16, activations other than sigmoid, tanh, relu and identity, and clipped gates,
        always. A clipped cell state has slope 1 from bound to bound, and 0 outside.
        """
        trainer = self.trainer()
        x, initial, attention = checked_input(self.spec, x, state, attention, self._real)
        y, final, record = trainer.walk.run_training(x, initial, attention)
        frame = _frame(x, y[:, :0].copy())
        return _frame(x, y), final, Tape(trainer, trainer.name, trainer.why, frame, record)

    def zero_gradients(self) -> WeightGradients:
        """Zeroed arrays for ``backward(into=)``: one dict for each layer of the stack.

        By the names of `RnnWeights`, each (1, D, ...) as its weights, in the dtype that the layer
        gives. Raises `UnsupportedError` for a layer that does not train.
        """
        return self.trainer().walk.zero_gradients(self._real)

    def backward(
        self,
        tape: Tape,
        dy: Ragged | Array | None,
        dstate: State | None = None,
        into: WeightGradients | None = None,
    ) -> Gradients:
        """Returns the gradients of a loss from those by the results of `run_training`.

        dy: like y; dstate: like the state; None: zeros. float32 in and out, in bf16 too.

        ``into``: where the gradients of weights are added up, over as many calls as the caller
        likes, as oneDNN's primitives add to diff_weights (RNN developer guide, considerations for
        training): arrays like those of `zero_gradients`, of any strides. `Gradients.layers` is
        then (). None: each call gives fresh gradients. A call that raises adds nothing.

        Raises `ShapeError` naming the argument, `TapeError` for a tape that was used already or
        that another layer recorded.
        """
        if not isinstance(tape, Tape):
            raise TapeError(f"tape: expected what run_training gave, got {type(tape).__name__}")
        trainer, frame = self.trainer(), tape.frame
        tape.check_maker(trainer)
        gradient = checked_gradient(dy, frame, self.spec.output_size, self._real)
        sentences = len(frame) if isinstance(frame, Ragged) else frame.shape[1]
        dend = checked_state(self.spec, dstate, sentences, self._real, "dstate")
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
        """Primitives found and made so far, over all layers and directions."""
        return self._stack_kernel.cache_info()


def _frame(like: Ragged | Array, words: Array, layout: Layout = "tnc") -> Ragged | Array:
    """Words (W, C) or (T, N, C) as a batch like ``like``, which is ragged or (T, N, I)."""
    if isinstance(like, Ragged):
        return like.with_data(words)
    return np.ascontiguousarray(laid_out(words.reshape(*like.shape[:2], words.shape[-1]), layout))
