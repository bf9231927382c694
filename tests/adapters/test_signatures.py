"""What a rule's signature says of an operator: slots, attributes, and what is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.paddle_operators import op, program

from onernn import Graph, Ragged, Session
from onernn.adapters.common.signatures import OneOf, Signature
from onernn.adapters.paddle import lower as paddle_lower
from onernn.adapters.paddle.table import RULES, DenseTensor, PaddleTensor


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lowers ``x -> stretch -> y`` with a rule of the test's own."""

    def lower(rule: Any, tensor: Any = PaddleTensor, only: Any = (), **attributes: Any) -> Graph:
        monkeypatch.setitem(RULES, "stretch", Signature(rule, dict(only), tensor))
        stretch = op("stretch X=x -> Out=y", **attributes)
        return paddle_lower.lower(program(stretch))

    return lower


def run(graph: Graph) -> np.ndarray:
    x = Ragged(np.array([[1, -2, 3, -4]], np.float32), np.array([0, 1]))
    (result,) = Session(graph, backend="reference").run({"x": x}).values()
    return np.asarray(result.data)


def refusal(graph: Graph) -> str:
    (reason,) = (n.attributes["reason"] for n in graph.nodes if n.op == "Unsupported")
    return str(reason)


def test_values_compute_by_pythons_operators_and_by_canonical_ones(lower: Any) -> None:
    graph = lower(lambda X, *, by=2.0: (X.Abs() * by + 1.0 - X) / 2.0, by=4.0)
    assert run(graph).tolist() == [[2.0, 5.5, 5.0, 10.5]]


def test_an_attribute_that_the_file_lacks_has_the_signatures_default(lower: Any) -> None:
    assert run(lower(lambda X, *, by=2.0: X * by)).tolist() == [[2, -4, 6, -8]]


def test_a_parameter_without_a_default_is_a_required_slot(lower: Any) -> None:
    assert "Y" in refusal(lower(lambda X, Y: X + Y))
    assert run(lower(lambda X, Y=None: X if Y is None else X + Y)).tolist() == [[1, -2, 3, -4]]


def test_an_attribute_that_no_parameter_names_is_refused_by_name(lower: Any) -> None:
    assert "twist" in refusal(lower(lambda X: X.Abs(), twist=3))


def test_an_attribute_of_another_kind_than_its_default_is_refused_by_name(lower: Any) -> None:
    assert "by" in refusal(lower(lambda X, *, by=2.0: X * by, by="wide"))


def test_the_decorator_allows_one_value_of_an_attribute(lower: Any) -> None:
    def rule(X: Any) -> Any:
        return X.Abs()

    assert run(lower(rule, only={"twist": 0}, twist=0)).tolist() == [[1, 2, 3, 4]]
    assert "twist=1" in refusal(lower(rule, only={"twist": 0}, twist=1))


def test_a_slot_that_must_be_empty_is_refused_by_name(lower: Any) -> None:
    assert "X" in refusal(lower(lambda: None, only={"X": ""}))


def test_one_of_known_meanings_is_what_the_rule_receives(lower: Any) -> None:
    mode = OneOf("up", {"up": "Ceil", "down": "Floor"})

    def rule(X: Any, *, mode: Any = mode) -> Any:
        return getattr(X / 2.0, mode)()

    assert run(lower(rule, mode="down")).tolist() == [[0, -1, 1, -2]]
    assert run(lower(rule)).tolist() == [[1, -1, 2, -2]]
    assert "sideways" in refusal(lower(rule, mode="sideways"))


def test_an_input_that_is_returned_becomes_a_value_of_its_own(lower: Any) -> None:
    graph = lower(lambda X: X)
    assert [node.op for node in graph.nodes] == ["Identity"]


def test_a_ragged_input_of_the_dynamic_mode_is_refused(lower: Any) -> None:
    assert "X" in refusal(lower(lambda X: X.Abs(), tensor=DenseTensor))
