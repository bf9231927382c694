"""GRU cells with attention, written in many ways, become layers; what only looks like one does not.

The oracle is the graph as it is: fused, it computes the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cells import Term, Unrolled
from support.fusing import check_fused, layer_nodes
from support.graphs import small_graph, unfused

from onernn import Cell, Graph
from onernn.ir.graph import Node, Value
from onernn.ops.control import scan_attributes

STEPS, N, I, O = 4, 3, 4, 5  # noqa: E741
ROUTES = ("scan", "unrolled")
MIXTURES = (
    "w * A + (1 - w) * B",
    "(1 - w) * B + A * w",
    "B + w * (A - B)",
    "(A - B) * w + B",
    "B - w * (B - A)",
    "B - w * B + w * A",
    "A - (1 - w) * (A - B)",
)
SCALES = ("k * u", "u * k", "u - (1 - k) * u")
SHAPES = ("TN1", "TN", "NT1", "NT", "T1N")
WRONG = ("r", "n", "h", "x", "gate", "units", "twice", "late")
"""Where else an attention may be: on another value, instead of the gate, by unit, twice, late."""


@dataclass(frozen=True)
class Written:
    """``mixture`` and ``scale``: how the new state is summed, and u scaled by k, which is a if it
    ``scores``, else 1 - a. ``lets_in``: the scaled u weighs the candidate. ``before``: r scales h
    before its product. ``flipped``: u is 1 - sigmoid of the negative sum. ``joined``: one product
    for all gates. ``squashed``: u and r are parts of one sigmoid. ``shape``: of the attention.
    """

    route: str = "scan"
    mixture: str = MIXTURES[0]
    scale: str = SCALES[0]
    scores: bool = False
    lets_in: bool = False
    before: bool = False
    flipped: bool = False
    joined: bool = False
    squashed: bool = False
    batch_first: bool = False
    shape: str = "TN1"
    backwards: bool = False
    masked: bool = False
    begins: bool = True
    wrong: str = ""


class Attended(Unrolled):
    """The step of a cell over x (N, I), h (N, O) and a (N, 1)."""

    def __init__(self, how: Written, seed: int) -> None:
        self.how, self.rng, self._count = how, np.random.default_rng(seed), 0
        self.nodes = list[Node]()
        self.constants = {"one": np.array(1, np.float32)}

    def times(self, value: str, name: str, rows: int, gates: int = 1) -> Term:
        return self.term(self.emit("MatMul", value, self.weight(name, rows, gates * O)))

    def step(self, x: str, h: str, a: str) -> str:
        how, wrong = self.how, self.how.wrong
        if wrong == "x":
            x = self.emit("Mul", x, a)
        if how.squashed or how.joined:
            gates = "ur" if how.squashed else "urn"
            bias = self.term(self.weight(f"b{gates}", len(gates) * O))
            whole = self.times(x, f"W{gates}", I, len(gates)) + bias
            if how.squashed:
                both = (whole + self.times(h, "Uur", O, 2)).emit("Sigmoid")
                u, r = self.split(both, 2)
            else:
                cut = dict(zip(gates, self.split(whole, 3), strict=True))
                u, r = ((cut[g] + self.times(h, f"U{g}", O)).emit("Sigmoid") for g in "ur")
        else:
            sums = (self.of_x(x, g) + self.times(h, f"U{g}", O) for g in "ur")
            u, r = (each.emit("Sigmoid") for each in sums)
        if how.flipped and not how.squashed and not how.joined:
            u = 1 - (self.of_x(x, "u") + self.times(h, "Uu", O)).emit("Neg").emit("Sigmoid")
        scale, state = self.term(a), self.term(h)
        r = r * scale if wrong == "r" else r
        of_x = cut["n"] if how.joined and not how.squashed else self.of_x(x, "n")
        if how.before:
            n = of_x + self.times((r * state).name, "Un", O)
        else:
            n = of_x + r * (self.times(h, "Un", O) + self.term(self.weight("v", O)))
        n = n.emit("Tanh")
        n, old = (n * scale if wrong == "n" else n), state * scale if wrong == "h" else state
        if wrong == "units":
            scale = scale * self.term(self.constant(np.linspace(0.1, 1, O, dtype="f4"), "units"))
        k = scale if how.scores else 1 - scale
        w = eval(how.scale, {"k": k, "u": u})
        w = {"r": u, "n": u, "h": u, "x": u, "gate": k, "twice": k * w}.get(wrong, w)
        A, B = (n, old) if how.lets_in else (old, n)
        return str(eval(how.mixture, {"w": w, "A": A, "B": B}).name)

    def of_x(self, x: str, gate: str) -> Term:
        return self.times(x, f"W{gate}", I) + self.term(self.weight(f"b{gate}", O))


def model(how: Written, seed: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """x, a, h0 and mask -> y and the last state; and what it is fed."""
    u, rng = Attended(how, seed), np.random.default_rng(seed)
    x, a = rng.uniform(-1, 1, (STEPS, N, I)), rng.uniform(0, 1, (STEPS, N))
    shaped = {"TN1": a[..., None], "TN": a, "NT1": a.T[..., None], "NT": a.T, "T1N": a[:, None]}
    given = {"x": x.swapaxes(0, 1) if how.batch_first else x, "a": shaped[how.shape]}
    given["h0"] = rng.uniform(-1, 1, (N, O)) if how.begins else np.zeros((N, O))
    feed = {name: np.ascontiguousarray(array, np.float32) for name, array in given.items()}
    if how.masked:
        feed["m"] = np.arange(STEPS)[:, None, None] < rng.integers(0, STEPS + 1, (N, 1))
    axes, place = (int(how.batch_first), how.shape.index("T")), how.shape.index("T")
    if how.wrong == "late":
        cuts = [u.ints(at) for at in (0, 1, place, STEPS)]
        parts = (u.emit("Slice", "a", b, e, cuts[2]) for b, e in ((cuts[1], cuts[3]), cuts[:2]))
        late = u.emit("Concat", *parts, axis=place)
    scaled, left = late if how.wrong == "late" else "a", how.shape.replace("T", "")
    if not how.begins:
        u.constant(feed.pop("h0"), "h0")
    if how.route == "scan":
        outer, u.nodes = u.nodes, []
        taken = ["h", "x_t", "a_t", "m_t"][: 3 + how.masked]
        new = u.step("x_t", "h", column(u, left, "a_t"))
        new = u.emit("Where", "m_t", new, "h") if how.masked else new
        values = {n: Value(n, "bool" if n == "m_t" else "float32") for n in taken}
        results = f"{new} {u.emit('Identity', new)}"
        body = small_graph(u.nodes, results, u.constants, **values).prune()
        attributes = scan_attributes(body, 1, len(taken) - 1, backwards=how.backwards)
        attributes |= {"input_axes": (*axes, 0)[: len(taken) - 1], "output_axes": axes[:1]}
        names = ("h0", "x", scaled, "m")[: len(taken)]
        u.nodes = [*outer, Node("Scan", names, ("last", "y"), attributes)]
    else:
        xs, scales = u.cut("x", STEPS, axes[0]), u.cut(scaled, STEPS, place)
        h, rows = "h0", [""] * STEPS
        for t in range(STEPS)[:: -1 if how.backwards else 1]:
            rows[t] = h = u.step(xs[t], h, column(u, left, scales[t]))
        for source, name in ((u.stacked(rows, axes[0]), "y"), (h, "last")):
            u.nodes.append(Node("Identity", (source,), (name,)))
    inputs = {name: Value(name, str(array.dtype), array.shape) for name, array in feed.items()}
    return small_graph(u.nodes, "y last", u.constants, **inputs).prune(), feed


def column(u: Attended, axes: str, a: str) -> str:
    """One step of the attention as (N, 1); ``axes``: those that it has."""
    if axes == "1N":
        return str(u.emit("Transpose", a, perm=(1, 0)))
    return str(u.emit("Unsqueeze", a, u.ints(1))) if axes == "N" else a


def check(how: Written, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    """The specs of the fused layers, and y, after comparing what they compute."""
    graph, feed = model(how, seed)
    result = check_fused(graph, feed, backends=("reference", "auto"), atol=2e-6)
    specs = [node.attributes["spec"] for node in layer_nodes(result)]
    return specs, unfused(graph, feed)["y"]


@given(
    st.builds(
        Written,
        st.sampled_from(ROUTES),
        st.sampled_from(MIXTURES),
        st.sampled_from(SCALES),
        *(st.booleans() for _ in range(7)),
        st.sampled_from(SHAPES),
        *(st.booleans() for _ in range(3)),
    ),
    st.integers(0, 99),
)
def test_every_way_to_write_a_cell_with_attention_is_one_layer(how: Written, seed: int) -> None:
    if how.route == "unrolled" or how.batch_first or how.shape[0] != "T":
        how = replace(how, masked=False)
    (spec,), _ = check(how, seed)
    assert spec.cell is (Cell.AUGRU if how.before else Cell.LBR_AUGRU)
    assert spec.direction == ("right2left" if how.backwards else "left2right")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_another_cell_is_never_mistaken(wrong: str, route: str) -> None:
    _, right = check(Written(route))
    specs, y = check(Written(route, wrong=wrong))
    assert np.abs(y - right).max() > 0.01
    attended = [spec.cell for spec in specs if spec.cell.has_attention]
    assert attended == ([Cell.LBR_AUGRU] if wrong == "late" else [])
