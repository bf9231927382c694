"""Scans over cells whose gates have any function, spelled in any way.

The oracle is the scan itself, run step by step.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, operators
from support.graphs import new_nodes, small_graph

from onernn import Graph
from onernn.fuse_passes import FuseResult
from onernn.ir.graph import Node
from onernn.ir.rnn import Recurrent
from onernn.ops.control import scan_attributes

T, N, WIDTH, UNITS = 5, 4, 3, 2
CONSTANTS = {
    "W": uniform(WIDTH, UNITS),
    "U": uniform(UNITS, UNITS, seed=1),
    "WU": uniform(WIDTH + UNITS, UNITS, seed=2),
    "W4": uniform(WIDTH, 4 * UNITS, seed=3),
    "U4": uniform(UNITS, 4 * UNITS, seed=4),
    "W3": uniform(WIDTH, 3 * UNITS, seed=5),
    "U3": uniform(UNITS, 3 * UNITS, seed=6),
    **{f"p{gate}": uniform(UNITS, seed=k) for k, gate in enumerate("ifo")},
}
NUMBERS = {"0": 0.0, "1": 1.0, "-1": -1.0, "6": 6.0, ".3": 0.3, ".4": 0.4, ".5": 0.5}
CONSTANTS |= {name: np.array(number, np.float32) for name, number in NUMBERS.items()}


def scan(lines: str, states: str = "h") -> Graph:
    """A cell over x (T, N, 3); the state s becomes s_new, and h_new is collected."""
    begin = states.split()
    results = " ".join([*(f"{name}_new" for name in begin), "h_new"])
    nodes = (*new_nodes(lines), *new_nodes("y = Identity h_new"))
    shapes = {name: (None, UNITS) for name in begin} | {"x": (None, WIDTH)}
    body = small_graph(nodes, results.removesuffix("h_new") + "y", CONSTANTS, **shapes).prune()
    made = (*(f"{name}_end" for name in begin), "ys")
    node = Node(
        "Scan", (*(f"{name}0" for name in begin), "xs"), made, scan_attributes(body, len(begin))
    )
    faces = {f"{name}0": (None, UNITS) for name in begin} | {"xs": (None, None, WIDTH)}
    return small_graph([node], " ".join(made), **faces)


def check(graph: Graph) -> FuseResult:
    feed = {"xs": 3 * uniform(T, N, WIDTH, seed=7)}
    feed |= {f"{name}0": uniform(N, UNITS, seed=8) for name in "hc"}
    feed = {value.name: feed[value.name] for value in graph.inputs}
    return check_fused(graph, feed, backends=("reference", "auto"))


def functions(result: FuseResult) -> list[str]:
    nodes = (node for node in result.model.nodes if node.op == "Rnn")
    return [" ".join(map(str, Recurrent.of(node).spec.functions)) for node in nodes]


SUM = """
    xw = MatMul x W
    hu = MatMul h U
    s = Add xw hu
    """
SCALED = (
    SUM
    + """
    k = Mul s .3
    b = Add k .4
    """
)
ELMAN = {
    "an operator": (SUM + "h_new = Elu s alpha=0.5", "elu(0.5)"),
    "its default": (SUM + "h_new = LeakyRelu s", "leakyrelu(0.01)"),
    "a clip": (SCALED + "h_new = Clip b 0 1", "hardsigmoid(0.3, 0.4)"),
    "max of min": (SCALED + "m = Min 1 b\n h_new = Max m 0", "hardsigmoid(0.3, 0.4)"),
    "min of max": (SCALED + "m = Max b 0\n h_new = Min 1 m", "hardsigmoid(0.3, 0.4)"),
    "a clip of a clip": (SCALED + "m = Clip b -1 1\n h_new = Max m 0", "hardsigmoid(0.3, 0.4)"),
    "a quotient": (
        SUM + "k = Div s 6\n b = Add .5 k\n h_new = Clip b 0 1",
        "hardsigmoid(0.166667, 0.5)",
    ),
    "a number added": (SUM + "t = Add s .4\n h_new = Tanh t", "tanh"),
    "input and state joined": (
        "xh = Concat x h axis=1\n s = MatMul xh WU\n h_new = Tanh s",
        "tanh",
    ),
    "state and input joined": (
        "xh = Concat h x axis=-1\n s = MatMul xh WU\n h_new = Tanh s",
        "tanh",
    ),
    "another range": (SCALED + "h_new = Clip b 0 6", ""),
    "bounds that cross": (SCALED + "m = Min b 0\n h_new = Max m 1", ""),
    "a scaled state": ("xw = MatMul x W\n hp = Mul h pi\n s = Add xw hp\n h_new = Tanh s", ""),
    "two bounds by one": (SUM + "m = Min s 1\n h_new = Max m -1", ""),
}


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("case", ELMAN)
def test_the_function_of_a_sum_is_the_layers(case: str) -> None:
    lines, expected = ELMAN[case]
    result = check(scan(lines))
    assert functions(result) == [expected] * bool(expected)
    assert ("Scan" in operators(result)) == (not expected)


HARD = "{0}k = Mul {0} .3\n {0}b = Add {0}k {1}\n {0}g = Clip {0}b 0 1\n"


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("beta, turned, becomes", [(".5", 1, 1), (".4", 0, 1), (".4", 1, 0)])
def test_a_turned_update_gate_needs_a_symmetric_function(
    beta: str, turned: bool, becomes: bool
) -> None:
    """h' = z n + (1 - z) h is the cell's formula for 1 - z: the gate of the negated sum."""
    old, new = ("h", "n") if turned else ("n", "h")
    lines = f"""
        xw = MatMul x W3
        hu = MatMul h U3
        xz xr xn = Split xw axis=1
        hz hr hn = Split hu axis=1
        z = Add xz hz
        r = Add xr hr
        {HARD.format("z", beta)} {HARD.format("r", beta)}
        q = Mul rg hn
        t = Add xn q
        n = Tanh t
        rest = Sub 1 zg
        a = Mul zg {new}
        b = Mul rest {old}
        h_new = Add a b
        """
    result = check(scan(lines))
    assert functions(result) == [f"hardsigmoid(0.3, {beta.replace('.', '0.')}) tanh"] * becomes


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("sees, becomes", [("ifo", 1), ("if", 0), ("io", 0)])
@pytest.mark.parametrize("clips", [False, True])
def test_peepholes_are_of_all_gates_and_the_cell_state_may_be_clipped(
    sees: str, becomes: bool, clips: bool
) -> None:
    def peephole(gate: str, state: str) -> str:
        name = f"s{gate}"
        if gate not in sees:
            return f"{gate} = Sigmoid {name}"
        seen = f"{gate}p = Mul {state} p{gate}\n {gate}s = Add {name} {gate}p\n"
        return f"{seen} {gate} = Sigmoid {gate}s"

    clip = ("total", "c_new = Clip total -1 .3") if clips else ("c_new", "")
    lines = f"""
        xw = MatMul x W4
        hu = MatMul h U4
        sums = Add xw hu
        si sf sg so = Split sums axis=1
        {peephole("i", "c")}
        {peephole("f", "c")}
        g = Tanh sg
        kept = Mul f c
        more = Mul i g
        {clip[0]} = Add kept more
        {clip[1]}
        {peephole("o", "c_new")}
        out = Tanh c_new
        h_new = Mul o out
        """
    result = check(scan(lines, "h c"))
    specs = [Recurrent.of(node).spec for node in result.model.nodes if node.op == "Rnn"]
    expected = (True, (-1.0, float(np.float32(0.3))) if clips else None)
    assert [(spec.peephole, spec.cell_clip) for spec in specs] == [expected] * becomes
