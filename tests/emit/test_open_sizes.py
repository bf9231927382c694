"""Sizes: polynomials that behave as the numbers which they stand for."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.counting import calls_of
from support.graphs import new_node, small

from onernn import Graph, UnsupportedError
from onernn.engine.emit import write_cpp
from onernn.ir.graph import Node, Value
from onernn.ir.types import Size

T, N = Size.of("T"), Size.of("N")
NUMBERS = {"T": 7, "N": 3, "W": 11}
SIZES = st.recursive(
    st.one_of(st.sampled_from(list(NUMBERS)).map(Size.of), st.integers(-4, 4).map(Size.of)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*"), inner, inner),
        st.tuples(st.just("/"), inner, st.integers(1, 9).map(Size.of)),
    ),
    max_leaves=8,
)


def computed(tree: Any) -> tuple[Size, int]:
    """A size, and the number that plain integers give."""
    if isinstance(tree, Size):
        return tree, eval(str(tree), dict(NUMBERS))
    sign, *sides = tree
    (a, one), (b, other) = map(computed, sides)
    if sign == "/":
        return a.floor_div(other), one // other
    both = {"+": (a + b, one + other), "-": (a - b, one - other), "*": (a * b, one * other)}
    return both[sign]


@given(SIZES)
def test_sizes_compute_as_numbers_and_say_so_in_c(tree: Any) -> None:
    size, number = computed(tree)
    assert size.substitute(NUMBERS).number == number
    assert (
        size.substitute({"T": "N", "N": "T"}).substitute({"N": 7, "T": 3, "W": 11}).number == number
    )
    assert eval(str(size).replace("/", "//"), dict(NUMBERS)) == number
    assert size.most().substitute(NUMBERS).number >= number


@given(SIZES)
def test_what_is_divided_in_c_is_never_negative(tree: Any) -> None:
    """It would be rounded to 0 there, and down here."""
    size, _ = computed(tree)
    assert all(by > 0 for each in size.quotients for _, by in each.whole.terms)


@given(SIZES, SIZES, st.integers(1, 6), st.integers(1, 6))
def test_equal_quotients_are_equal(tree: Any, more: Any, by: int, factor: int) -> None:
    """Left out are sizes that repeat only beyond 10^7 points: their equality is not decided."""
    (size, _), (other, _) = computed(tree), computed(more)
    widest = (size + other).floor_div(by * factor)
    points = (widest.period(name) * (widest.degree(name) + 1) for name in widest.names)
    assume(math.prod(points) <= 10**7)
    quotient = size.floor_div(by)
    assert (size + other * by).floor_div(by) == quotient + other
    assert (size * factor).floor_div(by * factor) == quotient
    assert quotient.floor_div(factor) == size.floor_div(by * factor)
    assert (size * by + (by - 1)).floor_div(by) == size


@pytest.mark.parametrize(
    "one, other",
    [
        (T - T.floor_div(2), (T + 1).floor_div(2)),
        (T.floor_div(3) + (T + 1).floor_div(3) + (T + 2).floor_div(3), T),
        (
            (T.floor_div(2) + N.floor_div(3)).floor_div(5),
            (T * 3 + N.floor_div(3) * 6).floor_div(30),
        ),
        ((T * T + T).floor_div(2) * 2, T * (T + 1)),
        (((T + 1).floor_div(2) - T).floor_div(3), (0 - T.floor_div(2)).floor_div(3)),
    ],
)
def test_sizes_are_equal_if_they_are_the_same_numbers(one: Size, other: Size) -> None:
    for t, n in np.ndindex(60, 60):  # more than a period of each
        numbers = {"T": t, "N": n}
        assert one.substitute(numbers) == other.substitute(numbers)
    assert one == other and hash(one) == hash(other)
    assert one + 1 != other
    assert len({one, other}) == 1


def test_sizes_that_seldom_differ_are_not_equal() -> None:
    for by in (7, 1000, 10**5, 10**9):
        assert T.floor_div(by) != (T + 1).floor_div(by)
        assert (T * N).floor_div(by) != (T * N + 1).floor_div(by)


def test_quotients_are_bounded_as_all_sizes_are() -> None:
    size, big = Size.of("T"), 2**40
    with pytest.raises(UnsupportedError, match="expected fewer names"):
        for _ in range(300):
            size = (size * 2 + 1).floor_div(3)
    with pytest.raises(UnsupportedError, match="64 bits"):
        Size.of("T").floor_div(big).floor_div(big)
    for by in (0, -1, 2**63):
        with pytest.raises(ValueError, match="positive"):
            size.floor_div(by)


@given(SIZES, st.sampled_from(["T", "N"]), st.integers(1, 5))
def test_a_quotient_is_whole_or_refused(tree: Any, name: str, count: int) -> None:
    size, number = computed(tree)
    by = Size.of(name) * count
    assert (size * by) // by == size
    try:
        quotient = size // by
    except ValueError as error:
        assert str(by) in str(error)
    else:
        assert quotient * by == size
    with pytest.raises(ValueError, match=r"T \+ 1"):
        size // (Size.of("T") + 1)


def test_numpys_numbers_leave_arithmetic_to_sizes() -> None:
    assert np.int64(3) * Size.of("T") == Size.of("T") * 3
    assert np.int64(3) - Size.of("T") == Size.of(3) - "T"


def _joined(count: int) -> Graph:
    """Twice as long, so many times."""
    nodes = [Node("Concat", (f"v{k}",) * 2, (f"v{k + 1}",), {"axis": 0}) for k in range(count)]
    return _graph(nodes, [Value("v0", "float32", (None, 1))], f"v{count}")


def _squared(count: int) -> Graph:
    """(a,) -> (a, 1) x (1, a): as many names in a size as numbers of two to that power."""
    nodes = []
    for k in range(count):
        nodes += [new_node(f"{side}{k} = Reshape v{k} {side}") for side in ("column", "row")]
        nodes.append(new_node(f"v{k + 1} = MatMul column{k} row{k}"))
    return _graph(nodes, [Value("v0", "float32", (None, None))], f"v{count}")


def _equal(count: int) -> Graph:
    """Every input is as long as the next one, which turns out one after the other."""
    nodes = [new_node(f"sum{k} = Add v{k} v{k + 1}") for k in range(count)]
    inputs = [Value(f"v{k}", "float32", (None, 1)) for k in range(count + 1)]
    return _graph(nodes, inputs, *(f"sum{k}" for k in range(count)))


def _graph(nodes: list[Node], inputs: list[Value], *outputs: str) -> Graph:
    constants = {"column": np.array([-1, 1]), "row": np.array([1, -1]), "years": np.array(2**50)}
    made = tuple(map(Value, outputs))
    return Graph("m", tuple(inputs), made, tuple(nodes), constants).prune()


@pytest.mark.parametrize("made", [_joined(63), _squared(34)], ids=["joined", "squared"])
def test_sizes_that_nobody_computes_with_are_refused_at_once(made: Graph, tmp_path: Path) -> None:
    def refused() -> None:
        with pytest.raises(UnsupportedError, match="expected fewer names"):
            write_cpp(made, tmp_path)

    assert calls_of(refused) < 2_000_000  # 2**34 names, or 2**63
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_two_thousand_sizes_turn_out_to_be_one(tmp_path: Path) -> None:
    """Four times as many take some four times the work, where each with each other took 16."""
    write_cpp(_equal(2000), tmp_path, name="m")
    few, many = (
        calls_of(partial(write_cpp, _equal(count), tmp_path / str(count), name="m"))
        for count in (100, 400)
    )
    assert many < 8 * few
    assert "struct Sizes {\n  std::int64_t v2000_0 = 1;\n};" in (tmp_path / "m.hpp").read_text()


def _doubled(count: int) -> Graph:
    """A constant that is joined with itself, again and again."""
    names = ["row", *(f"twice{k}" for k in range(count))]
    nodes = [new_node(f"{b} = Concat {a} {a}", axis=0) for a, b in pairwise(names)]
    nodes.append(Node("Add", ("x", names[-1]), ("y",)))
    return _graph(nodes, [Value("x", "float32", (1,))], "y")


def _turning() -> Graph:
    """A loop over constants that ends in years."""
    inside = [new_node("still = Identity on"), new_node("w = Neg v")]
    body = small(inside, {"turn": ("int64",), "on": ("bool",), "v": None}, "still w")
    nodes = [new_node("v = Loop years  row", body=body, carried=1)]
    nodes.append(new_node("y = Add x v"))
    return _graph(nodes, [Value("x", "float32", (2,))], "y")


@pytest.mark.parametrize("made, told", [(_doubled(60), "bytes"), (_turning(), "operators")])
def test_what_is_made_of_constants_has_a_budget(made: Graph, told: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rf"more than .* {told}|would take .* {told}"):
        write_cpp(made, tmp_path)


@pytest.mark.parametrize("made", [_joined(20), _squared(3), _equal(30)])
def test_sizes_that_grow_a_little_are_generated(made: Graph, tmp_path: Path) -> None:
    assert write_cpp(made, tmp_path)


def test_a_size_that_an_export_fixed_is_said_by_its_name(tmp_path: Path) -> None:
    """Exporters write the T of their example into a Reshape although the input leaves it open."""
    graph = small(
        (new_node("flat = Reshape x s"), new_node("y = Tanh flat")),
        {"x": (None, None, 5)},
        s=np.array([7, -1, 5]),
    )
    with pytest.raises(
        UnsupportedError, match="these sizes suffice: pass --static x_0=7$"
    ) as error:
        write_cpp(graph, tmp_path)
    assert str(error.value).count("node 'flat'") == 1
    assert write_cpp(graph, tmp_path, static={"x_0": 7})
