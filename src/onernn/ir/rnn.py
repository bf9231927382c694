"""Recurrent layers of a graph: named inputs and outputs, single layers of a stack, and the limits
of backends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import get_args

from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, NativeOp, Node
from onernn.ir.records import NamedTuple, dataclass
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import OWN, LayerPrecision, RnnWeights, Weights, layers_of


@dataclass(frozen=True, eq=False)
class Recurrent:
    """An "Rnn" node whose inputs and outputs have names instead of positions; "" if absent.

    ``h``, ``c``: the initial states, (L, D, N, O). ``y``: the hidden state of every step;
    ``cells``: the cell state of every step. ``h_final``, ``c_final``: the states after the last
    step of each sequence. ``precision``: the precision of this node, which replaces the session's
    dtype.
    """

    spec: RnnSpec
    weights: Weights
    x: str
    y: str
    h: str = ""
    c: str = ""
    attention: str = ""
    h_final: str = ""
    c_final: str = ""
    cells: str = ""
    origin: tuple[NativeOp, ...] = ()
    precision: LayerPrecision = OWN

    @classmethod
    def of(cls, node: Node) -> Recurrent:
        """Returns the record of an "Rnn" node. Raises `ValueError` for a node of another
        operator.
        """
        if node.op != "Rnn":
            raise ValueError(f"{node.label}: expected an Rnn node")
        x, h, c, attention = (*node.inputs, "", "", "")[:4]
        y, h_final, c_final, cells = (*node.outputs, "", "", "")[:4]
        attrs = node.attrs
        given = attrs.spec, attrs.weights, x, y, h, c, attention, h_final, c_final, cells
        return cls(*given, origin=node.origin, precision=attrs.precision)

    def node(self) -> Node:
        """Returns the "Rnn" node of this record, without absent inputs and outputs at the end."""
        return Node(
            "Rnn",
            _cut(self.x, self.h, self.c, self.attention),
            _cut(self.y, self.h_final, self.c_final, self.cells),
            {"spec": self.spec, "weights": self.weights}
            | ({"precision": self.precision} if self.precision else {}),
            self.origin,
        )

    @property
    def layers(self) -> tuple[RnnWeights, ...]:
        """The weights (1, D, ...) of each layer, after a check that they fit the spec."""
        return layers_of(self.spec, self.weights)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the initial states that the cell has, "" if one is absent."""
        return (self.h, self.c)[: len(self.spec.cell.states)]

    @property
    def finals(self) -> tuple[str, ...]:
        """The names of the final states that the cell has, "" if nothing reads one."""
        return (self.h_final, self.c_final)[: len(self.spec.cell.states)]

    def with_states(self, states: tuple[str, ...], finals: tuple[str, ...] = ()) -> Recurrent:
        """Returns the same layer with different initial and final states, in the cell's order."""
        (h, c), (h_final, c_final) = (*states, "", "")[:2], (*finals, "", "")[:2]
        return replace(self, h=h, c=c, h_final=h_final, c_final=c_final)


def with_precision(graph: Graph, of: Mapping[str, LayerPrecision]) -> Graph:
    """Returns the graph with the precision ``of[y]`` for each recurrent node with output ``y``;
    all other recurrent nodes lose their precision and use the session's. So an empty ``of`` removes
    the precision of every layer, including layers inside loops and branches.
    """
    nodes = []
    for node in graph.nodes:
        inner = {k: v for k, v in node.attributes.items() if isinstance(v, Graph)}
        if inner:
            changed = {name: with_precision(body, of) for name, body in inner.items()}
            node = replace(node, attributes={**node.attributes, **changed})
        if node.op == "Rnn":
            rnn = Recurrent.of(node)
            node = replace(rnn, precision=of.get(rnn.y, OWN)).node()
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _cut(*names: str) -> tuple[str, ...]:
    while names and not names[-1]:
        names = names[:-1]
    return names


class Part(NamedTuple):
    """One direction of one layer of a stack; ``spec`` describes it as a single layer."""

    layer: int
    direction: int
    """The index of the direction on axis D."""
    spec: RnnSpec

    @property
    def side(self) -> Direction:
        """The name of the direction, which is left2right or right2left."""
        return self.spec.direction

    @property
    def backwards(self) -> bool:
        return self.spec.direction == "right2left"


@lru_cache(256)  # training calls this at each step
def parts(spec: RnnSpec) -> tuple[Part, ...]:
    """Returns all directions of all layers of a stack, layer by layer, from the first layer on."""
    both: tuple[Direction, ...] = ("left2right", "right2left")
    sides = both if spec.directions == 2 else (spec.direction,)
    result = []
    for layer in range(spec.layers):
        one = replace(spec, input_size=spec.reads(layer), layers=1, stacking="framework")
        for direction, side in enumerate(sides):
            result.append(Part(layer, direction, replace(one, direction=side)))
    return tuple(result)


# Which recurrent layers a backend can run, or a framework's operators can express.

CELL_NAMES = {
    Cell.RNN_TANH: "plain RNN with tanh",
    Cell.RNN_RELU: "plain RNN with relu",
    Cell.RNN_SIGMOID: "plain RNN with sigmoid",
    Cell.LSTM: "LSTM",
    Cell.GRU: "GRU with the reset gate before the product",
    Cell.LBR_GRU: "GRU with the reset gate behind the product",
    Cell.AUGRU: "GRU with attention (AUGRU)",
    Cell.LBR_AUGRU: "GRU with attention (LBR AUGRU)",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The recurrent layers that a backend or format takes; the default of each field takes all
    layers.

    ``who`` and ``kind`` are for messages: "oneDNN" and "u8" result in "oneDNN has no u8 LSTM with
    ...". ``functions``: the names of functions that gates may have; () allows only the cell's own,
    None allows all. ``parameters``: whether functions may have an alpha and a beta. ``replaces``:
    whether layers with update="replace" are taken. ``projected``: whether layers without input
    weights, whose input is already projected, are taken. ``apart``: whether stacks are taken that
    join their directions only after the last layer (stacking="onednn"). ``dtypes``: the dtypes of
    the weights.
    """

    who: str
    kind: str = ""
    cells: Collection[Cell] = tuple(Cell)
    directions: Collection[Direction] = get_args(Direction)
    functions: Collection[str] | None = None
    parameters: bool = True
    replaces: bool = True
    gate_clip: bool = True
    cell_clip: bool = True
    input_forget: bool = True
    peephole: bool = True
    projection: bool = True
    projected: bool = True
    stacks: bool = True
    apart: bool = True
    dtypes: Collection[str] = ("float32", "float64")


def why_not(spec: RnnSpec, weights: Sequence[RnnWeights], limits: Limits) -> str:
    """Returns the first reason why a layer is not within the limits; "" if it is.

    ``weights``: the weights of each layer, as returned by `layers_of`.
    """
    cell, dtype, deep = spec.cell.name, weights[0].iter.dtype.name, spec.layers > 1
    functions = _other_functions(spec, limits)
    beyond = {
        CELL_NAMES[spec.cell]: spec.cell not in limits.cells,
        f"layers that run {spec.direction}": spec.direction not in limits.directions,
        "stacks of layers": deep and not limits.stacks,
        "stacks whose directions meet at the end only (stacking='onednn')": (
            deep and spec.stacking == "onednn" and not limits.apart
        ),
        f"{cell} with {functions}": bool(functions),
        f"{cell} that replaces with its update gate": (
            spec.update == "replace" and not limits.replaces
        ),
        f"{cell} with clipped gates": spec.gate_clip is not None and not limits.gate_clip,
        f"{cell} with a clipped cell state": spec.cell_clip is not None and not limits.cell_clip,
        f"{cell} with coupled input and forget gates": (
            spec.input_forget and not limits.input_forget
        ),
        f"{cell} with peepholes": spec.peephole and not limits.peephole,
        f"{cell} with a projection": spec.projection_size is not None and not limits.projection,
        f"{cell} whose input is projected already": (
            not limits.projected and any(layer.layer is None for layer in weights)
        ),
        f"{cell} in {dtype}": dtype not in limits.dtypes,
    }
    kind = f"{limits.kind} " if limits.kind else ""
    return next(
        (f"{limits.who} has no {kind}{what}" for what, holds in beyond.items() if holds), ""
    )


def _other_functions(spec: RnnSpec, limits: Limits) -> str:
    known = limits.functions
    if spec.activations is not None and known is not None and not known:
        wanted, usual = (", ".join(map(str, f)) for f in (spec.functions, spec.cell.activations))
        return f"functions {wanted}, only with {usual}"
    for each in spec.activations or ():
        if known is not None and each.name not in known:
            return f"function {each}, only with {', '.join(known)}"
        if not limits.parameters and each != (each.name, None, None):
            return f"function {each}, only with those without parameters"
    return ""


def check_cells(spec: RnnSpec) -> None:
    """Raises `UnsupportedError` if a layer with this spec cannot output the cell state of every
    step.
    """
    plain = spec.projection_size is None and not spec.input_forget
    clipped = spec.gate_clip is not None or spec.cell_clip is not None
    if spec.cell is not Cell.LSTM or spec.layers * spec.directions > 1 or clipped or not plain:
        raise UnsupportedError(
            "cell state of every step: expected one LSTM layer in one direction, without"
            f" projection, clips and coupled gates, got {spec}"
        )
