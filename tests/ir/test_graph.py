"""`Graph`: refuses what cannot run, and never changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import new_node

from onernn.ir.errors import ModelFormatError
from onernn.ir.graph import Graph, NativeOp, Node, Value
from onernn.ir.types import UNKNOWN


def op(inputs: str, outputs: str, name: str = "Op") -> Node:
    """A node by its values' names; "-" is an absent one."""

    def names(text: str) -> tuple[str, ...]:
        return tuple("" if word == "-" else word for word in text.split())

    return Node(name, names(inputs), names(outputs))


def graph(
    nodes: list[Node], outputs: str, inputs: str = "x", constants: dict[str, Any] | None = None
) -> Graph:
    return Graph(
        "model.onnx",
        tuple(map(Value, inputs.split())),
        tuple(map(Value, outputs.split())),
        tuple(nodes),
        constants or {},
    )


@pytest.fixture
def diamond() -> Graph:
    """x -> a -> (b, c) -> d, with a weight each for a and c, and an input that nobody uses."""
    nodes = [op("x wa", "a"), op("a", "b"), op("a wc", "c"), op("b c", "d")]
    return graph(nodes, "d", "x unused", {"wa": np.ones(2), "wc": np.ones(3)})


@pytest.mark.parametrize(
    "nodes, outputs, message",
    [
        ([op("nobody", "a")], "a", r"node 'a' \(Op\) reads 'nobody'"),
        ([op("b", "a"), op("x", "b")], "a", r"node 'a' .* reads 'b'"),
        ([op("x b", "a"), op("a", "b")], "b", r"node 'a' .* reads 'b'"),
        ([op("x a", "a")], "a", r"node 'a' .* reads 'a'"),
        ([op("x", "a"), op("x", "a")], "a", r"node 'a' \(Op\) makes 'a'"),
        ([op("x", "a a")], "a", "makes 'a'"),
        ([op("w", "x")], "x", "makes 'x'"),
        ([op("x", "w")], "w", "makes 'w'"),
        ([op("x", "a")], "a z", "output 'z'"),
    ],
    ids=["unknown", "order", "cycle", "self", "twice", "one-node", "input", "constant", "output"],
)
def test_what_cannot_run_is_a_format_error(nodes: list[Node], outputs: str, message: str) -> None:
    with pytest.raises(ModelFormatError, match=rf"^model\.onnx: .*{message}"):
        graph(nodes, outputs, constants={"w": np.ones(1)})


def test_absent_optional_values_are_no_values() -> None:
    found = graph([op("x - -", "- a -"), op("- a", "- b")], "b")
    assert [node.outputs for node in found.nodes] == [("", "a", ""), ("", "b")]
    assert found.producer("") is None


def test_an_output_may_be_an_input_or_a_constant() -> None:
    found = graph([], "x w", constants={"w": np.ones(1)})
    assert found.is_output("x")
    assert found.is_output("w")


def test_the_error_tells_file_and_native_operator() -> None:
    node = Node("MatMul", ("y", "y"), ("a",), origin=(NativeOp(3, "mul"), NativeOp(4, "fc")))
    with pytest.raises(ModelFormatError, match=r"^model\.onnx: node 'a' \(mul\+fc\) reads 'y'"):
        graph([node], "a")


@pytest.mark.parametrize(
    "node, problem",
    [
        (new_node("TopK", "x", "a"), "expected 2 to 2 inputs, got 1"),
        (new_node("Tanh", "x x", "a"), "expected 1 to 1 inputs, got 2"),
        (new_node("Tanh", "", "a"), "input x is missing"),
        (new_node("Concat", "x ", "a", axis=0), "input rest is missing"),
        (new_node("Tanh", "x", "a b"), "expected 1 to 1 outputs, got 2"),
        (new_node("Tanh", "x", "a", odd=1), "unknown attribute odd"),
        (new_node("Concat", "x x", "a"), "attribute axis is missing"),
        (new_node("Transpose", "x", "a", perm=({}, {})), r"attribute perm=.*like \(0,\)"),
        (new_node("Transpose", "x", "a", perm="ab"), "attribute perm='ab'.*like 0"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_inputs_outputs_and_attributes_are_checked_when_a_graph_is_made(
    node: Node, problem: str
) -> None:
    with pytest.raises(ModelFormatError, match=rf"^model\.onnx: node 'a' \({node.op}\): {problem}"):
        graph([node], "a")


def test_the_first_graph_of_a_process_is_checked_and_typed_like_later_ones() -> None:
    code = (
        "import onernn\n"
        "x, y = onernn.Value('x', 'float32', (2, 3)), onernn.Value('y')\n"
        "node = onernn.Node('Softmax', ('x',), ('y',))\n"
        "print(node.attrs.axis, onernn.Graph('m', (x,), (y,), (node,), {}).types['y'].dtype)\n"
        "wrong = onernn.Node('Softmax', ('x',), ('y',), {'axes': 0})\n"
        "onernn.Graph('m', (x,), (y,), (wrong,), {})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "-1 float32\n"
    assert "ModelFormatError: m: node 'y' (Softmax): unknown attribute axes" in done.stderr


def test_producers_and_users(diamond: Graph) -> None:
    a, b, c, d = diamond.nodes
    assert [diamond.producer(name) for name in "abcd"] == [a, b, c, d]
    assert [diamond.producer(name) for name in ("x", "wa", "", "nobody")] == [None] * 4
    assert diamond.producer("a", "Add", "Op") is a and diamond.producer("a", "Add") is None
    assert diamond.users("a") == [b, c]
    assert diamond.users("wc") == [c]
    assert diamond.users("d") == diamond.users("unused") == diamond.users("nobody") == []


def test_a_node_that_uses_a_value_twice_is_one_user() -> None:
    found = graph([op("x x", "a")], "a")
    assert found.users("x") == [found.nodes[0]]
    assert found.is_used_only_by("x", found.nodes[0])


def test_used_only_by_counts_the_caller_too(diamond: Graph) -> None:
    a, b, _, d = diamond.nodes
    assert diamond.is_used_only_by("b", d)
    assert diamond.is_used_only_by("x", a)
    assert not diamond.is_used_only_by("a", b)  # c uses it as well
    assert not diamond.is_used_only_by("d", d)  # its maker, and an output
    shown = graph(list(diamond.nodes), "d b", "x unused", dict(diamond.constants))
    assert not shown.is_used_only_by("b", shown.nodes[3])


def test_splice_puts_the_new_where_the_last_of_the_old_was() -> None:
    nodes = [op("x", "a"), op("x", "p"), op("a", "b"), op("b p", "c")]
    old = graph(nodes, "c")
    new = old.splice((nodes[0], nodes[2]), (op("x w", "m"), op("m p", "b")), {"w": np.ones(1)})
    # "p" is made between the old ones: the new may use it only because they stand last.
    assert [node.outputs[0] for node in new.nodes] == ["p", "m", "b", "c"]
    assert new.nodes[0] is nodes[1]
    assert new.nodes[3] is nodes[3]
    assert new.constants["w"].tolist() == [1]
    assert (new.name, new.inputs, new.outputs) == (old.name, old.inputs, old.outputs)


def test_splice_leaves_the_old_graph_alone(diamond: Graph) -> None:
    before = (diamond.nodes, dict(diamond.constants), diamond.users("a"), diamond.producer("c"))
    new = diamond.splice([diamond.nodes[2]], [op("a wn", "c", "New")], {"wn": np.ones(4)})
    after = (diamond.nodes, dict(diamond.constants), diamond.users("a"), diamond.producer("c"))
    assert after == before
    assert set(diamond.constants) == {"wa", "wc"}
    assert set(new.constants) == {"wa", "wn"}  # nobody uses wc any longer
    assert new.users("a") == [new.nodes[1], new.nodes[2]]
    found = new.producer("c")
    assert found is not None
    assert found.op == "New"


def test_splice_prunes_what_only_the_old_needed(diamond: Graph) -> None:
    new = diamond.splice([diamond.nodes[2]], [op("x", "c")])
    assert [node.outputs[0] for node in new.nodes] == ["a", "b", "c", "d"]
    new = new.splice([new.nodes[1]], [op("x", "b")])
    assert [node.outputs[0] for node in new.nodes] == ["b", "c", "d"]
    assert dict(new.constants) == {}


def test_splice_cannot_take_away_what_is_used(diamond: Graph) -> None:
    twice = [op("a", "c"), op("a", "b")]
    for old, new, told in ((0, [], "reads 'a'"), (3, [], "output 'd'"), (2, twice, "makes 'b'")):
        with pytest.raises(ModelFormatError, match=told):
            diamond.splice([diamond.nodes[old]], new)


def test_pruned_keeps_inputs_and_whoever_makes_one_needed_output() -> None:
    nodes = [op("x w", "a side"), op("side", "dead"), op("a", "b -")]
    constants = {"w": np.ones(1), "lonely": np.ones(1)}
    found = graph(nodes, "b", "x unused", constants).prune()
    assert [node.outputs for node in found.nodes] == [("a", "side"), ("b", "")]
    assert [value.name for value in found.inputs] == ["x", "unused"]
    assert set(found.constants) == {"w"}
    assert graph([], "w", constants=constants).prune().constants["w"].tolist() == [1]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """For each node the earlier nodes it uses; and the nodes that are outputs."""
    size = draw(st.integers(1, 8))
    uses = [draw(st.lists(st.integers(0, n - 1), max_size=3)) if n else [] for n in range(size)]
    return uses, draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=2, unique=True))


@given(networks())
def test_pruned_is_what_the_outputs_reach(network: tuple[list[list[int]], list[int]]) -> None:
    uses, outputs = network
    nodes = [op(" ".join(["x", *(f"v{m}" for m in used)]), f"v{n}") for n, used in enumerate(uses)]
    whole = graph(nodes, " ".join(f"v{n}" for n in outputs))
    reached: set[int] = set()

    def visit(n: int) -> None:
        reached.add(n)
        for m in uses[n]:
            visit(m)

    for n in outputs:
        visit(n)
    assert whole.prune().nodes == tuple(nodes[n] for n in sorted(reached))
    for n in range(len(nodes)):
        assert whole.users(f"v{n}") == [nodes[m] for m in range(len(nodes)) if n in uses[m]]


def assign(target: Any, name: str) -> None:
    setattr(target, name, ())


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda g: assign(g, "nodes"), FrozenInstanceError),
        (lambda g: assign(g.nodes[0], "inputs"), FrozenInstanceError),
        (lambda g: assign(g.inputs[0], "shape"), FrozenInstanceError),
        (lambda g: g.constants.update(wa=np.zeros(2)), AttributeError),
        (lambda g: g.constants.__setitem__("wa", 0), AttributeError),
        (lambda g: g.nodes[0].attributes.__setitem__("alpha", 2), AttributeError),
        (lambda g: g.constants["wa"].__setitem__(0, 5), ValueError),
    ],
)
def test_nothing_in_a_graph_can_be_changed(
    diamond: Graph, change: Callable[[Graph], None], error: type[Exception]
) -> None:
    with pytest.raises(error):
        change(diamond)


def test_what_was_given_may_change_afterwards() -> None:
    attributes, weight = {"alpha": 1}, np.ones(2)
    constants = {"w": weight}
    node = new_node("Op", "x w", "y", **attributes)
    found = graph([node], "y", constants=constants)
    attributes["alpha"] = 2
    constants["other"] = weight
    weight[:] = 7
    assert dict(node.attributes) == {"alpha": 1}
    assert set(found.constants) == {"w"}
    assert found.constants["w"].tolist() == [1, 1]
    assert weight.flags.writeable


def test_users_cannot_be_changed_from_outside(diamond: Graph) -> None:
    diamond.users("a").clear()
    assert len(diamond.users("a")) == 2


def test_an_input_named_twice_is_a_format_error() -> None:
    with pytest.raises(ModelFormatError, match="'x'"):
        graph([op("x", "a")], "a", "x x")


def test_inputs_of_a_node_end_with_absent_ones() -> None:
    node = op("x - w", "y")
    assert [node.input(i) for i in range(4)] == ["x", "", "w", ""]


def test_a_value_prints_sizes_and_depth() -> None:
    assert str(Value("x", "float32", (None, 3), 1)) == "x: float32(?, 3), LoD depth 1"
    assert str(Value("x")) == "x: any(...)"


def test_what_an_unknown_operator_gives_is_of_unknown_type() -> None:
    unknown = new_node("Unsupported", "x", "y", reason="not known")
    built = Graph("g", (Value("x", "float32", (2,)),), (Value("y"),), (unknown,), {})
    assert built.types["y"] == UNKNOWN and built.types["x"].dtype == "float32"
