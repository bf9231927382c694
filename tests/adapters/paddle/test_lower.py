"""Programs of Paddle to graphs: what is not understood is in the graph, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.graphs import reference
from support.paddle_operators import op, program

from onernn import Graph, ModelFormatError, Ragged, Session, UnsupportedError
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Operator, Variable
from onernn.adapters.paddle.table import INERT
from onernn.ir.arrays import Array

X = np.arange(-4, 8, dtype=np.float32).reshape(3, 4)


def reasons(graph: Graph) -> list[str]:
    with pytest.raises(UnsupportedError) as error:
        Session(graph, backend="reference")
    assert all(str(refusal) in str(error.value) for refusal in error.value.refusals)
    return [str(refusal) for refusal in error.value.refusals]


def run(graph: Graph, **more: Array) -> dict[str, Any]:
    feeds = {"x": Ragged(X, [0, 1, 3]), **more}
    return reference(graph, feeds)


TANH = op("tanh X=x -> Out=y")


@pytest.mark.parametrize(
    "operator, reason",
    [
        (op("tanh X=x -> Out=y", slope=2.0), "not understood: attribute slope"),
        (op("tanh X=x Mask=x -> Out=y"), "not understood: input Mask"),
        (
            op("tanh X=x B=x -> Out=y", a=1),
            "not understood: attribute a, input B",
        ),
        (op("no_such_operator X=x -> Out=y"), "this operator is not known"),
        (op("tanh -> Out=y"), "input X is missing"),
        (op("tanh X=x,x -> Out=y"), "input X: expected one variable, got 2"),
        (
            op("scale X=x -> Out=y", scale="big"),
            "attribute scale='big': expected a value like 1.0",
        ),
        (op("transpose2 X=x -> Out=y", data_format="NHWC"), "data_format='NHWC'"),
        (op("concat", {"X": ()}, {"Out": "y"}), "malformed: "),
    ],
    ids=lambda value: value if isinstance(value, str) else value.type,
)
def test_what_a_rule_does_not_read_is_refused_by_name(operator: Operator, reason: str) -> None:
    (refusal,) = reasons(lower(program(operator)))
    assert refusal.startswith(f"node 'y' ({operator.type}): ")
    assert reason in refusal


def test_a_session_lists_every_refusal_at_once() -> None:
    graph = lower(
        program(
            op("no_such_operator X=x -> Out=a"),
            op("tanh X=a -> Out=b", slope=2.0),
            op("nor_this_one X=x -> Out=c"),
            op("nor_that", {"X": "x"}, {"Out": "nobody reads it"}),
            op("concat X=b,c -> Out=y", axis=1),
        )
    )
    assert [each.split(": ")[0] for each in reasons(graph)] == [
        "node 'a' (no_such_operator)",
        "node 'b' (tanh)",
        "node 'c' (nor_this_one)",
    ]


def test_an_operator_after_a_refused_one_does_not_blame_the_lod() -> None:
    graph = lower(
        program(
            op("no_such_operator X=x -> Out=a"),
            op("sequence_pool X=a -> Out=y", pooltype="MAX"),
        )
    )
    _, reason = reasons(graph)
    assert reason.endswith("input X: node 'a' (no_such_operator) is refused")


def test_an_fc_that_a_pass_of_paddle_saved_runs_unless_it_computes_in_int8() -> None:
    whole, int8 = (
        lower(
            program(
                op("fc Input=x W=w -> Out=y", support_int8=flag),
                parameters={"w": np.eye(4, dtype=np.float32)},
            )
        )
        for flag in (False, True)
    )
    assert_array_equal(run(whole)["y"].data, X)
    (reason,) = reasons(int8)
    assert "attribute support_int8=True: only False is supported" in reason


def test_an_operator_that_no_output_needs_may_be_unknown() -> None:
    graph = lower(program(op("beam_search X=x -> Out=z"), TANH))
    assert_array_equal(run(graph)["y"].data, np.tanh(X))


WEIGHTS = {"wx": np.ones((4, 6), np.float32), "wh": np.ones((2, 6), np.float32)}
SIDES = [
    op(
        "gru Input=p Weight=wh -> Hidden=y BatchGate=BatchGate BatchHidden=BatchHidden"
        " BatchResetHiddenPrev=BatchResetHiddenPrev"
    ),
    op(
        "fusion_gru X=x WeightX=wx WeightH=wh -> Hidden=y ReorderedH0=ReorderedH0 XX=XX"
        " BatchedInput=BatchedInput BatchedOut=BatchedOut"
    ),
    op("dropout X=x -> Out=y Mask=Mask"),
    op("reshape2 X=x -> Out=y XShape=XShape", shape=(0, 4)),
]
"""Each with its side outputs, in variables of their names."""


@pytest.mark.parametrize("operator", SIDES, ids=lambda operator: operator.type)
def test_side_outputs_are_refused_where_somebody_reads_them(operator: Operator) -> None:
    operators = [op("mul X=x Y=wx -> Out=p"), operator]
    assert run(lower(program(*operators, parameters=WEIGHTS)))["y"].lod == [[0, 1, 3]]
    for side in operator.writes[1:]:
        reader = op(f"relu X={side} -> Out=read")
        for fetched in (("y", side), ("y", "read")):
            graph = lower(program(*operators, reader, parameters=WEIGHTS, fetches=fetched))
            expected = f"node '{side}' ({operator.type}): output {side} is not computed"
            assert reasons(graph) == [expected]


def test_inert_attributes_are_ignored() -> None:
    inert = dict.fromkeys(INERT, "whatever")
    graph = lower(program(op("tanh X=x -> Out=y", **inert)))
    assert_array_equal(run(graph)["y"].data, np.tanh(X))
    assert not INERT & {"scale", "bias", "axis", "activation", "origin_mode", "is_reverse"}


def test_a_variable_that_is_assigned_again_holds_the_last_value_under_its_name() -> None:
    graph = lower(
        program(
            op("tanh X=x -> Out=y"),
            op("sigmoid X=y -> Out=before"),
            op("relu X=y -> Out=y"),
            op("sigmoid X=y -> Out=after"),
            fetches=("after", "y", "before"),
        )
    )
    assert [value.name for value in graph.outputs] == ["after", "y", "before"]
    got = run(graph)
    first, last = np.tanh(X), np.maximum(np.tanh(X), 0)
    assert_array_equal(got["y"].data, last)
    assert_allclose(got["before"].data, 1 / (1 + np.exp(-first)), rtol=1e-6)
    assert_allclose(got["after"].data, 1 / (1 + np.exp(-last)), rtol=1e-6)


def test_an_input_that_is_assigned_again_does_not_change_what_was_read_before() -> None:
    graph = lower(
        program(
            op("tanh X=x -> Out=before"),
            op("relu X=x -> Out=x"),
            op("tanh X=x -> Out=y"),
            fetches=("y", "before"),
        )
    )
    got = run(graph)
    assert_array_equal(got["before"].data, np.tanh(X))
    assert_array_equal(got["y"].data, np.tanh(np.maximum(X, 0)))


def test_the_declared_rank_of_a_variable_that_is_assigned_again_is_not_believed() -> None:
    """The declaration is that of one of its values; each has the rank that follows for it."""
    bias = {"b": np.ones(4, np.float32)}
    graph = lower(
        program(
            op("unsqueeze2 X=x -> Out=z", axes=(2,)),
            op("elementwise_add X=z Y=b -> Out=y", axis=1),
            op("squeeze2 X=z -> Out=z", axes=(2,)),
            parameters=bias,
        )
    )
    assert_array_equal(run(graph)["y"].data, X[:, :, np.newaxis] + 1)


@pytest.mark.parametrize(
    "operators, message",
    [
        (
            [op("tanh X=a -> Out=y"), op("relu X=y -> Out=a")],
            "node 'y' .tanh. reads 'a': expected a value of an earlier node",
        ),
        ([op("tanh X=y -> Out=y")], "reads 'y': expected a value of an earlier node"),
        ([op("tanh X=x -> Out=z")], "output 'y': expected a value of a node"),
    ],
    ids=["cycle", "itself", "nobody"],
)
def test_programs_that_contradict_themselves_are_no_models(
    operators: list[Operator], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message) as error:
        lower(program(*operators))
    assert error.value.file.endswith("model.pdmodel")


def test_feeds_and_fetches_come_in_the_order_of_their_columns() -> None:
    add = op("elementwise_add X=x Y=h -> Out=y")
    graph = lower(program(add, feeds=("x", "h"), fetches=("y", "h"), backwards=True))
    assert [value.name for value in graph.inputs] == ["h", "x"]
    assert [value.name for value in graph.outputs] == ["h", "y"]


@pytest.mark.parametrize("column", ["", "0", (0,)])
def test_a_column_that_is_no_number_is_told(column: Any) -> None:
    whole = program(op("relu X=x -> Out=y"))
    fed = replace(whole.operators[0], attributes={"col": column})
    with pytest.raises(ModelFormatError, match="feed: attribute col="):
        lower(replace(whole, operators=(fed, *whole.operators[1:])))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_numbers_that_numpy_does_not_compute_like_paddle_are_refused(dtype: str) -> None:
    declared = {"x": Variable("x", 7, dtype, (None, 4), 1, False)}
    (refusal,) = reasons(lower(program(TANH, **declared)))
    assert "input X: expected one of bool" in refusal and f"got {dtype}" in refusal


def test_dropout_in_training_mode_is_told() -> None:
    dropout = op("dropout X=x -> Out=y Mask=m", dropout_prob=0.5)
    graph = lower(program(dropout))
    assert graph.notes == ("dropout saved in training mode runs as in inference",)
    assert_array_equal(run(graph)["y"].data, X / 2)
