"""A conformance suite for any adapter of recurrent layers, run by pytest.

    from onernn.verification.suite import Case, Conformance

    class TestMyAdapter(Conformance):
        framework = "keras"                       # skipped by name where it is not installed
        cells = ("lstm", "gru", "lbr_gru")
        known_failures = "known_failures.toml"    # beside this file: "pattern of names" = "reason"

        def layer(self, case): ...                # a layer of the framework's, as the case says
        def outputs(self, layer, case): ...       # what the framework computes with it
        def weights(self, layer, case): ...       # what the adapter reads from it

pip installs the pytest plugin with onernn; there is nothing to load.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from _onernn_pytestplugin import absent
from onernn.backend import State, reference_stack
from onernn.ir.arrays import Array
from onernn.ir.ragged import Ragged
from onernn.ir.spec import Direction, RnnSpec
from onernn.ir.weights import RnnWeights, Weights
from onernn.verification.cases import (
    CELLS,
    DIRECTIONS,
    LAYERS,
    LENGTHS,
    SIZES,
    STATES,
    Case,
    Combination,
    combinations,
)
from onernn.verification.comparing import TOLERANCES, Tolerance, compare

__all__ = ["Case", "Conformance", "Tolerance"]

Sentences = Ragged | Sequence[Array]
_TOLERANCES = {**TOLERANCES, "f64": Tolerance(1e-13, 1e-12)}


class Conformance:
    """Tests of one adapter; subclass it under a name that pytest collects.

    Define `outputs`, `weights`, or both, as methods or as ``staticmethod(callable)``. One is
    compared with the other, in float64 by onernn's reference; in the place of one that is missing
    stands the case itself. The attributes say once what the adapter and its framework can do; their
    defaults ask for everything. What it cannot and is not told there must stand in the file of
    known failures: nothing is skipped for raising, and a known failure that passes is an error.
    """

    framework: str = ""
    """The module that must be installed; ONERNN_REQUIRE makes its absence an error."""
    known_failures: str | Path | None = None
    """A TOML file of ``"pattern of case names" = "reason"``; relative to the file of the class."""
    cells: Sequence[str] = CELLS
    directions: Sequence[Direction] = DIRECTIONS
    layers: Sequence[int] = LAYERS
    lengths: Sequence[str] = tuple(LENGTHS)
    """("equal", "word") where all sentences of a batch have one length."""
    states: Sequence[str] = STATES
    """("zeros",) where nobody gives an initial state."""
    dtypes: Sequence[str] = ("f32",)
    sizes: Sequence[str] = tuple(SIZES)
    empty_sentences: bool | None = None
    """Whether batches may have sentences of length zero; None: unless ``framework`` is known to
    refuse them, as torch's packed sequences do."""
    final_states: bool = True
    """Whether `outputs` gives the final states, too."""
    tolerance: Tolerance | None = None
    """``|a-b| <= atol + rtol*max|reference|``; None: onernn's own for the dtype."""

    def layer(self, case: Case) -> Any:
        """The framework's layer: from ``case.weights``, or from numbers of its own.

        Own numbers are ``case.contractive(*shape)``, and need both `outputs` and `weights`.
        """
        return None

    def outputs(self, layer: Any, case: Case) -> tuple[Sentences, State | None]:
        """(y, final state) of the framework for ``case.x`` from ``case.state``.

        y: a `Ragged`, or one array (T_n, O) a sentence (see `Case.cut`). State: (h,) or (h, c),
        each (L, D, N, O), of each sentence's own end; a sentence of length zero keeps its own.
        """
        raise NotImplementedError

    def weights(self, layer: Any, case: Case) -> Weights | tuple[RnnSpec, Weights]:
        """What the adapter reads: weights in oneDNN's layouts, with the spec where it tells it."""
        raise NotImplementedError

    @classmethod
    def _takes_empty_sentences(cls) -> bool:
        """What ``empty_sentences`` says, or what is known of the framework."""
        if cls.empty_sentences is None:
            return cls.framework not in _REFUSING_EMPTY
        return cls.empty_sentences

    def test_conforms(self, combination: Combination) -> None:
        """The layer gives what its weights say, for several batches one after another."""
        import pytest

        if self.framework and find_spec(self.framework) is None:
            stop = pytest.fail if self.framework in absent() else pytest.skip
            stop(f"{self.framework} is not installed")
        problems = [
            f"{what}: {problem}"
            for what, case, found, expected in self._pairs(combination)
            for problem in self._differences(case, found, expected)
        ]
        if problems:
            pytest.fail("\n".join([combination.name, *problems]), pytrace=False)

    @classmethod
    def pytest_generate_tests(cls, metafunc: Any) -> None:
        """A test for each combination; pytest calls this when it collects."""
        import pytest

        if "combination" not in metafunc.fixturenames:
            return
        if not (cls._gives("outputs") or cls._gives("weights")):
            raise pytest.Collector.CollectError(f"{cls.__name__}: define outputs, weights or both")
        try:
            every = combinations(
                *(cls.cells, cls.directions, cls.layers),
                *(cls.lengths, cls.states, cls.dtypes, cls.sizes),
            )
            reasons = cls._known({each.name for each in every})
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
    def _known(cls, names: set[str]) -> dict[str, str]:
        """The reason of each known failure by the case's name."""
        if cls.known_failures is None:
            return {}
        file = Path(inspect.getfile(cls)).parent / cls.known_failures
        try:
            patterns = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"known failures {file}: {error}") from error
        found: dict[str, str] = {}
        for pattern, reason in patterns.items():
            hit = {name for name in names if fnmatchcase(name, pattern)}
            if not hit:
                raise ValueError(f"known failures {file}: {pattern!r} is the name of no case")
            if not isinstance(reason, str) or not reason.strip():
                raise ValueError(f"known failures {file}: {pattern!r} needs its reason as text")
            found |= dict.fromkeys(hit, reason)
        return found

    def _pairs(self, combination: Combination) -> Iterator[tuple[str, Case, _Result, _Result]]:
        """What was run, and what comes from the adapter and what it must be, for each batch."""
        empty = self._takes_empty_sentences()
        case = combination.case(empty=empty)
        layer = self.layer(case)
        given = self.weights(layer, case) if self._gives("weights") else case.weights
        spec, weights = _read(given, case.spec)
        firsts = (self.layers, self.lengths, self.states, self.dtypes, self.sizes)
        main = combination[2:] == tuple(axis[0] for axis in firsts)
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
                raise ValueError(f"{what}: nearly constant, the layer needs other numbers")
            yield what, each, self._outputs(layer, each), truth

    def _outputs(self, layer: Any, case: Case) -> _Result:
        """What `outputs` gives. Raises `TypeError` telling what was expected."""
        try:
            given = self.outputs(layer, case)
        except Exception as error:
            if 0 in case.lengths:
                error.add_note(
                    "the batch has a sentence of length zero; where the framework refuses those,"
                    " say empty_sentences = False in the class"
                )
            raise
        if not (isinstance(given, tuple | list) and len(given) == 2):
            raise TypeError(f"outputs: expected (y, final state), got {_told(given)}; {_OUTPUTS}")
        y, state = given
        if self.final_states and state is None:
            raise TypeError("outputs: no final state; if there is none, final_states = False")
        if not self.final_states:
            return _ragged(y, case), None
        if not isinstance(state, tuple | list):
            raise TypeError(f"outputs: expected a state as a tuple, got {_told(state)}; {_OUTPUTS}")
        return _ragged(y, case), tuple(np.asarray(part) for part in state)

    def _differences(self, case: Case, found: _Result, expected: _Result) -> Iterator[str]:
        tolerance = self.tolerance or _TOLERANCES[case.dtype]
        if not (verdict := compare("y", found[0], expected[0], tolerance)).passed:
            where = _first_apart(found[0], expected[0], tolerance)
            yield f"y: {verdict.reason}{where}"
        if found[1] is None or expected[1] is None:
            return
        if len(found[1]) != len(expected[1]):
            yield f"final state: expected {len(expected[1])} arrays, got {len(found[1])}"
        for name, ours, right in zip(case.spec.cell.states, found[1], expected[1], strict=False):
            if not (verdict := compare(name, ours, right, tolerance)).passed:
                yield f"final {name}: {verdict.reason}"


_Result = tuple[Ragged, State | None]
_OUTPUTS = (
    "y is a Ragged or a list of one array (T_n, O) a sentence (see case.cut), the state (h,) or"
    " (h, c), each (L, D, N, O), or None where final_states = False"
)
_REFUSING_EMPTY = ("torch",)


def _told(given: Any) -> str:
    """What came: its type, with its shape, or with what is in it."""
    name = type(given).__name__
    if isinstance(given, tuple | list):
        return f"{name} of {len(given)}: {', '.join(map(_told, given[:4]))}"
    return f"{name} {tuple(given.shape)}" if hasattr(given, "shape") else name


def _read(given: Any, spec: RnnSpec) -> tuple[RnnSpec, Weights]:
    """What `Conformance.weights` returned, with the case's spec where it tells none."""
    if isinstance(given, tuple) and given and isinstance(given[0], RnnSpec):
        if len(given) != 2:
            raise TypeError(f"weights: expected (RnnSpec, weights), got {_told(given)}")
        read, given = given
        if replace(read, update=spec.update) != spec:
            raise ValueError(f"weights: expected those of {spec}, read {read}")
    else:
        read = spec
    if isinstance(given, RnnWeights):
        return read, given
    if not isinstance(given, tuple | list) or not all(isinstance(w, RnnWeights) for w in given):
        raise TypeError(
            "weights: expected RnnWeights, a list of one for each layer, or (RnnSpec, one of"
            f" these); got {_told(given)}"
        )
    return read, list(given)


def _reference(spec: RnnSpec, weights: Weights, case: Case) -> _Result:
    y, state = reference_stack(spec, weights, "f64").run(case.x, case.state, case.attention)
    assert isinstance(y, Ragged)  # as case.x is
    return y, state


def _ragged(y: Any, case: Case) -> Ragged:
    if isinstance(y, Ragged):
        return y
    if not isinstance(y, Sequence):
        raise TypeError(f"outputs: expected a list of sentences, got {_told(y)}; {_OUTPUTS}")
    if len(y) != len(case.x):
        raise TypeError(f"outputs: expected {len(case.x)} sentences, got {len(y)}")
    return Ragged.from_list([np.asarray(sentence) for sentence in y])


def _first_apart(found: Ragged, expected: Ragged, tolerance: Tolerance) -> str:
    """Where the first word departs, for a reader of the message."""
    if found.data.shape != expected.data.shape or found.lod != expected.lod:
        return ""
    allowed = tolerance.atol + tolerance.rtol * np.abs(expected.data).max(initial=0)
    apart = ~(np.abs(found.data - expected.data) <= allowed)
    if not apart.any():
        return ""
    word, channel = np.argwhere(apart.reshape(len(apart), -1))[0]
    sentence = int(np.searchsorted(expected.offsets, word, side="right")) - 1
    at, length = word - expected.offsets[sentence], expected.lengths[sentence]
    return f"; first in sentence {sentence} of {length} words, word {at}, channel {channel}"
