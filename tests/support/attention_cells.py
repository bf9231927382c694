"""GRU cells with attention, written in ONNX's operators in many ways that are the same.

What a cell computes is told by `Computed`, how it is written by `Written`; `by_hand` computes it
by the tests' own oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onernn import Cell, RnnSpec, RnnWeights
from support.oracle import run_oracle

N, I, O = 3, 4, 5  # noqa: E741
F32 = TensorProto.FLOAT


@dataclass(frozen=True)
class Computed:
    """``scores``: a scales u, not 1 - a. ``lets_in``: the scaled u weighs the candidate, not the
    old state. ``before``: r scales h before its product. ``wrong``: a fault, see `WRONG`.
    """

    scores: bool = False
    lets_in: bool = False
    before: bool = True
    backwards: bool = False
    lengths: bool = False
    begins: bool = True
    wrong: str = ""


@dataclass(frozen=True)
class Written:
    """``mixture``: how the new state is summed. ``scale``: how u is scaled. ``flipped``: u is
    1 - sigmoid of the negative sum. ``joined``: one product for all gates. ``hoisted``: that of x
    stands outside of the loop. ``batch_first``: x is (N, T, I). ``shape``: of the attention.
    ``squashed``: u and r are parts of one sigmoid. ``flat_mask``: the mask is (T, N).
    """

    route: str = "scan"
    mixture: str = "w A + (1 - w) B"
    scale: str = "k u"
    flipped: bool = False
    joined: bool = True
    hoisted: bool = False
    batch_first: bool = False
    shape: str = "TN1"
    order: str = "urn"
    open_sizes: bool = True
    squashed: bool = False
    flat_mask: bool = False


ROUTES = ("scan", "loop", "unrolled")
MIXTURES = (
    "w A + (1 - w) B",
    "(1 - w) B + A w",
    "B + w (A - B)",
    "(A - B) w + B",
    "B - w (B - A)",
    "B - w B + w A",
    "A - (1 - w) (A - B)",
)
SCALES = ("k u", "u k", "u - (1 - k) u")
SHAPES = ("TN1", "TN", "NT1", "NT", "T1N")
WRONG = {
    "gates change places": "augru",
    "the update gate's sum has another sign": "augru",
    "the other share": "augru",
    "one step late": "augru",
    "on the reset gate": "other",
    "on the candidate": "other",
    "on the state": "other",
    "instead of the gate": "other",
    "on the input": "other",
    "one for each unit": "other",
    "twice": "other",
}
"""Faults, and whether the cell is still one with attention: of other numbers."""


def weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {}
    for gate in "urn":
        made[f"W{gate}"] = rng.uniform(-0.7, 0.7, (I, O)).astype(np.float32)
        made[f"U{gate}"] = rng.uniform(-0.7, 0.7, (O, O)).astype(np.float32)
        made[f"b{gate}"] = rng.uniform(-0.7, 0.7, O).astype(np.float32)
    made["v"] = rng.uniform(-0.7, 0.7, O).astype(np.float32)
    return made


def inputs(steps: int, seed: int, what: Computed) -> dict[str, np.ndarray]:
    """x (T, N, I), a (T, N), h0 (N, O) and lengths (N,)."""
    rng = np.random.default_rng(seed)
    made = {
        "x": rng.uniform(-1, 1, (steps, N, I)).astype(np.float32),
        "a": rng.uniform(0, 1, (steps, N)).astype(np.float32),
        "h0": rng.uniform(-1, 1, (N, O)).astype(np.float32),
        "lengths": rng.integers(0, steps + 1, N),
    }
    if not what.begins:
        made["h0"][:] = 0
    if not what.lengths:
        made["lengths"][:] = steps
    return made


def by_hand(
    what: Computed, numbers: dict[str, np.ndarray], given: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """y (T, N, O) and the last state, in float64; behind a sentence's end its state is held."""

    def stacked(names: str, axis: int) -> np.ndarray:
        return np.stack([numbers[name] for name in names.split()], axis)[None, None]

    way: Any = "right2left" if what.backwards else "left2right"
    cell, rows = (Cell.AUGRU, "bu br bn") if what.before else (Cell.LBR_AUGRU, "bu br bn v")
    spec = RnnSpec(cell, I, O, direction=way, update="replace" if what.lets_in else "keep")
    layer = RnnWeights(stacked("Wu Wr Wn", 1), stacked("Uu Ur Un", 1), stacked(rows, 0))
    words, scales = (
        [array[:end, n] for n, end in enumerate(given["lengths"])]
        for array in (given["x"], 1 - given["a"] if what.scores else given["a"])
    )
    outputs, (last,) = run_oracle(spec, [layer], words, (given["h0"][None, None],), scales)
    y = np.stack([given["h0"] if what.backwards else last[0, 0]] * len(given["x"])).astype(float)
    for n, own in enumerate(outputs):
        y[: len(own), n] = own
    return y, last[0, 0]


@dataclass
class Emitter:
    """Nodes under construction; constants stand in the model's graph, which bodies see."""

    constants: dict[str, np.ndarray]
    prefix: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def __call__(self, op: str, *given: str, **attributes: Any) -> str:
        return self.many(op, 1, *given, **attributes)[0]

    def many(self, op: str, count: int, *given: str, **attributes: Any) -> list[str]:
        names = [f"{self.prefix}{op}{len(self.nodes)}.{k}" for k in range(count)]
        self.nodes.append(helper.make_node(op, list(given), names, **attributes))
        return names

    def constant(self, array: Any, name: str = "") -> str:
        array = np.asarray(array)
        name = name or f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    # The cell.

    def step(self, how: Written, what: Computed, x: str, h: str, a: str) -> str:
        """The new state of x (N, I), or (N, 3 O) where it is projected, h, and a (N, 1)."""
        if what.wrong == "on the input":
            x = self("Mul", x, a)
        one = self.constant(np.float32(1), "one")
        sums = self._sums(how, what, x, h)
        if how.squashed:
            u, r = self.many("Split", 2, self("Sigmoid", sums["both"]), self.ints(O, O), axis=1)
        elif how.flipped:
            u = self("Sub", one, self("Sigmoid", self("Neg", sums["u"])))
        else:
            u = self("Sigmoid", sums["u"])
        if not how.squashed:
            r = self("Sigmoid", sums["r"])
        if what.wrong == "on the reset gate":
            r = self("Mul", r, a)
        if what.before:
            n = self("Add", sums["n"], self("MatMul", self("Mul", r, h), "Un"))
        else:
            of_h = self("Add", self("MatMul", h, "Un"), "v")
            n = self("Add", sums["n"], self("Mul", r, of_h))
        n = self("Tanh", n)
        if what.wrong == "on the candidate":
            n = self("Mul", n, a)
        old = self("Mul", h, a) if what.wrong == "on the state" else h
        w = self._share(how, what, u, a, one)
        ends = (n, old) if what.lets_in else (old, n)
        return self._mixed(how.mixture, w, *ends, one)

    def _sums(self, how: Written, what: Computed, x: str, h: str) -> dict[str, str]:
        if how.squashed:
            of_x, of_h = (
                self("MatMul", value, self._beside(kind)) for kind, value in (("W", x), ("U", h))
            )
            both = self("Add", self("Add", of_x, of_h), self._beside("b"))
            n = self("Add", self("MatMul", x, "Wn"), "bn")
            return {"both": both, "n": n}
        if not how.joined:
            return {
                g: self._sum(self("Add", self("MatMul", x, f"W{g}"), f"b{g}"), g, h)
                for g in how.order
            }
        whole = x if how.hoisted else self.projected(how, x)
        parts = dict(
            zip(how.order, self.many("Split", 3, whole, self.ints(O, O, O), axis=1), strict=True)
        )
        return {g: self._sum(part, g, h) for g, part in parts.items()}

    def _beside(self, kind: str) -> str:
        pair = [self.constants[f"{kind}{gate}"] for gate in "ur"]
        return self.constant(np.concatenate(pair, -1), f"{kind}ur")

    def _sum(self, of_x: str, gate: str, h: str) -> str:
        return of_x if gate == "n" else self("Add", self("MatMul", h, f"U{gate}"), of_x)

    def projected(self, how: Written, x: str) -> str:
        w = self.constant(np.concatenate([self.constants[f"W{g}"] for g in how.order], 1), "W")
        b = self.constant(np.concatenate([self.constants[f"b{g}"] for g in how.order]), "b")
        return self("Add", self("MatMul", x, w), b)

    def _share(self, how: Written, what: Computed, u: str, a: str, one: str) -> str:
        if what.wrong.startswith("on the"):
            return u
        if what.wrong == "one for each unit":
            a = self("Mul", a, self.constant(np.linspace(0.1, 1, O).astype(np.float32), "units"))
        keeps = what.scores != (what.wrong == "the other share")
        rest = self("Sub", one, a)
        k, other = (a, rest) if keeps else (rest, a)
        if what.wrong == "instead of the gate":
            return k
        if what.wrong == "twice":
            return self("Mul", k, self("Mul", k, u))
        if how.scale == "u - (1 - k) u":
            return self("Sub", u, self("Mul", other, u))
        return self("Mul", *((k, u) if how.scale == "k u" else (u, k)))

    def _mixed(self, mixture: str, w: str, a: str, b: str, one: str) -> str:
        rest = self("Sub", one, w)
        if mixture == "w A + (1 - w) B":
            return self("Add", self("Mul", w, a), self("Mul", rest, b))
        if mixture == "(1 - w) B + A w":
            return self("Add", self("Mul", rest, b), self("Mul", a, w))
        if mixture == "B + w (A - B)":
            return self("Add", b, self("Mul", w, self("Sub", a, b)))
        if mixture == "(A - B) w + B":
            return self("Add", self("Mul", self("Sub", a, b), w), b)
        if mixture == "B - w (B - A)":
            return self("Sub", b, self("Mul", w, self("Sub", b, a)))
        if mixture == "B - w B + w A":
            return self("Add", self("Sub", b, self("Mul", w, b)), self("Mul", w, a))
        assert mixture == "A - (1 - w) (A - B)"
        return self("Sub", a, self("Mul", rest, self("Sub", a, b)))


def model(
    how: Written, what: Computed, numbers: dict[str, np.ndarray], steps: int
) -> onnx.ModelProto:
    """x, a, h0 and lengths, each where its cell wants it -> y as x lies, and the last state."""
    main = Emitter(_faulty(numbers, what))
    x, a = "x", _attention(main, how, what)
    if how.hoisted and how.joined:
        x = main.projected(how, x)
    mask = _mask(main, how, steps) if what.lengths else ""
    h0 = "h0" if what.begins else main.constant(np.zeros((N, O), np.float32), "zeros")
    route = {"scan": _scan, "loop": _loop, "unrolled": _unrolled}[how.route]
    y, last = route(main, how, what, steps, x, a, h0, mask)
    main.nodes.append(helper.make_node("Identity", [y], ["y"]))
    main.nodes.append(helper.make_node("Identity", [last], ["last"]))
    sizes = {"T": steps if how.route == "unrolled" or not how.open_sizes else "T"}
    sizes |= {"N": "N" if how.open_sizes else N, "1": 1, "I": I, "O": O}
    faces = {"x": "NTI" if how.batch_first else "TNI", "a": how.shape}
    faces |= {"h0": "NO"} if what.begins else {}
    values = [
        helper.make_tensor_value_info(name, F32, [sizes[axis] for axis in axes])
        for name, axes in faces.items()
    ]
    if what.lengths:
        values.append(helper.make_tensor_value_info("lengths", TensorProto.INT64, [sizes["N"]]))
    graph = helper.make_graph(
        main.nodes,
        "attention",
        values,
        [helper.make_value_info(name, onnx.TypeProto()) for name in ("y", "last")],
        [numpy_helper.from_array(array, name) for name, array in main.constants.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def feed(how: Written, what: Computed, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the model is fed for the same inputs."""
    x, a = given["x"], given["a"]
    shaped = {"TN1": a[..., None], "TN": a, "NT1": a.T[..., None], "NT": a.T, "T1N": a[:, None]}
    made = {"x": x.swapaxes(0, 1) if how.batch_first else x, "a": shaped[how.shape]}
    made |= {"h0": given["h0"]} if what.begins else {}
    made |= {"lengths": given["lengths"]} if what.lengths else {}
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def _faulty(numbers: dict[str, np.ndarray], what: Computed) -> dict[str, np.ndarray]:
    made = dict(numbers)
    if what.wrong == "gates change places":
        for kind in "WUb":
            made[f"{kind}u"], made[f"{kind}r"] = numbers[f"{kind}r"], numbers[f"{kind}u"]
    if what.wrong == "the update gate's sum has another sign":
        made |= {f"{kind}u": -numbers[f"{kind}u"] for kind in "WUb"}
    return made


def _attention(main: Emitter, how: Written, what: Computed) -> str:
    """The attention; one step late, the first one's stands at the end."""
    if what.wrong != "one step late":
        return "a"
    axis = main.ints(how.shape.index("T"))
    first = main("Slice", "a", main.ints(0), main.ints(1), axis)
    return main(
        "Concat",
        main("Slice", "a", main.ints(1), main.ints(99), axis),
        first,
        axis=how.shape.index("T"),
    )


def _mask(main: Emitter, how: Written, steps: int) -> str:
    """(T, N, 1) or (T, N): whether a step is within its sentence."""
    turns = main.constant(np.arange(steps).reshape(-1, 1))
    mask = main("Less", turns, "lengths")
    return mask if how.flat_mask else main("Unsqueeze", mask, main.ints(2))


def _column(body: Emitter, axes: str, a: str) -> str:
    """One step of the attention as (N, 1); ``axes``: those that it has."""
    if axes == "1N":
        return body("Transpose", a, perm=(1, 0))
    return body("Unsqueeze", a, body.ints(1)) if axes == "N" else a


def _body(
    main: Emitter, how: Written, what: Computed, axes: str, x: str, a: str, h: str, m: str
) -> tuple[Emitter, str]:
    """Within a loop: the new state of one step."""
    body = Emitter(main.constants, "b.")
    new = body.step(how, what, x, h, _column(body, axes, a))
    if m:
        m = body("Unsqueeze", m, body.ints(1)) if how.flat_mask else m
        new = body("Where", m, new, h)
    return body, new


def _value(name: str, kind: int = F32, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _scan(
    main: Emitter, how: Written, what: Computed, steps: int, x: str, a: str, h0: str, mask: str
) -> tuple[str, str]:
    axes = [int(how.batch_first), how.shape.index("T")]
    left = how.shape.replace("T", "")
    body, new = _body(main, how, what, left, "b.x", "b.a", "b.h", "b.m" if mask else "")
    body.nodes.append(helper.make_node("Identity", [new], ["b.y"]))
    names = ["b.h", "b.x", "b.a"]
    kinds = [_value(name) for name in names]
    if mask:
        axes.append(0)
        kinds.append(_value("b.m", TensorProto.BOOL))
    inner = helper.make_graph(body.nodes, "body", kinds, [_value(new), _value("b.y")])
    ways = (int(what.backwards),)
    last, y = main.many(
        "Scan",
        2,
        *filter(None, (h0, x, a, mask)),
        body=inner,
        num_scan_inputs=len(axes),
        scan_input_axes=axes,
        scan_input_directions=ways * len(axes),
        scan_output_axes=(int(how.batch_first),),
        scan_output_directions=ways,
    )
    return y, last


def _loop(
    main: Emitter, how: Written, what: Computed, steps: int, x: str, a: str, h0: str, mask: str
) -> tuple[str, str]:
    if how.batch_first:
        x = main("Transpose", x, perm=(1, 0, 2))
    place = how.shape.index("T")
    if place:
        rest = [at for at in range(len(how.shape)) if at != place]
        a = main("Transpose", a, perm=(place, *rest))
    taken = Emitter(main.constants, "t.")
    pieces = [taken("Gather", name, "b.t", axis=0) for name in filter(None, (x, a, mask))]
    left = how.shape.replace("T", "")
    body, new = _body(main, how, what, left, *pieces[:2], "b.h", pieces[2] if mask else "")
    body.nodes[:0] = taken.nodes
    body.nodes.append(helper.make_node("Identity", [new], ["b.y"]))
    body.nodes.append(helper.make_node("Identity", ["b.go"], ["b.on"]))
    inner = helper.make_graph(
        body.nodes,
        "body",
        [
            _value("b.t", TensorProto.INT64, []),
            _value("b.go", TensorProto.BOOL, []),
            _value("b.h"),
        ],
        [_value("b.on", TensorProto.BOOL, []), _value(new), _value("b.y")],
    )
    turns = main("Squeeze", main("Shape", x, start=0, end=1), main.ints(0))
    last, y = main.many("Loop", 2, turns, "", h0, body=inner)
    return main("Transpose", y, perm=(1, 0, 2)) if how.batch_first else y, last


def _unrolled(
    main: Emitter, how: Written, what: Computed, steps: int, x: str, a: str, h0: str, mask: str
) -> tuple[str, str]:
    def cut(name: str, axis: int, squeezed: bool = True) -> list[str]:
        parts = main.many("Split", steps, name, axis=axis) if steps > 1 else [name]
        return [main("Squeeze", each, main.ints(axis)) if squeezed else each for each in parts]

    place, left = how.shape.index("T"), how.shape.replace("T", "")
    scales = cut(a, place, how.shape != "NT")  # a piece of (N, T) is (N, 1)
    masks = cut(mask, 0) if mask else [""] * steps
    h, made = h0, [""] * steps
    pieces = cut(x, int(how.batch_first))
    for t in range(steps)[:: -1 if what.backwards else 1]:
        scale = scales[t] if how.shape == "NT" else _column(main, left, scales[t])
        new = main.step(how, what, pieces[t], h, scale)
        made[t] = h = main("Where", masks[t], new, h) if mask else new
    axis = int(how.batch_first)
    rows = [main("Unsqueeze", each, main.ints(axis)) for each in made]
    return main("Concat", *rows, axis=axis), h
