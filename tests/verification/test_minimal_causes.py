"""Each named cause is needed, harmless differences are none, and texts name what differs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support import planted
from support.fault_pairs import FAULTS, Tagger, file, sound
from support.onnx_models import parsed
from support.planted import Arrays, read, recording

from onernn import Graph, convert
from onernn.ir.graph import Node
from onernn.ir.weights import LayerPrecision
from onernn.verification.conversion import repair
from onernn.verification.diagnosis.cause import Cause, repaired
from onernn.verification.references import Against
from onernn.verification.verifying import Report, verify

# --- harmless differences in the same places as faults


def with_nodes(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    return replace(graph, nodes=tuple(map(change, graph.nodes)))


def other_epsilon(graph: Graph) -> Graph:
    """The same number in float32, written as float64."""
    return with_attribute(graph, "LayerNormalization", epsilon=1e-5)


def near_epsilon(graph: Graph) -> Graph:
    """Another number that changes less than rounding does."""
    return with_attribute(graph, "LayerNormalization", epsilon=1.00001e-5)


def other_axis(graph: Graph) -> Graph:
    """The same axis, counted from the other end."""
    return with_attribute(graph, "Softmax", axis=2)


def with_attribute(graph: Graph, op: str, **new: object) -> Graph:
    assert any(node.op == op for node in graph.nodes)
    return with_nodes(
        graph,
        lambda node: (
            replace(node, attributes={**node.attributes, **new}) if node.op == op else node
        ),
    )


def wide_clip(graph: Graph) -> Graph:
    """A clip that no gate reaches."""

    def clipped(node: Node) -> Node:
        if node.op != "Rnn":
            return node
        spec = replace(node.attributes["spec"], gate_clip=1e4)
        return replace(node, attributes={**node.attributes, "spec": spec})

    return with_nodes(graph, clipped)


HARMLESS = [other_epsilon, near_epsilon, other_axis, wide_clip]


def scaled_norm(tagger: Tagger) -> str:
    tagger.arrays["scale"] = tagger.arrays["scale"] * np.float32(1.1)
    return "constant_changed"


def forget(tagger: Tagger) -> str:
    return FAULTS["forget_bias"](tagger, 0)


def swapped(tagger: Tagger) -> str:
    return FAULTS["gates"](tagger, 0)


PLANTED = [(scaled_norm,), (forget,), (swapped, scaled_norm)]


def remaining(model: Graph, cause: Cause, causes: tuple[Cause, ...]) -> Graph:
    """The model in which this cause alone remains."""
    others = [each for each in causes if each is not cause]
    return repaired(model, others) if others else model


@pytest.mark.parametrize("faults", PLANTED, ids=lambda each: "+".join(f.__name__ for f in each))
@pytest.mark.parametrize("harmless", [None, *HARMLESS], ids=lambda f: f and f.__name__)
def test_each_cause_is_needed_and_harmless_differences_are_none(
    faults: tuple[Callable[[Tagger], str], ...], harmless: Callable[[Graph], Graph] | None
) -> None:
    good = sound("LSTM", 8, seed=4)
    bad = deepcopy(good)
    wanted = sorted(plant(bad) for plant in faults)
    right, model = read(file(good)), read(file(bad))
    model = harmless(model) if harmless else model
    report = verify(model, against=Against(right), seconds=60)
    found = [(each.id, each.evidence) for each in report.causes]
    assert sorted(found) == [(id, "proved") for id in wanted], report.causes
    assert verify(repaired(model, report.causes), against=Against(right), diagnose=False).passed
    for cause in report.causes:
        alone = remaining(model, cause, report.causes)
        assert not verify(alone, against=Against(right), diagnose=False).matches, cause.text


@pytest.mark.parametrize("harmless", HARMLESS, ids=lambda f: f.__name__)
def test_harmless_differences_pass(harmless: Callable[[Graph], Graph]) -> None:
    right = read(file(sound("LSTM", 8, seed=4)))
    assert verify(harmless(right), against=Against(right), diagnose=False).passed


@pytest.mark.parametrize("name", ["gates", "relu_dropped", "epsilon", "dense_scaled"])
def test_what_our_own_export_adds_is_no_cause(tmp_path: Path, name: str) -> None:
    """Cast, Reshape, Transpose and Identity around the operators."""
    good = sound("GRU", 8, 2, 1, seed=4)
    bad = deepcopy(good)
    wanted = FAULTS[name](bad, 0)
    convert(read(file(bad)), tmp_path / "bad.onnx")
    report = verify(tmp_path / "bad.onnx", against=Against(read(file(good))), seconds=60)
    assert [(each.id, each.evidence) for each in report.causes] == [(wanted, "proved")]
    text = report.causes[0].text
    assert not any(op in text for op in ("Cast", "Reshape", "Identity")), text


# --- what a text names


HELD: Arrays = {
    name: np.random.default_rng(seed).normal(0, 0.4, shape).astype(np.float32)
    for seed, (name, shape) in enumerate(
        {"W": (1, 16, 5), "R": (1, 16, 4), "B": (1, 32), "V": (1, 16, 5), "S": (1, 16, 4)}.items()
    )
}
HELD["one"] = np.array([1])
FORWARD = "F, hn, cn = LSTM <hidden_size = 4> (X, W, R, B, , h0, c0) f = Squeeze (F, one) "
BACKWARD = 'G = LSTM <hidden_size = 4, direction = "reverse"> (X, V, S) b = Squeeze (G, one) '
INPUTS = "float[T, N, 5] X, float[1, N, 4] h0, float[1, N, 4] c0"


def written(body: str, outputs: str = "y, hn, cn") -> bytes:
    """A file of these nodes, with the arrays that they read."""
    made = parsed(f"({INPUTS}) => ({outputs}) {{ {body} }}", HELD)
    names = {name for node in made.graph.node for name in node.input}
    kept = [each for each in made.graph.initializer if each.name in names]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made.SerializeToString()


GOOD = FORWARD + BACKWARD + "t = Tanh (f) c = Concat <axis = 0> (t, b) y = Relu (c)"
NAMED = {
    "Identity for Tanh": (
        "t = Tanh (f)",
        "t = Identity (f)",
        "operator_missing",
        ["Identity that makes 't'", "where the reference has Tanh that makes 't'"],
    ),
    "Identity for Concat": (
        "c = Concat <axis = 0> (t, b)",
        "c = Identity (t)",
        "operator_missing",
        ["Identity that makes 'c'", "where the reference has Concat that makes 'c'"],
    ),
    "edge to the other half": (
        "(t, b)",
        "(t, t)",
        "input_exchanged",
        ["reads 't' where the reference reads 'b'", "Concat that makes 'c'"],
    ),
    "edge past the function": (
        "(t, b)",
        "(f, b)",
        "operator_missing",
        ["skips what the reference has as Tanh that makes 't'", "Concat that makes 'c'"],
    ),
    "edges exchanged": ("(t, b)", "(b, t)", "input_exchanged", ["exchanges 'b' and 't'"]),
    "function added": (
        "y = Relu (c)",
        "n = Neg (c) y = Relu (n)",
        "operator_added",
        ["Neg that makes 'n'", "which the reference has not"],
    ),
    "state returned": (
        "F, hn, cn = LSTM",
        "hn = Identity (h0) F, , cn = LSTM",
        "state_returned",
        ["returns its input 'h0' unchanged", "final hidden state of LSTM that makes 'F'", "'hn'"],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_texts_name_the_node_that_differs(name: str) -> None:
    old, new, id, parts = NAMED[name]
    assert old in GOOD
    body = GOOD.replace(old, new).replace("F, , cn", "F, unused, cn")
    report = verify(read(written(body)), against=Against(read(written(GOOD))), seconds=60)
    (cause,) = report.causes
    assert (cause.id, cause.evidence) == (id, "proved"), cause.text
    assert all(part in cause.text for part in parts), cause.text
    left, where, right = cause.text.partition(" where the reference ")
    assert not where or left.split(" ", 1)[1] != right.split(" ", 1)[1].partition(",")[0]


@pytest.mark.parametrize("states", [["hn"], ["cn"], ["hn", "cn"]])
@pytest.mark.parametrize("recorded", [False, True])
def test_states_that_come_back_unchanged_have_a_cause(states: list[str], recorded: bool) -> None:
    """Against the right file, and against a recording of ONNX Runtime."""
    body = GOOD
    for name in states:
        body = body.replace(f"{name} = LSTM", f"{name}_ = LSTM").replace(f"{name},", f"{name}_,")
        body += f" {name} = Identity ({name[0]}0)"
    body = body.replace("F, hn, cn_ =", "F, hn, cn_ =")
    rng = np.random.default_rng(0)
    given = {"X": rng.normal(0, 1, (6, 5, 5)).astype(np.float32)}
    given |= {name: rng.uniform(-1, 1, (1, 5, 4)).astype(np.float32) for name in ("h0", "c0")}
    good = GOOD.replace("Concat <axis = 0>", "Add")  # one row for each sequence
    bad = body.replace("Concat <axis = 0>", "Add")
    if recorded:
        report = verify(read(written(bad)), recording(written(good), given), seconds=60)
    else:
        report = verify(read(written(bad)), against=Against(read(written(good))), seconds=60)
    evidence = "candidate" if recorded else "proved"
    assert {(each.id, each.evidence) for each in report.causes} == {("state_returned", evidence)}
    assert all(any(name in each.text for each in report.causes) for name in states)


# --- layers of which one side has fewer arrays


def layer(op: str, names: str, **attributes: int) -> bytes:
    """A file of one layer with some of W, R, B, h (initial states) and P (peepholes)."""
    rng = np.random.default_rng(0)
    rows = planted.GATES[op] * 4
    shapes = {"W": (1, rows, 5), "R": (1, rows, 4), "B": (1, 2 * rows), "P": (1, 12)}
    arrays = {k: rng.normal(0, 0.5, s).astype(np.float32) for k, s in shapes.items()}
    said = ", ".join(f"{k} = {v}" for k, v in {"hidden_size": 4, **attributes}.items())
    inputs = ["X", "W", "R", "B" * ("B" in names), "", "h0" * ("h" in names), "", "P"]
    inputs = inputs if "P" in names else inputs[:6]
    text = f"({INPUTS}) => (Y) {{ Y = {op} <{said}> ({', '.join(inputs)}) }}"
    return parsed(text, {k: a for k, a in arrays.items() if k in names}).SerializeToString()


LBR = {"linear_before_reset": 1}
SIDES = [
    (("RNN", "WRB", {}), ("RNN", "WR", {})),
    (("GRU", "WRB", {}), ("GRU", "WR", {})),
    (("GRU", "WRB", LBR), ("GRU", "WR", {})),
    (("GRU", "WRB", LBR), ("GRU", "WR", LBR)),
    (("LSTM", "WRBP", {}), ("LSTM", "WRB", {})),
    (("LSTM", "WRBP", {}), ("LSTM", "WR", {})),
    (("LSTM", "WRBh", {}), ("LSTM", "WRP", {})),
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_layers_with_and_without_bias_or_peepholes_are_repaired(
    tmp_path: Path, sides: tuple[tuple[str, str, dict[str, int]], ...], turned: bool
) -> None:
    good, bad = (layer(op, names, **more) for op, names, more in sides[:: -1 if turned else 1])
    report: Report = verify(read(bad), against=Against(read(good)), seconds=60)
    done = repair(report, tmp_path / "fixed.onnx", Against(read(good)))
    assert done and all("'' -> None" not in line for line in done.changes), done.refused
    rng = np.random.default_rng(5)
    x = {"X": rng.normal(0, 1, (6, 2, 5)), "h0": rng.uniform(-1, 1, (1, 2, 4)), "c0": 0}
    x = {name: np.asarray(value, np.float32) for name, value in x.items()}
    results = []
    for each in (good, (tmp_path / "fixed.onnx").read_bytes()):
        session = onnxruntime.InferenceSession(each)
        taken = {value.name: x[value.name] for value in session.get_inputs() if value.name != "c0"}
        missing = [v.name for v in session.get_inputs() if v.name not in taken]
        taken |= {name: np.zeros((1, 2, 4), np.float32) for name in missing}
        results.append(session.run(["Y"], taken)[0])
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


# --- a narrow dtype that was asked for


def test_the_kernel_is_not_blamed_for_the_dtype_that_a_file_asks_for() -> None:
    right = read(planted.model("GRU", planted.weights("GRU")))
    assert any(node.op == "Rnn" for node in right.nodes)
    narrow = with_attribute(right, "Rnn", precision=LayerPrecision("bf16"))
    report = verify(narrow, against=Against(right))
    notes = " ".join(report.notes)
    assert not report.matches and not report.causes
    assert "in float32 the outputs match" in notes and "bf16" in notes and "kernel" not in notes
    assert verify(narrow, against=Against(right), rtol=2e-2).passed
