"""A conformance suite for any adapter of recurrent layers, run by pytest.

    from onernn.verification.suite import Case, Conformance

    class TestMyAdapter(Conformance):
        framework = "keras"                       # skipped by name if it is not installed
        cells = ("lstm", "gru", "lbr_gru")
        known_failures = "known_failures.toml"    # in this folder: "pattern of names" = "reason"

        def layer(self, case): ...                # a layer of the framework, built from the case
        def outputs(self, layer, case): ...       # what the framework computes with it
        def weights(self, layer, case): ...       # what the adapter reads from it

pip installs the pytest plugin with onernn, and pytest loads it.

`onernn doctor --full` and both conformance kits use the same table of cells. The layers are small,
equal in every run, and contractive, so that rounding errors do not grow over the steps.
"""

from __future__ import annotations

import inspect
import itertools
import math
import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from _onernn_pytestplugin import absent
from onernn.backend import State, reference_stack
from onernn.ir.arrays import Array
from onernn.ir.ragged import Ragged
from onernn.ir.records import Renamed, dataclass
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import RnnWeights, Weights
from onernn.verification.comparing import TOLERANCES, Tolerance, compare

__all__ = ["Case", "Conformance", "Tolerance"]

KINDS = {
    "RNN tanh": Cell.RNN_TANH,
    "RNN relu": Cell.RNN_RELU,
    "RNN sigmoid": Cell.RNN_SIGMOID,
    "LSTM": Cell.LSTM,
    "LSTM peephole": Cell.LSTM,
    "LSTM projection": Cell.LSTM,
    "LSTM peephole projection": Cell.LSTM,
    "GRU": Cell.GRU,
    "LBR GRU": Cell.LBR_GRU,
    "AUGRU": Cell.AUGRU,
    "LBR AUGRU": Cell.LBR_AUGRU,
}
"""The cells by name. The name also says whether an LSTM has peepholes or a projection."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


class Shape(NamedTuple):
    """The sizes of a layer and of a batch; the batch is dense if all sequences are equally long.

    ``projection_size``: used by cells with a projection; None: half of the hidden size.
    """

    input_size: int
    hidden_size: int
    layers: int
    lengths: tuple[int, ...]
    projection_size: int | None = None


# --- for the conformance kits

# Clip bounds that float32 represents exactly, so that an adapter reads equal values.
_CLIPS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm_cell_clip": ("LSTM", {"cell_clip": (-0.25, 0.3125)}),
    "lstm_gate_clip": ("LSTM", {"gate_clip": 0.375}),
    "gru_gate_clip": ("GRU", {"gate_clip": 0.375}),
    "lbr_gru_gate_clip": ("LBR GRU", {"gate_clip": 0.375}),
}
_KINDS = {kind.lower().replace(" ", "_"): (kind, dict[str, Any]()) for kind in KINDS} | _CLIPS
CELLS = tuple(_KINDS)
"""All cells: rnn_tanh, rnn_relu, rnn_sigmoid, lstm (also with _peephole, _projection,
_peephole_projection, _cell_clip, _gate_clip), gru, lbr_gru (also with _gate_clip), augru,
lbr_augru.
"""
LENGTHS: dict[str, tuple[int, ...]] = {
    "ragged": (4, 0, 1, 7, 4),
    "filled": (4, 1, 7, 4),
    "equal": (5, 5, 5),
    "long": (33, 2),
    "word": (1,),
}
"""The number of steps of each sequence, by name; only "ragged" has a sequence of length zero."""
_OTHER_LENGTHS = {"ragged": (2, 5, 0), "filled": (2, 5), "equal": (3, 3)}
SIZES = {"odd": (7, 5), "same": (5, 5), "small": (1, 2), "wide": (16, 34)}
"""(I, O) of the first layer, by name."""
STATES = ("given", "zeros")
LAYERS = (1, 2)
DTYPES = {"f32": np.float32, "f64": np.float64}


@dataclass(frozen=True, eq=False)
class Case:
    """A recurrent layer or stack, with one batch as its input.

    ``weights``: the weights of each layer in oneDNN's layouts (see `contractive`). ``state``: (h,)
    or (h, c), each (L, D, N, O) in the order of the sequences, or None for zeros. ``attention``:
    the second input of AUGRU cells. Arrays are float32, or float64 if ``dtype`` is "f64"; all
    elements are in [-1, 1].

    `Conformance` has an example.
    """

    name: str
    cell: str
    spec: RnnSpec
    weights: tuple[RnnWeights, ...]
    x: Ragged
    state: State | None
    attention: Ragged | None
    dtype: str

    @property
    def lengths(self) -> Array:
        """The number of steps of each sequence, (N,)."""
        return self.x.lengths

    def pad(self, *, time_major: bool = False) -> Array:
        """Returns the input padded as (N, T, I) or (T, N, I), with zeros after each sequence."""
        return self.x.to_padded(time_major=time_major)

    def cut(self, padded: Any, *, time_major: bool = False) -> list[Array]:
        """Returns the sequences (T_n, O) of a padded output, without the padding."""
        rows = np.swapaxes(padded, 0, 1) if time_major else np.asarray(padded)
        return [row[:length] for row, length in zip(rows, self.lengths, strict=True)]

    @cached_property
    def random(self) -> np.random.Generator:
        """A generator for an adapter that makes its own weights; each case has a new generator with
        the same seed.
        """
        return np.random.default_rng(1)

    def contractive(self, *shape: int) -> Array:
        """Returns random weights within 1 / sqrt(hidden_size), so that rounding errors do not grow
        over the steps.
        """
        bound = 1 / np.sqrt(self.spec.hidden_size)
        return self.random.uniform(-bound, bound, shape).astype(DTYPES[self.dtype])

    def negate(self) -> Case:
        """Returns the case with negated inputs and states."""
        state = None if self.state is None else tuple(-part for part in self.state)
        return replace(self, x=self.x.with_data(-self.x.data), state=state)

    padded, negated = Renamed("pad"), Renamed("negate")


def sample_case(
    cell: str, direction: Direction, shape: Shape, *, training: bool = False, dtype: str = "f32"
) -> Case:
    """Returns the case of a cell, a key of `KINDS`. Every call returns the same case."""
    kind, units = KINDS[cell], shape.hidden_size
    spec = RnnSpec(
        kind,
        shape.input_size,
        units,
        layers=shape.layers,
        direction=direction,
        peephole="peephole" in cell,
        projection_size=(shape.projection_size or units // 2) if "projection" in cell else None,
    )
    rng = np.random.default_rng(0)
    # relu's derivative jumps at 0, so a rounding error near 0 would change gradients. The bias
    # keeps every unit far from 0.
    decided = training and kind is Cell.RNN_RELU
    bound = (0.25 if decided else 1.0) / math.sqrt(max(units, spec.recurrent_size))

    def uniform(*sizes: int, bound: float = 1.0) -> Array:
        return rng.uniform(-bound, bound, sizes).astype(np.float32).astype(DTYPES[dtype])

    numbers = partial(uniform, 1, spec.directions, bound=bound)

    weights, width = [], shape.input_size
    for _ in range(shape.layers):
        layer = numbers(width, spec.gates, units)
        iteration = numbers(spec.recurrent_size, spec.gates, units)
        bias = numbers(kind.bias_rows, units)
        if decided:
            bias += np.where(np.arange(units) % 2, 2, -2).astype(bias.dtype)
        peephole = numbers(3, units) if spec.peephole else None
        projection = numbers(units, spec.recurrent_size) if spec.projection_size else None
        weights.append(RnnWeights(layer, iteration, bias, peephole, projection))
        width = spec.output_size

    lengths = shape.lengths
    stack = (spec.layers, spec.directions, len(lengths))
    widths = {"h": spec.recurrent_size, "c": units}
    state = tuple(uniform(*stack, widths[s]) for s in kind.states)
    attention = None
    if kind.has_attention:
        attention = Ragged.from_lengths(np.abs(uniform(sum(lengths), 1)), lengths)
    x = Ragged.from_lengths(uniform(sum(lengths), shape.input_size), lengths)
    return Case(cell, cell, spec, tuple(weights), x, state, attention, dtype)


class Combination(NamedTuple):
    """The value of a case on each axis of `AXES`."""

    cell: str
    direction: Direction
    layers: int
    lengths: str
    state: str
    dtype: str
    size: str

    @property
    def name(self) -> str:
        """The case's name in tests, messages and files of known failures."""
        layers = f"{self.layers}layer" + "s" * (self.layers > 1)
        parts = (self.cell, self.direction, layers, self.lengths, self.state, self.dtype, self.size)
        return "-".join(parts)

    def case(self, lengths: tuple[int, ...] | None = None, *, empty: bool = True) -> Case:
        """Returns the case; every call returns the same arrays. ``lengths``: for a second batch of
        the same layer.

        ``empty``: include the sequences of length zero.
        """
        kind, clips = _KINDS[self.cell]
        counts = LENGTHS[self.lengths] if lengths is None else lengths
        counts = tuple(count for count in counts if count or empty)
        shape = Shape(*SIZES[self.size], self.layers, counts)
        case = sample_case(kind, self.direction, shape, dtype=self.dtype)
        state = case.state if self.state == "given" else None
        spec = replace(case.spec, **clips)
        return replace(case, name=self.name, cell=self.cell, spec=spec, state=state)

    def other_batches(self, *, empty: bool = True) -> Iterator[Case]:
        """Yields two more batches for the same layer: one with negated inputs and states, one with
        different lengths.
        """
        yield self.case(empty=empty).negate()
        if self.lengths in _OTHER_LENGTHS:
            yield self.case(_OTHER_LENGTHS[self.lengths], empty=empty)


AXES: dict[str, Collection[Any]] = {
    "cells": CELLS,
    "directions": DIRECTIONS,
    "layers": range(1, 100),
    "lengths": LENGTHS,
    "states": STATES,
    "dtypes": DTYPES,
    "sizes": SIZES,
}
"""The values that each field of a `Combination` may have."""


def combinations(*axes: Sequence[Any]) -> list[Combination]:
    """Returns the combinations to test for each cell in each direction.

    ``axes``: some values of each of `AXES`, in its order. One axis after "cells" and "directions"
    varies at a time; each other axis then has its first value. Raises `ValueError` that names an
    axis without values or with an unknown value.
    """
    for (axis, every), chosen in zip(AXES.items(), axes, strict=True):
        if wrong := [one for one in chosen if one not in every] or not chosen:
            listed = "numbers from 1 on" if axis == "layers" else ", ".join(map(str, every))
            raise ValueError(
                f"{axis}: expected some of {listed}; got {wrong if chosen else 'none'}"
            )
    result: dict[Combination, None] = {}
    for start in itertools.product(*axes[:2]):
        main = (*start, *(axis[0] for axis in axes[2:]))
        for k, varied in enumerate(axes[2:], 2):
            others = ((*main[:k], each, *main[k + 1 :]) for each in varied)
            result |= dict.fromkeys(map(Combination._make, others))
    return list(result)


# --- a conformance suite for any adapter of recurrent layers, run by pytest


Sentences = Ragged | Sequence[Array]
_TOLERANCES = {**TOLERANCES, "f64": Tolerance(1e-13, 1e-12)}


class Conformance:
    """Tests of one adapter; subclass it under a name that pytest collects.

    Define `outputs`, `weights`, or both, as methods or as ``staticmethod(callable)``. The tests
    compare the outputs with the outputs that onernn's float64 reference computes from the weights.
    If `weights` is missing, the reference computes with ``case.weights``. If `outputs` is missing,
    the tests compare the reference's outputs for the adapter's weights with its outputs for
    ``case.weights``. The attributes declare what the adapter and its framework support; by default,
    everything. Each case that fails must be in the file of known failures. No test is skipped
    because it raises, and a known failure that passes is an error.

    >>> from onernn.backend import reference_stack
    >>> from onernn.verification.suite import Conformance
    >>> class TestReference(Conformance):
    ...     cells = ("lstm", "gru", "lbr_gru")
    ...     def outputs(self, layer, case):
    ...         return reference_stack(case.spec, case.weights).run(case.x, case.state)
    """

    framework: str = ""
    """The module that must be installed. ONERNN_REQUIRE turns the skip of a missing module into an
    error.
    """
    known_failures: str | Path | None = None
    """A TOML file of ``"pattern of case names" = "reason"``; the path is relative to the class's
    file.
    """
    cells: Sequence[str] = CELLS
    directions: Sequence[Direction] = DIRECTIONS
    layers: Sequence[int] = LAYERS
    lengths: Sequence[str] = tuple(LENGTHS)
    """Write ("equal", "word") if all sequences of a batch must have one length."""
    states: Sequence[str] = STATES
    """Write ("zeros",) if the layer takes no initial state."""
    dtypes: Sequence[str] = ("f32",)
    sizes: Sequence[str] = tuple(SIZES)
    empty_sentences: bool | None = None
    """Whether batches may have sequences of length zero. None: yes, unless ``framework`` is known
    to refuse them; torch's packed sequences do.
    """
    final_states: bool = True
    """Whether `outputs` also returns the final states."""
    tolerance: Tolerance | None = None
    """``|a-b| <= atol + rtol*max|reference|``; None: onernn's tolerance for the dtype."""

    def layer(self, case: Case) -> Any:
        """Returns the framework's layer, made from ``case.weights`` or with its own weights.

        A layer takes its own weights from ``case.contractive(*shape)``; then both `outputs` and
        `weights` must be defined.
        """
        return None

    def outputs(self, layer: Any, case: Case) -> tuple[Sentences, State | None]:
        """Returns the framework's (y, final state) for the input ``case.x`` and the initial state
        ``case.state``.

        y: a `Ragged`, or one array (T_n, O) per sequence (see `Case.cut`). State: (h,) or (h, c),
        each (L, D, N, O), at the end of each sequence; a sequence of length zero keeps its initial
        state.

        Raises `NotImplementedError` here: a subclass defines `outputs`, `weights`, or both.
        """
        raise NotImplementedError

    def weights(self, layer: Any, case: Case) -> Weights | tuple[RnnSpec, Weights]:
        """Returns the weights that the adapter reads, in oneDNN's layouts, with the spec if it
        reads one.

        Raises `NotImplementedError` here: a subclass defines `outputs`, `weights`, or both.
        """
        raise NotImplementedError

    @classmethod
    def _title(cls) -> str:
        name = cls.__name__.removeprefix("Test")
        if not cls.framework:
            return name
        try:
            return f"{name} ({cls.framework} {metadata.version(cls.framework)})"
        except metadata.PackageNotFoundError:
            return f"{name} ({cls.framework})"

    @classmethod
    def _takes_empty_sentences(cls) -> bool:
        if cls.empty_sentences is None:
            return cls.framework not in _REFUSING_EMPTY
        return cls.empty_sentences

    def test_conforms(self, combination: Combination) -> None:
        """Compares the layer's outputs with outputs computed from its weights, for several
        batches.
        """
        import pytest

        if self.framework and find_spec(self.framework) is None:
            stop = pytest.fail if self.framework in absent() else pytest.skip
            stop(f"{self.framework} is not installed")
        problems = [
            f"{what}: {problem}"
            for what, case, result, expected in self._pairs(combination)
            for problem in self._differences(case, result, expected)
        ]
        if problems:
            pytest.fail("\n".join([combination.name, *problems]), pytrace=False)

    @classmethod
    def pytest_generate_tests(cls, metafunc: Any) -> None:
        """Makes a test of each combination; pytest calls this when it collects tests.

        Raises `pytest.Collector.CollectError` for a class without `outputs` and `weights`, an axis
        with an unknown value, and a file of known failures that is not valid.
        """
        import pytest

        if "combination" not in metafunc.fixturenames:
            return
        if not (cls._gives("outputs") or cls._gives("weights")):
            raise pytest.Collector.CollectError(f"{cls.__name__}: define outputs, weights or both")
        try:
            every = combinations(*(getattr(cls, axis) for axis in AXES))
            reasons = cls._read_known_failures({each.name for each in every})
        except ValueError as error:
            raise pytest.Collector.CollectError(f"{cls.__name__}: {error}") from error
        marks = {
            name: pytest.mark.xfail(reason=reason, strict=True) for name, reason in reasons.items()
        }
        metafunc.parametrize(
            "combination",
            [pytest.param(c, id=c.name, marks=marks.get(c.name, ())) for c in every],
        )

    @classmethod
    def _gives(cls, name: str) -> bool:
        return getattr(cls, name) is not getattr(Conformance, name)

    @classmethod
    def _read_known_failures(cls, names: set[str]) -> dict[str, str]:
        if cls.known_failures is None:
            return {}
        file = Path(inspect.getfile(cls)).parent / cls.known_failures
        try:
            patterns = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"known failures {file}: {error}") from error
        result: dict[str, str] = {}
        for pattern, reason in patterns.items():
            hit = {name for name in names if fnmatchcase(name, pattern)}
            if not hit:
                raise ValueError(f"known failures {file}: {pattern!r}: expected the name of a case")
            if not isinstance(reason, str) or not reason.strip():
                raise ValueError(
                    f"known failures {file}: {pattern!r}: expected its reason as text, got"
                    f" {reason!r}"
                )
            result |= dict.fromkeys(hit, reason)
        return result

    def _pairs(self, combination: Combination) -> Iterator[tuple[str, Case, _Result, _Result]]:
        """Yields a title, the case, the adapter's result and the expected result of each batch."""
        empty = self._takes_empty_sentences()
        case = combination.case(empty=empty)
        layer = self.layer(case)
        read = self.weights(layer, case) if self._gives("weights") else case.weights
        spec, weights = _read(read, case.spec)
        main = combination[2:] == tuple(getattr(self, axis)[0] for axis in [*AXES][2:])
        batches = [("outputs", case)]
        if self._gives("outputs") and main:
            again = combination.other_batches(empty=empty)
            batches += [(f"outputs of batch {k}", other) for k, other in enumerate(again, 2)]
        for what, each in batches:
            truth = _reference(spec, weights, each)
            if not self._gives("outputs"):
                yield "weights", each, truth, _reference(case.spec, case.weights, each)
                continue
            if self._gives("weights") and main and np.ptp(truth[0].data) < 1e-3:
                raise ValueError(f"{what}: nearly constant, the layer needs different weights")
            yield what, each, self._outputs(layer, each), truth

    def _outputs(self, layer: Any, case: Case) -> _Result:
        """Returns the result of `outputs`. Raises `TypeError` if it has a wrong type."""
        try:
            returned = self.outputs(layer, case)
        except Exception as error:
            if 0 in case.lengths:
                error.add_note(
                    "the batch has a sequence of length zero; if the framework refuses these,"
                    " write empty_sentences = False in the class"
                )
            raise
        if not (isinstance(returned, tuple | list) and len(returned) == 2):
            raise TypeError(
                f"outputs: expected (y, final state), got {_describe(returned)}; {_OUTPUTS}"
            )
        y, state = _to_ragged(returned[0], case), returned[1]
        if not self.final_states:
            return y, None
        if state is None:
            raise TypeError(
                "outputs: expected a final state, got None; write final_states = False if there"
                " is none"
            )
        if not isinstance(state, tuple | list):
            raise TypeError(
                f"outputs: expected a state as a tuple, got {_describe(state)}; {_OUTPUTS}"
            )
        return y, tuple(map(np.asarray, state))

    def _differences(self, case: Case, result: _Result, expected: _Result) -> Iterator[str]:
        tolerance = self.tolerance or _TOLERANCES[case.dtype]
        if not (verdict := compare("y", result[0], expected[0], tolerance)).passed:
            where = _first_apart(result[0], expected[0], tolerance)
            yield f"y: {verdict.reason}{where}"
        if result[1] is None or expected[1] is None:
            return
        if len(result[1]) != len(expected[1]):
            yield f"final state: expected {len(expected[1])} arrays, got {len(result[1])}"
        for name, actual, right in zip(case.spec.cell.states, result[1], expected[1], strict=False):
            if not (verdict := compare(name, actual, right, tolerance)).passed:
                yield f"final {name}: {verdict.reason}"


_Result = tuple[Ragged, State | None]
_OUTPUTS = (
    "y is a Ragged or a list of one array (T_n, O) a sentence (see case.cut), the state (h,) or"
    " (h, c), each (L, D, N, O), or None where final_states = False"
)
_REFUSING_EMPTY = ("torch",)


def _describe(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, tuple | list):
        return f"{name} of {len(value)}: {', '.join(map(_describe, value[:4]))}"
    return f"{name} {tuple(value.shape)}" if hasattr(value, "shape") else name


def _read(returned: Any, spec: RnnSpec) -> tuple[RnnSpec, Weights]:
    """Returns the spec and weights that `Conformance.weights` returned; without a spec, the case's
    spec.
    """
    if isinstance(returned, tuple) and returned and isinstance(returned[0], RnnSpec):
        if len(returned) != 2:
            raise TypeError(f"weights: expected (RnnSpec, weights), got {_describe(returned)}")
        read, returned = returned
        if replace(read, update=spec.update) != spec:
            raise ValueError(f"weights: expected {spec}, got {read}")
    else:
        read = spec
    if isinstance(returned, RnnWeights):
        return read, returned
    layers = returned if isinstance(returned, tuple | list) else [None]
    if not all(isinstance(each, RnnWeights) for each in layers):
        raise TypeError(
            "weights: expected RnnWeights, a list of one for each layer, or (RnnSpec, one of"
            f" these); got {_describe(returned)}"
        )
    return read, list(layers)


def _reference(spec: RnnSpec, weights: Weights, case: Case) -> _Result:
    y, state = reference_stack(spec, weights, "f64").run(case.x, case.state, case.attention)
    assert isinstance(y, Ragged)  # because case.x is ragged
    return y, state


def _to_ragged(y: Any, case: Case) -> Ragged:
    if isinstance(y, Ragged):
        return y
    if not isinstance(y, Sequence):
        raise TypeError(f"outputs: expected a list of sequences, got {_describe(y)}; {_OUTPUTS}")
    if len(y) != len(case.x):
        raise TypeError(f"outputs: expected {len(case.x)} sequences, got {len(y)}")
    return Ragged.from_list([np.asarray(sentence) for sentence in y])


def _first_apart(actual: Ragged, expected: Ragged, tolerance: Tolerance) -> str:
    """Returns a text that locates the first wrong step, or ""."""
    if actual.data.shape != expected.data.shape or actual.lod != expected.lod:
        return ""
    allowed = tolerance.atol + tolerance.rtol * np.abs(expected.data).max(initial=0)
    apart = ~(np.abs(actual.data - expected.data) <= allowed)
    if not apart.any():
        return ""
    word, channel = np.argwhere(apart.reshape(len(apart), -1))[0]
    sentence = int(np.searchsorted(expected.offsets, word, side="right")) - 1
    word_index, length = word - expected.offsets[sentence], expected.lengths[sentence]
    return f"; first in sentence {sentence} of {length} words, word {word_index}, channel {channel}"
