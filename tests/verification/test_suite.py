"""The conformance kit: it passes what is right, and each planted fault makes it fail."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from support.faulty import FAULTS
from support.interpreters import run_python
from support.oracle import run_oracle

from onernn.verification.suite import (
    CELLS,
    DIRECTIONS,
    LENGTHS,
    SIZES,
    Combination,
    Conformance,
    combinations,
)

pytest_plugins = ("pytester",)

# An adapter under test: what its framework computes errs in one way, or not at all.
ADAPTER = """
from dataclasses import replace
from support.faulty import *
from onernn.verification.suite import Conformance

class TestAdapter(Conformance):
    lengths, sizes, layers = ("ragged",), ("odd",), (1, 2)
    {more}

    def outputs(self, layer, case):
        {outputs}
"""
ONE = "cells, directions, states, layers = ['lstm'], ['left2right'], ['given'], [1]"


def adapter(
    pytester: pytest.Pytester, fault: str = "", more: str = "", outputs: str = "return {}(case)"
) -> pytest.RunResult:
    run = f"FAULTS[{fault!r}][-1]" if fault else "run"
    source = ADAPTER.format(more=more, outputs=outputs.format(run))
    pytester.makepyfile(test_adapter=source)
    return pytester.runpytest_inprocess("-q", "-rx")


def test_an_adapter_without_fault_passes_every_case(pytester: pytest.Pytester) -> None:
    result = adapter(pytester)
    result.assert_outcomes(passed=len(CELLS) * len(DIRECTIONS) * 3)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_fails_in_every_cell_that_it_concerns(
    fault: str, pytester: pytest.Pytester
) -> None:
    cells, directions, _ = FAULTS[fault]
    result = adapter(
        pytester, fault, f"cells, directions, states = {cells}, {directions}, ['given']"
    )
    result.assert_outcomes(failed=len(cells) * len(directions) * 2)
    told = sum(
        bool(re.match(r"outputs: (y|final h): .* apart, .* allowed", line))
        for line in result.outlines
    )
    assert told >= len(cells) * len(directions) * 2  # as numbers, and not as some exception


def test_a_fault_of_the_second_batch_only_is_found(pytester: pytest.Pytester) -> None:
    """As Paddle's caches: the states of the first batch come again."""
    more = f"{ONE}\n    def layer(self, case): return {{}}"
    result = adapter(
        pytester,
        more=more,
        outputs="return run(replace(case, state=layer.setdefault(len(case.x), case.state)))",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["outputs of batch 2: y: *"])
    result.stdout.no_fnmatch_line("outputs: y: *")


WEIGHTS = """
    import numpy as np
    from dataclasses import replace
    from support.faulty import faulty, run
    from onernn.verification.suite import Conformance

    class TestAdapter(Conformance):
        cells, lengths, sizes = ["gru", "lstm"], ["ragged"], ["odd"]

        def weights(self, layer, case):
            return {case}.weights

    class TestBoth(TestAdapter):
        '''The framework's own numbers: half of the case's.'''
        def layer(self, case):
            return tuple(replace(each, iter=each.iter / 2) for each in case.weights)

        def outputs(self, layer, case):
            return run(replace(case, weights=layer))

        def weights(self, layer, case):
            return case.spec, {own}.weights
"""


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_weights_are_compared_with_the_case_or_with_the_framework(
    wrong: bool, pytester: pytest.Pytester
) -> None:
    own = "replace(case, weights=layer)"
    read = [f"faulty({layer}, 'gates_swapped')" if wrong else layer for layer in ("case", own)]
    pytester.makepyfile(WEIGHTS.format(case=read[0], own=read[1]))
    result = pytester.runpytest_inprocess("-q")
    count = 2 * 4 * 3 * 2
    result.assert_outcomes(**{"failed" if wrong else "passed": count})


KNOWN = "known_failures, cells, layers = 'known.toml', ['gru'], [1]"


def test_known_failures_are_expected_with_their_reasons(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("known.toml").write_text('"gru-*" = "the vendor knows"')
    result = adapter(pytester, "bias_doubled", KNOWN)
    result.assert_outcomes(xfailed=8)
    result.stdout.fnmatch_lines(["*the vendor knows*"])


def test_a_known_failure_that_passes_is_told(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("known.toml").write_text('"gru-right2left-*" = "the vendor knows"')
    result = adapter(pytester, more=KNOWN)
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines(["*XPASS(strict)*the vendor knows*"])


@pytest.mark.parametrize(
    "text, said",
    [
        ('"lstm-*" = "not among the cells"', "'lstm-[*]': expected the name of a case"),
        ('"gru-*" = ""', "'gru-[*]': expected its reason"),
        ('"gru-*" = 3', "'gru-[*]': expected its reason"),
        ("gru = [", "known failures *known.toml: "),
        (None, "known failures *known.toml: "),
    ],
)
def test_a_file_of_known_failures_that_cannot_be_meant_is_an_error(
    text: str | None, said: str, pytester: pytest.Pytester
) -> None:
    if text is not None:
        pytester.path.joinpath("known.toml").write_text(text)
    result = adapter(pytester, more=KNOWN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{said}*"])


@pytest.mark.parametrize(
    "more, said",
    [
        ("cells = ['gur']", "cells: expected some of rnn_tanh, *'gur'*"),
        ("lengths = ()", "lengths: expected some of ragged, *none"),
        ("layers = ()", "layers: expected some of numbers from 1 on; got none"),
        ("layers = (0,)", "layers: *0*"),
    ],
)
def test_an_axis_with_nothing_or_something_unknown_on_it_is_an_error(
    more: str, said: str, pytester: pytest.Pytester
) -> None:
    result = adapter(pytester, more=more)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{said}*"])


OUTPUTS = "def outputs(self, layer, case): "
WEIGHTS_OF = "def weights(self, layer, case): return "
NO_STATE = "expected a final state, got None; write final_states = False"


@pytest.mark.parametrize(
    "body, said",
    [
        ("pass", "define outputs, weights or both"),
        ("outputs = staticmethod(lambda layer, case: (case.x.data, ()))", r"got ndarray \(16, 7\)"),
        (OUTPUTS + "raise RuntimeError('not built')", "not built"),
        *(
            (f"{OUTPUTS}return {returned}", said)
            for returned, said in (
                ("case.pad(), ()", r"expected a list of sequences, got ndarray \(5, 7, 7\)"),
                ("run(case)[0], None", NO_STATE),
                ("run(case)[0], ()", "expected 1 arrays, got 0"),
                ("run(case)[0][:2], ()", "5 sequences, got 2"),
                ("[0 * y.astype(int) for y in run(case)[0]], run(case)[1]", "float64, got int64"),
                ("run(case)[0]", r"outputs: expected \(y, final state\), got list of 5: ndarray"),
                ("case.pad()", r"outputs: expected \(y, final state\), got ndarray \(5, 7, 7\)"),
                (
                    "run(case)[0], run(case)[1][0]",
                    r"a state as a tuple, got ndarray \(1, 1, 5, 5\)",
                ),
                ("None", "got NoneType; y is a Ragged or a list of one array"),
            )
        ),
        *(
            ("states = ['zeros']\n    " + WEIGHTS_OF + returned, said)
            for returned, said in (
                (
                    "replace(case.spec, direction='right2left'), case.weights",
                    "weights: expected RnnSpec.*left2right.*, got RnnSpec.*right2left",
                ),
                ("{'W': 1}", "weights: expected RnnWeights, a list of one for each.*got dict"),
                ("None", "got NoneType"),
                ("(case.spec,)", r"expected \(RnnSpec, weights\), got tuple of 1: RnnSpec"),
                ("[e.iter for e in case.weights]", r"got list of 1: ndarray \(1, 1, 5, 3, 5\)"),
                (
                    "[replace(w, iter=0 * w.iter, layer=0 * w.layer, bias=0 * w.bias) for w in"
                    " case.weights]\n    " + OUTPUTS + "return run(replace(case, state=None,"
                    " weights=self.weights(layer, case)))",
                    "nearly constant",
                ),
            )
        ),
    ],
)
def test_what_an_adapter_returns_wrongly_is_said(
    body: str, said: str, pytester: pytest.Pytester
) -> None:
    source = ADAPTER.format(more=ONE.replace("lstm", "gru"), outputs="")
    pytester.makepyfile(source.replace("    def outputs(self, layer, case):", f"    {body}"))
    result = pytester.runpytest_inprocess("-q")
    assert result.ret
    assert re.search(said, result.stdout.str())


def run_beside(pytester: pytest.Pytester, required: str) -> pytest.RunResult:
    more = "framework, cells = 'no_such_framework', ['gru']"
    pytester.makepyfile(ADAPTER.format(more=more, outputs="return run(case)"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONERNN_REQUIRE", required)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        return pytester.runpytest_subprocess("-q", "-rs")


def test_a_framework_that_is_not_there_is_skipped_by_name(pytester: pytest.Pytester) -> None:
    result = run_beside(pytester, "")
    result.assert_outcomes(skipped=12)
    result.stdout.fnmatch_lines(["*no_such_framework is not installed"])


@pytest.mark.parametrize("required", ["no_such_framework", "numpy, no_such_framework", "no.such"])
def test_a_required_framework_that_is_not_there_stops_the_run(
    required: str, pytester: pytest.Pytester
) -> None:
    result = run_beside(pytester, required)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    missing = required.split(", ")[-1]
    result.stderr.fnmatch_lines([f"*ONERNN_REQUIRE: {missing} is not installed"])


def test_without_the_plugin_the_kit_itself_misses_what_is_required(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\naddopts = -p no:onernn")
    run_beside(pytester, "no_such_framework").assert_outcomes(failed=12)


def test_the_plugin_brings_nothing_along() -> None:
    """pytest imports it in every run: who sets variables for NumPy does so later."""
    code = "import sys, _onernn_pytestplugin; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in run_python("-c", code).stdout.split()}
    assert not loaded & {"onernn", "numpy", "pytest", "tomllib"}


def test_cases_are_named_once_and_vary_every_axis() -> None:
    every = combinations(
        CELLS, DIRECTIONS, (1, 2), tuple(LENGTHS), ("given", "zeros"), ("f32", "f64"), tuple(SIZES)
    )
    assert len({each.name for each in every}) == len(every)
    for axis in range(len(Combination._fields)):
        assert len({each[axis] for each in every}) > 1
    for each in every:
        assert {batch.spec for batch in (each.case(), *each.other_batches())} == {each.case().spec}


@pytest.mark.parametrize("cell", [cell for cell in CELLS if "clip" not in cell])
def test_a_case_is_what_the_oracle_makes_of_it(cell: str) -> None:
    """The kit compares with onernn's reference; here that is compared with the tests' own."""
    from support.faulty import run

    case = Combination(cell, "bidirectional_concat", 2, "ragged", "given", "f64", "odd").case()
    attention = None if case.attention is None else case.attention.to_list()
    y, state = run_oracle(case.spec, list(case.weights), case.x.to_list(), case.state, attention)
    found, final = run(case)
    for ours, right in zip((*found, *final), (*y, *state), strict=True):
        np.testing.assert_allclose(ours, right, rtol=0, atol=2e-6)


@pytest.mark.parametrize("said", [False, True])
def test_a_framework_without_empty_sentences_is_asked_once(
    said: bool, pytester: pytest.Pytester
) -> None:
    """A right adapter passes when it says so, and is told what to say where it does not."""
    more = f"cells, directions = ['gru'], ['left2right']\n    empty_sentences = {not said}"
    outputs = "assert 0 not in case.lengths\n        return {}(case)"
    result = adapter(pytester, more=more, outputs=outputs)
    if said:
        result.assert_outcomes(passed=3)
    else:
        result.assert_outcomes(failed=3)
        result.stdout.fnmatch_lines(["*empty_sentences = False*"])


def test_of_torch_it_is_known_that_it_has_none() -> None:
    kinds = {"torch": False, "paddle": True, "": True}
    for framework, takes in kinds.items():
        assert type("T", (Conformance,), {"framework": framework})._takes_empty_sentences() is takes
    told = {"framework": "torch", "empty_sentences": True}
    assert type("T", (Conformance,), told)._takes_empty_sentences()
    for lengths in LENGTHS:
        each = Combination("gru", "left2right", 1, lengths, "given", "f32", "odd")
        for case in (each.case(empty=False), *each.other_batches(empty=False)):
            assert len(case.lengths) and 0 not in case.lengths
