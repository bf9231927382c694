"""Loops that count for themselves, as TensorFlow's become: layers where every step has its turn."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import model, ours, read, theirs
from support.onnx_steps import WEIGHTS, X, gru_step, kinds, value

from onernn import OnernnError, Session

ENDLESS = 2**31 - 1


class Counting(NamedTuple):
    """A count from ``first`` in steps of ``by``; goes on while count + ``ahead`` ``op`` n."""

    first: int = 0
    by: int = 1
    begin: tuple[str, int] | None = ("Less", 0)  # compared with n before the first turn
    again: tuple[str, int] | None = ("Less", 1)
    most: str = "steps"  # or "", "endless", "steps-1"
    both: bool = False  # the loop's own turn is below n, too

    def turns(self, n: int) -> int:
        """How many there are, by ONNX's definition of Loop; 99 where it does not end."""
        most = {"steps": n, "": 99, "endless": 99, "steps-1": n - 1}[self.most]
        going = self.begin is None or holds(self.begin[0], self.begin[1], n)
        turn = 0
        while going and turn < most and turn < 99:
            count = self.first + turn * self.by
            going = self.again is None or holds(self.again[0], count + self.again[1], n)
            going = going and (not self.both or turn < n)
            turn += 1
        return turn

    def reads(self, n: int) -> list[int]:
        return [self.first + turn * self.by for turn in range(self.turns(n))]


def holds(op: str, number: int, n: int) -> bool:
    return {"Less": number < n, "LessOrEqual": number <= n, "Greater": n > number}[op]


def compared(op: str, number: str, n: str, out: str, stem: str) -> list[onnx.NodeProto]:
    """number < n, both as floats, as TensorFlow's exporter writes it."""
    names = [number, n] if op != "Greater" else [n, number]
    casts = [
        helper.make_node("Cast", [name], [f"{stem}{k}"], to=TensorProto.FLOAT)
        for k, name in enumerate(names)
    ]
    return [*casts, helper.make_node(op, [f"{stem}0", f"{stem}1"], [out])]


def loop(counting: Counting, *, batch_major: bool = False) -> onnx.ModelProto:
    """A GRU written out; count, length and weights are carried from turn to turn."""
    int32 = {"one": 1, "zero": 0, "first": counting.first, "by": counting.by}
    int32 |= {"ahead": counting.again[1] if counting.again else 0}
    int32 |= {"before": counting.begin[1] if counting.begin else 0}
    constants = {f"{name}_i": np.array(number, np.int32) for name, number in int32.items()}
    constants |= {"h0": WEIGHTS["h0"], "true": np.array(True), "start": np.array([0])}
    constants |= {"stop": np.array([1]), "W0": WEIGHTS["W"], "U0": WEIGHTS["U"]}
    nodes = [
        helper.make_node("Gather", ["X", "i"], ["x"]),
        *gru_step("x", "h_in", "h"),
        helper.make_node("Identity", ["h"], ["y"]),
        helper.make_node("Add", ["i", "by_i"], ["i_out"]),
        helper.make_node("Identity", ["U"], ["U_out"]),
    ]
    again = "always"
    if counting.again:
        nodes.append(helper.make_node("Add", ["i", "ahead_i"], ["next"]))
        nodes += compared(counting.again[0], "next", "len", "again", "a")
        again = "again"
    else:
        nodes.append(helper.make_node("Identity", ["true"], ["always"]))
    if counting.both:
        nodes += compared("Less", "t", "len", "below", "b")
        nodes.append(helper.make_node("And", [again, "below"], ["both"]))
        again = "both"
    carried = {"i": TensorProto.INT32, "h_in": 1, "len": TensorProto.INT32, "W": 1, "U": 1}
    shapes = {"i": [], "len": [], "h_in": [None, 3], "W": [4, 9], "U": [3, 9]}
    results = {"i_out": "i", "h": "h_in", "len": "len", "W": "W", "U_out": "U"}
    body = helper.make_graph(
        nodes,
        "turn",
        [value("t", TensorProto.INT64, []), value("go", TensorProto.BOOL, [])]
        + [value(name, kind, shapes[name]) for name, kind in carried.items()],
        [value(again, TensorProto.BOOL, [])]
        + [value(out, carried[name], shapes[name]) for out, name in results.items()]
        + [value("y", shape=[None, 3])],
        [numpy_helper.from_array(np.array(1, np.float32), "one")],
    )
    cut = ("stop", "two") if batch_major else ("start", "stop")
    around = [
        helper.make_node("Shape", ["X0" if batch_major else "X"], ["sizes"]),
        helper.make_node("Slice", ["sizes", *cut, "start"], ["size"]),
        helper.make_node("Squeeze", ["size", "start"], ["n64"]),
        helper.make_node("Cast", ["n64"], ["n0"], to=TensorProto.INT32),
        helper.make_node("Cast", ["n0"], ["steps"], to=TensorProto.INT64),
        helper.make_node("Sub", ["steps", "one64"], ["steps-1"]),
    ]  # fmt: skip
    if batch_major:
        around.insert(0, helper.make_node("Transpose", ["X0"], ["X"], perm=[1, 0, 2]))
        constants["two"] = np.array([2])
    constants |= {"one64": np.array(1), "endless": np.array(ENDLESS)}
    begin = "true"
    if counting.begin:
        around += compared(counting.begin[0], "before_i", "n0", "begin", "c")
        begin = "begin"
    outputs = ["count", "last", "length", "W_last", "U_last", "Y"]
    taken = ["first_i", "h0", "n0", "W0", "U0"]
    around.append(helper.make_node("Loop", [counting.most, begin, *taken], outputs, body=body))
    proto = model(around, {"X0" if batch_major else "X": X}, outputs, constants=constants)
    sizes = proto.graph.input[0].type.tensor_type.shape.dim
    sizes[1 if batch_major else 0].dim_param = "time"
    return proto


FORMS = [
    Counting(*each)
    for each in itertools.product(
        (0, 1),
        (1, 2),
        (None, ("Less", 0), ("Less", 1), ("Greater", 0), ("LessOrEqual", 1)),
        (None, *itertools.product(("Less", "LessOrEqual", "Greater"), (0, 1, 2))),
        ("steps", "", "endless", "steps-1"),
        (False, True),
    )
]


@pytest.mark.parametrize("seed", range(4))
def test_loops_run_as_in_onnx_runtime_whatever_they_count(seed: int) -> None:
    """A loop becomes a layer if, and only if, turn t reads step t and there are all of them."""
    layers = loops = 0
    for at in np.random.default_rng(seed).permutation(len(FORMS))[:60]:
        counting = FORMS[at]
        if any(max(counting.reads(n), default=0) >= max(n, 1) for n in (1, 2, 6)):
            continue  # reads beyond the end, or has no end
        proto = loop(counting)
        every = all(counting.reads(n) == list(range(n)) for n in range(7))
        assert ("Rnn" in kinds(proto)) == every, counting
        layers, loops = layers + every, loops + (not every)
        for n in (1, 2, 6):
            if not counting.turns(n):
                continue  # ONNX Runtime gives nothing of unknown size then
            for mine, want in zip(
                ours(proto, {"X": X[:n]}), theirs(proto, {"X": X[:n]}), strict=True
            ):
                assert mine.shape == want.shape and mine.dtype == want.dtype, counting
                np.testing.assert_allclose(mine, want, rtol=5e-6, atol=5e-6)
    assert layers and loops


def test_a_loop_without_a_turn_gives_no_steps_and_the_first_state() -> None:
    proto = loop(Counting())
    count, last, length, *_, y = ours(proto, {"X": X[:0]})
    assert (int(count), int(length), y.shape) == (0, 0, (0, 3, 3))
    np.testing.assert_array_equal(last, WEIGHTS["h0"])


def test_the_length_may_be_that_of_another_axis_before_a_transpose() -> None:
    proto = loop(Counting(most=""), batch_major=True)
    assert "Rnn" in kinds(proto)
    x = np.ascontiguousarray(X.swapaxes(0, 1))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    for mine, want in zip(ours(proto, {"X0": x}), theirs(proto, {"X0": x}), strict=True):
        np.testing.assert_allclose(mine, want, rtol=5e-6, atol=5e-6)


def test_the_length_may_be_a_number_that_the_model_declares() -> None:
    """As TensorFlow's exporter writes it where it knows the length."""
    proto = loop(Counting())
    sizes = next(node for node in proto.graph.node if node.op_type == "Shape")
    proto.graph.node.remove(sizes)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([6, 3, 4]), "sizes"))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6
    assert "Rnn" in kinds(proto)
    for mine, want in zip(ours(proto, {"X": X}), theirs(proto, {"X": X}), strict=True):
        np.testing.assert_allclose(mine, want, rtol=5e-6, atol=5e-6)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "time"  # 6, or more
    assert "Loop" in kinds(proto)


def test_what_never_changes_is_a_constant_inside_a_loop_that_stays_one() -> None:
    graph = read(loop(Counting(by=2, again=("Less", 2), most="")))
    (node,) = (node for node in graph.nodes if node.op == "Loop")
    assert node.attributes["carried"] == 2  # the count and the state
    assert "W0" in node.attributes["body"].constants
    assert Session(graph)


@pytest.mark.parametrize("kind", [TensorProto.BOOL, TensorProto.INT8, TensorProto.FLOAT16])
def test_a_length_that_was_cast_to_less_is_another_number(kind: int) -> None:
    """257 steps: true is 1, so are eight bits of it, and float16 counts to 2048 only."""
    proto = loop(Counting(begin=None, again=None))
    at = next(k for k, node in enumerate(proto.graph.node) if "steps" in node.output)
    proto.graph.node[at].input[0] = "narrow"
    proto.graph.node.insert(at, helper.make_node("Cast", ["n0"], ["narrow"], to=kind))
    assert "Loop" in kinds(proto)
    x = np.resize(X, (257, 3, 4))
    got, want = ours(proto, {"X": x}), theirs(proto, {"X": x})
    np.testing.assert_allclose(got[1], want[1], rtol=5e-6, atol=5e-6)


def strange(kind: str) -> onnx.ModelProto:
    """A condition that takes forever to follow part by part, or a body that goes in a circle."""
    proto = loop(Counting())
    (node,) = (node for node in proto.graph.node if node.op_type == "Loop")
    body = node.attribute[0].g
    if kind == "circle":
        names = ["U_out", "round"]
        last = next(each for each in body.node if "U_out" in each.output)
        last.input[0] = "round"
        body.node.append(helper.make_node("Identity", names[:1], names[1:]))
        return proto
    op = "And" if kind == "conditions" else "Add"
    first = "again" if kind == "conditions" else "next"
    more = [
        helper.make_node(op, [f"{first}{k}" if k else first] * 2, [f"{first}{k + 1}"])
        for k in range(60)
    ]
    places = [at for at, each in enumerate(body.node) if first in each.output]
    for each in reversed(more):
        body.node.insert(places[0] + 1, each)
    if kind == "conditions":
        body.output[0].name = "again60"
    else:
        cast = next(each for each in body.node if each.input[:] == ["next"])
        cast.input[0] = "next60"
    return proto


@pytest.mark.parametrize("kind, becomes", [("conditions", "Rnn"), ("sums", "Loop")])
def test_conditions_of_many_parts_are_read_once_each(kind: str, becomes: str) -> None:
    assert becomes in kinds(strange(kind))


def test_a_body_that_goes_in_a_circle_is_refused() -> None:
    with pytest.raises(OnernnError, match="before anything makes it"):
        Session(read(strange("circle")))


def test_a_long_chain_behind_the_length_is_followed_without_recursion() -> None:
    proto = loop(Counting())
    at = next(k for k, node in enumerate(proto.graph.node) if node.op_type == "Loop")
    chain = [
        helper.make_node("Cast", [f"X{k}" if k else "X"], [f"X{k + 1}"], to=TensorProto.FLOAT)
        for k in range(3000)
    ]
    for each in reversed(chain):
        proto.graph.node.insert(0, each)
    node = proto.graph.node[at + 3000]
    node.attribute[0].g.node[0].input[0] = "X3000"
    assert "Rnn" in kinds(proto)
