"""The rules of RNN, GRU and LSTM.

Formulas, defaults and layouts: ONNX operator specification. Where implementations differ these
are ONNX Runtime's meanings: see design/0008.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.onnx.lower.operator import OnnxOperator
from onernn.core.arrays import Array
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.precision import OWN, LayerPrecision
from onernn.core.spec import Activation, Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.operators.activations import DEFAULTS, completed
from onernn.reorders import onnx

_DIRECTIONS: dict[str, Direction] = {
    "forward": "left2right",
    "reverse": "right2left",
    "bidirectional": "bidirectional_concat",
}
_AXES = {0: ("X", 3), 4: ("sequence_lens", 1), 5: ("initial_h", 3), 6: ("initial_c", 3)}
_PLAIN_RNN = {"tanh": Cell.RNN_TANH, "relu": Cell.RNN_RELU, "sigmoid": Cell.RNN_SIGMOID}


def rnn(op: OnnxOperator) -> Results:
    return _lower(op, ("tanh",), lambda names: _PLAIN_RNN.get(names[0].name, Cell.RNN_TANH))


def gru(op: OnnxOperator) -> Results:
    cell = (Cell.GRU, Cell.LBR_GRU)[_one_of(op, "linear_before_reset", 0, (0, 1))]
    return _lower(op, ("sigmoid", "tanh"), lambda _: cell)


def lstm(op: OnnxOperator) -> Results:
    return _lower(op, ("sigmoid", "tanh", "tanh"), lambda _: Cell.LSTM)


class _Arrays(NamedTuple):
    """The parameters in ONNX's own layout."""

    w: Array
    r: Array
    b: Array | None
    p: Array | None

    def of_direction(self, d: int) -> _Arrays:
        return _Arrays(*(None if a is None else a[d : d + 1] for a in self))  # type: ignore[arg-type]


def _lower(
    op: OnnxOperator,
    default: tuple[str, ...],
    cell_of: Callable[[tuple[Activation, ...]], Cell],
) -> Results:
    direction = _DIRECTIONS[_one_of(op, "direction", "forward", _DIRECTIONS)]
    batch_major = bool(_one_of(op, "layout", 0, (0, 1)))
    is_lstm = op.at.type == "LSTM"
    forgets = is_lstm and bool(_one_of(op, "input_forget", 0, (0, 1)))
    arrays, half = _arrays(op, 2 if direction == "bidirectional_concat" else 1, is_lstm)
    functions = _activations(op, default, len(arrays.w))
    cell = cell_of(functions[0])
    _, rows, width = arrays.w.shape
    spec = RnnSpec(
        cell,
        width,
        rows // len(cell.gates),
        direction=direction,
        activations=functions[0],
        gate_clip=_clip(op),
        peephole=arrays.p is not None,
        input_forget=forgets,
    )
    _check(op, arrays, spec)
    if len(set(functions)) == 1:
        spec, weights = _folded(spec, arrays)
        told = op.builder.precisions
        x, precision = told.take(
            op.builder, op.outputs.get("0", ("",))[0], op.value(0), spec, weights
        )
        run = _Layouts(op, x, batch_major, spec.directions, half)
        y, *final = run(spec, weights, precision)
    else:  # a node of ours has the same functions in both directions
        run = _Layouts(op, op.value(0), batch_major, spec.directions, half)
        both: tuple[Direction, ...] = ("left2right", "right2left")
        sides = []
        for d, (side, chosen) in enumerate(zip(both, functions, strict=True)):
            each = replace(spec, cell=cell_of(chosen), direction=side, activations=chosen)
            sides.append(run(*_folded(each, arrays.of_direction(d)), OWN, d))
        y, *final = (
            op.emit("Concat", *pair, axis=axis)
            for pair, axis in zip(zip(*sides, strict=True), (-1, 1, 1), strict=False)
        )
    return run.outputs(y, final)


def _one_of(op: OnnxOperator, name: str, default: Any, known: Any) -> Any:
    found = op.attribute(name, default)
    if found not in known:
        raise UnsupportedError(f"attribute {name}={found!r}: expected one of {list(known)}")
    return found


def _clip(op: OnnxOperator) -> float | None:
    clip = op.attribute("clip", None)
    if clip == 0:
        op.builder.notes["clip=0 means no clipping, as it did to those who wrote it"] = None
        return None
    return clip


def _arrays(op: OnnxOperator, directions: int, is_lstm: bool) -> tuple[_Arrays, bool]:
    """The constant parameters, and whether they are halves, which are widened."""
    named = {name: op.constant(at, name) for at, name in ((1, "W"), (2, "R"), (3, "B"))}
    named["P"] = op.constant(7, "P") if is_lstm else None
    dtypes = {str(a.dtype) for a in named.values() if a is not None}
    if len(dtypes) != 1 or not dtypes <= {"float16", "float32", "float64"}:
        raise UnsupportedError(f"W, R, B and P: expected floats of one type, got {sorted(dtypes)}")
    half = dtypes == {"float16"}
    wide = {
        name: a.astype(np.float32) if half and a is not None else a for name, a in named.items()
    }
    w, r = wide["W"], wide["R"]
    if w is None or r is None:
        raise UnsupportedError("inputs W and R are required")
    if w.ndim != 3 or r.ndim != 3 or len(w) != directions:
        raise ShapeError(f"W and R: expected ({directions}, G*O, I or O), got {w.shape}, {r.shape}")
    return _Arrays(w, r, wide["B"], wide["P"]), half


def _check(op: OnnxOperator, arrays: _Arrays, spec: RnnSpec) -> None:
    d, units, rows = spec.directions, spec.hidden_size, spec.gates * spec.hidden_size
    if op.attribute("hidden_size", units) != units:
        raise ShapeError(f"hidden_size={op.attribute('hidden_size', 0)}: W {arrays.w.shape}")
    expected = {"w": (d, rows, spec.input_size), "r": (d, rows, units), "b": (d, 2 * rows)}
    expected["p"] = (d, 3 * units)
    for name, array in arrays._asdict().items():
        if array is not None and array.shape != expected[name]:
            raise ShapeError(f"{name.upper()}: expected {expected[name]}, got {array.shape}")


def _activations(
    op: OnnxOperator, default: tuple[str, ...], directions: int
) -> list[tuple[Activation, ...]]:
    """For each direction; alpha and beta go, in order, to those functions that have them."""
    names = [name.lower() for name in op.attribute("activations", default * directions)]
    count = len(default)
    if len(names) != count * directions:
        raise UnsupportedError(
            f"attribute activations: expected {count * directions} names, got {len(names)}"
        )
    numbers = [list(op.attribute(f"activation_{k}", ())) for k in ("alpha", "beta")]
    found = []
    for name in names:
        takes = len(DEFAULTS.get(name, ()))
        chosen = Activation(name, *(n.pop(0) if n else None for n in numbers[:takes]))
        found.append(completed(chosen))
    if any(numbers):
        raise UnsupportedError("attributes activation_alpha and activation_beta: too many numbers")
    return [tuple(found[at : at + count]) for at in range(0, len(found), count)]


def _folded(spec: RnnSpec, arrays: _Arrays) -> tuple[RnnSpec, RnnWeights]:
    """The pivot's form. Under a sigmoid f = 1 - i is a gate of its own: -i's numbers."""
    cell = spec.cell
    weights = RnnWeights(
        onnx.matrix("W", arrays.w, cell),
        onnx.matrix("R", arrays.r, cell),
        None if arrays.b is None else onnx.bias(arrays.b, cell),
        None if arrays.p is None else onnx.peephole(arrays.p),
    )
    if not spec.input_forget or spec.functions[0].name != "sigmoid":
        return spec, weights
    turned = {}
    for name in ("layer", "iter", "bias", "peephole"):
        array = getattr(weights, name)
        if array is not None:
            array = array.copy()
            array[..., 1, :] = -array[..., 0, :]  # sigmoid(-a) = 1 - sigmoid(a)
            turned[name] = array
    return replace(spec, input_forget=False), replace(weights, **turned)


class _Layouts:
    """The input and states of an operator, led to the pivot's layout and back."""

    def __init__(
        self, op: OnnxOperator, x: str, batch_major: bool, directions: int, half: bool
    ) -> None:
        self.op, self.batch_major, self.directions, self.half = op, batch_major, directions, half
        for at, (name, axes) in _AXES.items():
            given = op.optional(at)
            shape = op.builder.type_of(given).shape if given else None
            if shape is not None and len(shape) != axes:
                raise ShapeError(f"{name} {given!r}: expected {axes} axes, got {len(shape)}")
        self.lengths = op.optional(4)
        self.padded = self._wide(x)
        states = [op.optional(5), op.optional(6) if op.at.type == "LSTM" else ""]
        self.given = [bool(state) for state in states]
        self.states = [self._state(self._wide(state)) if state else "" for state in states]
        if self.lengths:
            flag = int(not batch_major)
            self.x = op.emit("SequenceUnpad", self.padded, self.lengths, time_major=flag)
        else:
            self.x = self._time_major(self.padded)

    def _wide(self, value: str) -> str:
        return self.op.emit("Cast", value, to="float32") if self.half else value

    def _time_major(self, value: str) -> str:
        return self.op.emit("Transpose", value, perm=(1, 0, 2)) if self.batch_major else value

    def _state(self, value: str) -> str:
        """(D, N, O), or (N, D, O) where batch_major -> ldnc (1, D, N, O)."""
        return self.op.emit("Unsqueeze", self._time_major(value), self.op.ints(0))

    def __call__(
        self,
        spec: RnnSpec,
        weights: RnnWeights,
        precision: LayerPrecision,
        direction: int | None = None,
    ) -> Any:
        """(y, h_n, ...) of the whole layer, or of one direction of it."""
        op, states = self.op, self.states
        if direction is not None:
            at = (op.ints(direction), op.ints(direction + 1), op.ints(1))
            states = [op.emit("Slice", s, *at) if s else "" for s in states]
        weights.check(spec)
        inputs = (self.x, *states[: len(spec.cell.states)])
        told: dict[str, Any] = {"precision": precision} if precision else {}
        count = 1 + len(spec.cell.states)
        return op.emit_many("Rnn", count, *inputs, spec=spec, weights=weights, **told)

    def outputs(self, y: str, final: list[str]) -> Results:
        """Y, Y_h and Y_c, as far as the model wants them."""
        states = enumerate(zip(final, self.given, strict=False), 1)
        return (
            self._output(y) if self.op.wants(0) else "",
            *(self._final(*each) if self.op.wants(at) else "" for at, each in states),
        )

    def _final(self, state: str, given: bool) -> str:
        op, state = self.op, self.op.emit("Squeeze", state, self.op.ints(0))
        if self.lengths and given:  # a sentence of length zero ends with zeros all the same
            some = op.emit("Unsqueeze", op.emit("Cast", self.lengths, to="bool"), op.ints(1))
            state = op.emit("Where", some, state, op.emit("CastLike", op.ints(0), self.padded))
        return self._narrow(self._time_major(state))

    def _output(self, y: str) -> str:
        """y (T, N, D*O) or ragged -> Y (T, D, N, O), or (N, T, D, O) where batch_major."""
        op, batch_major = self.op, self.batch_major
        if self.lengths:
            y = op.emit("SequencePad", y, self.padded, time_major=int(not batch_major))
        elif batch_major:
            y = self._time_major(y)
        if self.directions == 1:
            return self._narrow(op.emit("Unsqueeze", y, op.ints(2 if batch_major else 1)))
        y = op.emit("Reshape", y, op.ints(0, 0, self.directions, -1))
        return self._narrow(y if batch_major else op.emit("Transpose", y, perm=(0, 2, 1, 3)))

    def _narrow(self, value: str) -> str:
        return self.op.emit("Cast", value, to="float16") if self.half else value
