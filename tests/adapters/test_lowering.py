"""The shared loop that runs frameworks' rules, and the types of a graph under construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from support.counting import calls_of

from onernn.adapters.common.lowering import (
    GraphBuilder,
    LoweringStep,
    NativeOperator,
    Output,
    Results,
    Rules,
    lower_steps,
)
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import UNSUPPORTED, Graph, NativeOp, Value
from onernn.ir.types import Size

Rule = Callable[[NativeOperator], Results]


def builder(*inputs: Value) -> GraphBuilder:
    made = GraphBuilder("toy")
    for each in inputs or (Value("x", "float32", (None, 4)),):
        made.input(each)
    return made


def step(rule: Rule, *outputs: str, reads: str = "x", **attributes: Any) -> LoweringStep:
    """An operator of a framework; an output is ``variable``, or ``variable=slot``."""
    at = NativeOp(0, "toy")
    view = NativeOperator(
        GraphBuilder("g"), at, {"In": reads.split()}, {}, attributes, frozenset({"inert"})
    )
    pairs = [each.partition("=") for each in outputs]
    chosen = [Output(slot or variable, variable) for variable, _, slot in pairs]
    return LoweringStep(at, tuple(reads.split()), lambda: view.run_rule(rule), lambda _: chosen)


def lowered(*steps: LoweringStep, outputs: str) -> Graph:
    made = builder()
    lower_steps(made, steps, outputs.split())
    return made.graph([Value(made.value(name)) for name in outputs.split()])


def reasons(graph: Graph) -> dict[str, str]:
    refused = [node for node in graph.nodes if node.op == UNSUPPORTED]
    return {node.outputs[0]: node.attributes["reason"] for node in refused}


def relu(made: GraphBuilder) -> Rule:
    return lambda op: made.emit("Relu", [made.value(op.variable("In"))])


@pytest.mark.parametrize(
    "results, slots",
    [("x", "0"), (("x", "x"), "0 1"), ({"Out": "x", "State": "x"}, "Out State")],
    ids=["one", "by position", "by slot"],
)
def test_values_are_bound_by_position_or_by_slot(
    results: str | tuple[str, ...] | Mapping[str, str], slots: str
) -> None:
    def rule(op: NativeOperator) -> Results:
        op.variables("In")
        return results

    made = builder()
    lower_steps(made, [step(rule, *slots.split())])
    assert [made.value(slot) for slot in slots.split()] == ["x"] * len(slots.split())


def test_what_a_rule_does_not_read_refuses_the_operator() -> None:
    graph = lowered(step(lambda op: "x", "0", alpha=1, inert=2), outputs="0")
    (reason,) = reasons(graph).values()
    assert reason.startswith("not understood: attribute alpha, input In; pass a rule")
    assert graph.nodes[0].inputs == ("x",)  # what it depends on is told


def _raising(error: Exception) -> Rule:
    def rule(op: NativeOperator) -> Results:
        raise error

    return rule


@pytest.mark.parametrize(
    "error, reason",
    [
        (UnsupportedError("no such thing"), "no such thing"),
        (KeyError("axis"), "malformed: KeyError 'axis'"),
        (ZeroDivisionError("zero"), "malformed: ZeroDivisionError zero"),
    ],
)
def test_errors_of_a_rule_refuse_all_of_its_outputs_and_nothing_else(
    error: Exception, reason: str
) -> None:
    made = builder()
    steps = [step(_raising(error), "a", "b"), step(relu(made), "0")]
    lower_steps(made, steps)
    graph = made.graph([Value(made.value(name)) for name in ("a", "b", "0")])
    assert reasons(graph) == {"a": reason, "b": reason}
    assert [node.op for node in graph.nodes] == [UNSUPPORTED, UNSUPPORTED, "Relu"]


def test_an_output_that_a_rule_does_not_give_is_refused_alone() -> None:
    def rule(op: NativeOperator) -> Results:
        return {"Out": op.variable("In"), "Lost": ""}

    graph = lowered(step(rule, "Out", "Lost"), outputs="Out Lost")
    assert reasons(graph) == {"Lost": "output Lost is not computed"}


def test_a_bug_of_ours_is_no_refusal() -> None:
    with pytest.raises(AssertionError):
        lowered(step(_raising(AssertionError()), "0"), outputs="0")


def test_two_outputs_may_be_one_value() -> None:
    made = builder()
    tanh = step(lambda op: (made.emit("Tanh", [op.variable("In")]),) * 2, "a=0", "b=1")
    lower_steps(made, [tanh])
    graph = made.graph([Value(made.value(name)) for name in "ab"])
    assert [value.name for value in graph.outputs] == ["a", "a"]


def test_an_operator_of_many_outputs_takes_no_longer_than_they_are() -> None:
    """One after the other took minutes: each new name was looked for in all of them."""
    made, count = builder(), 2**14
    split = step(
        lambda op: made.emit_many("Split", [op.variable("In")], count),
        *(f"y{at}={at}" for at in range(count)),
    )
    calls = calls_of(lambda: lower_steps(made, [split]))
    assert made.nodes[0].outputs[-1] == f"y{count - 1}" and calls < 50 * count


def test_outputs_may_depend_on_how_many_values_there_are() -> None:
    made = builder()
    rule = relu(made)
    plain = step(rule, reads="x")
    names = LoweringStep(
        plain.at,
        plain.reads,
        plain.lower,
        lambda count: [Output("0", "key", "only" if count == 1 else "first")],
    )
    lower_steps(made, [names])
    assert made.value("key") == "only"


def test_large_constants_are_let_go_of_behind_their_last_reader_but_not_before() -> None:
    made = builder()
    large = made.constant(np.ones((600, 600), np.float32), "large")
    seen: list[bool] = []

    def turned(op: NativeOperator) -> Results:
        op.variables("In")
        return made.emit("Transpose", [large], {"perm": (1, 0)})

    def asks(op: NativeOperator) -> Results:
        seen.append(made.value(op.variable("In")) in made.constants)
        return "x"

    steps = [step(turned, "a=0"), step(asks, "b=0", reads="a"), step(asks, "c=0", reads="a")]
    lower_steps(made, steps)
    assert seen == [True, True] and "a" not in made.constants and large in made.constants
    made = builder()
    large = made.constant(np.ones((600, 600), np.float32), "large")
    lower_steps(made, [step(turned, "a=0"), step(asks, "b=0", reads="a")], kept=["a"])
    assert "a" in made.constants


def test_types_are_known_while_a_graph_is_built_whatever_its_values_are_called_later() -> None:
    made = builder(Value("x", "float32", (None, 4)), Value("y", "float32", (None, None)))
    weight = made.constant(np.ones((4, 3), np.float32), "w")
    product = made.emit("MatMul", ["x", weight])
    assert str(made.type_of(product)) == "float32(x.0, 3)"
    made.give("product", product)
    assert made.type_of("product") == made.type_of(made.value("product"))
    assert str(made.type_of("product")) == "float32(x.0, 3)"
    shape = made.emit("Shape", ["product"])
    assert made.type_of(shape).value == (Size.of("x.0"), Size.of(3))
    folded = made.emit("Transpose", [weight], {"perm": (1, 0)})
    assert folded in made.constants and made.type_of(folded).counts == (3, 4)


def test_sizes_that_must_be_equal_are_one_as_soon_as_a_node_says_so() -> None:
    made = builder(Value("x", "float32", (None, 4)), Value("y", "float32", (None, 2)))
    assert made.type_of("y").counts == (None, 2)
    before = made.type_of("y")
    made.emit("MatMul", ["x", "y"])
    made.emit("Relu", ["y"])
    after = made.type_of("y")
    assert before.counts == (None, 2) and after.counts == (4, 2)


def test_a_declared_type_holds_for_what_is_made_of_the_value_from_then_on() -> None:
    made = builder(Value("x", "float32"))
    before = made.emit("Tanh", ["x"])
    assert made.type_of(before).rank is None
    made.declare("x", Value("x", "float32", (None, 3)).type)
    assert made.type_of(made.emit("Tanh", ["x"])).counts == (None, 3)
    assert made.type_of(before).rank is None


def test_nothing_is_known_of_what_nobody_has_made() -> None:
    made = builder()
    assert made.type_of("later").shape is None
    made.refuse("later", "no rule")
    assert made.type_of("later").shape is None


def test_a_list_of_integers_among_a_nodes_inputs_is_a_constant_of_int64() -> None:
    made = builder()
    op = NativeOperator(made, NativeOp(0, "toy"), {}, {}, {})
    node = made.maker(op.emit("ReduceSum", "x", [1], keepdims=0))
    assert node is not None
    axes = made.constants[node.inputs[1]]
    assert axes.dtype == np.int64 and axes.tolist() == [1]


def test_an_attribute_of_known_values_is_refused_with_them() -> None:
    op = NativeOperator(builder(), NativeOp(0, "toy"), {}, {}, {"mode": "wrap"})
    assert op.one_of("mode", "edge", ("edge", "wrap")) == "wrap"
    with pytest.raises(UnsupportedError, match="mode='wrap'"):
        op.one_of("mode", "edge", ("edge", "reflect"))


def test_a_second_rule_for_an_operator_is_refused() -> None:
    rules = Rules[str]()
    rules("abs neg")("first")
    with pytest.raises(ValueError, match=r"\['neg'\]"):
        rules("sign neg")("second")
    assert dict(rules) == {"abs": "first", "neg": "first"}
