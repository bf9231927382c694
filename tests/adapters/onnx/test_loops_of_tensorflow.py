"""Loops that count for themselves, as TensorFlow's become: layers where every step has its turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.onnx_models import check, ours, parsed, read, theirs
from support.onnx_steps import WEIGHTS, X, gru_step, kinds

from onernn import OnernnError, Session

ENDLESS = 2**31 - 1


class Counting(NamedTuple):
    """A count from ``first`` in steps of ``by``; goes on while count + ``ahead`` ``op`` n."""

    first: int = 0
    by: int = 1
    begin: tuple[str, int] | None = ("Less", 0)  # compared with n before the first turn
    again: tuple[str, int] | None = ("Less", 1)
    most: str = "steps"  # or "", "endless", "fewer"
    both: bool = False  # the loop's own turn is below n, too

    def turns(self, n: int) -> int:
        """How many there are, by ONNX's definition of Loop; 99 where it does not end."""
        most = {"steps": n, "": 99, "endless": 99, "fewer": n - 1}[self.most]
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


def compared(op: str, number: str, n: str, out: str, stem: str) -> str:
    """number < n, both as floats, as TensorFlow's exporter writes it."""
    first, second = (number, n) if op != "Greater" else (n, number)
    return f"""
        {stem}0 = Cast <to = 1> ({first})
        {stem}1 = Cast <to = 1> ({second})
        {out} = {op} ({stem}0, {stem}1)
        """


CARRIED = "int32 i_out, float[?, 3] h, int32 len, float[4, 9] W, float[3, 9] U_out"
ONES = {"start": [0], "stop": [1], "two": [2], "one64": 1, "endless": ENDLESS}


def loop(
    counting: Counting,
    *,
    batch_major: bool = False,
    changes: Callable[[str], str] = str,
    **constants: np.ndarray,
) -> onnx.ModelProto:
    """A GRU written out; count, length and weights are carried from turn to turn.

    ``changes``: made in the model's text.
    """
    int32 = {"first": counting.first, "by": counting.by}
    int32 |= {"ahead": counting.again[1] if counting.again else 0}
    int32 |= {"before": counting.begin[1] if counting.begin else 0}
    arrays = {name: np.array(number, np.int32) for name, number in int32.items()}
    arrays |= {name: np.array(numbers) for name, numbers in ONES.items()}
    arrays |= {"W0": WEIGHTS["W"], "U0": WEIGHTS["U"], "true": np.array(True)}
    arrays |= {"h0": WEIGHTS["h0"], "one": WEIGHTS["one"]}
    more, again, begin, around = "always = Identity (true)", "always", "true", ""
    if counting.again:
        op, again = counting.again[0], "again"
        more = "next = Add (i, ahead)" + compared(op, "next", "len", "again", "a")
    if counting.both:
        more += compared("Less", "t", "len", "below", "b") + f"both = And ({again}, below)"
        again = "both"
    if counting.begin:
        around = compared(counting.begin[0], "before", "n0", "begin", "c")
        begin = "begin"
    x, cut = ("X0", "stop, two") if batch_major else ("X", "start, stop")
    turned = "X = Transpose <perm = [1, 0, 2]> (X0)" if batch_major else ""
    sizes = "3, time" if batch_major else "time, 3"
    text = f"""(float[{sizes}, 4] {x}) => (count, last, length, W_last, U_last, Y) {{
        {turned}
        sizes = Shape ({x})
        size = Slice (sizes, {cut}, start)
        n64 = Squeeze (size, start)
        n0 = Cast <to = 6> (n64)
        steps = Cast <to = 7> (n0)
        fewer = Sub (steps, one64)
        {around}
        count, last, length, W_last, U_last, Y = Loop
            ({counting.most}, {begin}, first, h0, n0, W0, U0) <body = turn
            (int64 t, bool go, {CARRIED.replace("_out", "").replace(" h,", " h_in,")})
            => (bool {again}, {CARRIED}, float[?, 3] y) {{
            x = Gather (X, i)
            {gru_step("h_in", "h")}
            y = Identity (h)
            i_out = Add (i, by)
            U_out = Identity (U)
            {more}
        }}>
        }}"""
    return parsed(changes(text), arrays | constants)


FORMS = [
    Counting(*each)
    for each in itertools.product(
        (0, 1),
        (1, 2),
        (None, ("Less", 0), ("Less", 1), ("Greater", 0), ("LessOrEqual", 1)),
        (None, *itertools.product(("Less", "LessOrEqual", "Greater"), (0, 1, 2))),
        ("steps", "", "endless", "fewer"),
        (False, True),
    )
]


@pytest.mark.parametrize("seed", range(2))
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
            check(proto, {"X": X[:n]})
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
    check(proto, {"X0": x})


def test_the_length_may_be_a_number_that_the_model_declares() -> None:
    """As TensorFlow's exporter writes it where it knows the length."""

    def told(text: str) -> str:
        return text.replace("sizes = Shape (X)", "").replace("float[time", "float[6")

    proto = loop(Counting(), changes=told, sizes=np.array([6, 3, 4]))
    assert "Rnn" in kinds(proto)
    check(proto, {"X": X})
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
    narrow = f"narrow = Cast <to = {kind}> (n0) steps = Cast <to = 7> (narrow)"
    proto = loop(
        Counting(begin=None, again=None),
        changes=lambda text: text.replace("steps = Cast <to = 7> (n0)", narrow),
    )
    assert "Loop" in kinds(proto)
    x = np.resize(X, (257, 3, 4))
    got, want = ours(proto, {"X": x}), theirs(proto, {"X": x})
    np.testing.assert_allclose(got[1], want[1], rtol=5e-6, atol=5e-6)


def chain(op: str, name: str, count: int = 60) -> str:
    """``name`` with itself, and the result with itself, again and again."""
    lines = [f"{name}{k + 1} = {op} ({name}{k}, {name}{k})" for k in range(count)]
    return " ".join(lines).replace(f"{name}0", name)


CONDITIONS = [("again = Less (a0, a1)", f"again = Less (a0, a1) {chain('And', 'again')}")]
CONDITIONS += [("(bool again,", "(bool again60,")]
SUMS = [("a0 = Cast <to = 1> (next)", f"{chain('Add', 'next')} a0 = Cast <to = 1> (next60)")]


@pytest.mark.parametrize(
    "changes, becomes", [(CONDITIONS, "Rnn"), (SUMS, "Loop")], ids=["conditions", "sums"]
)
def test_conditions_of_many_parts_are_read_once_each(
    changes: list[tuple[str, str]], becomes: str
) -> None:
    def changed(text: str) -> str:
        for old, new in changes:
            text = text.replace(old, new)
        return text

    assert becomes in kinds(loop(Counting(), changes=changed))


def test_a_body_that_goes_in_a_circle_is_refused() -> None:
    circle = "U_out = Identity (round) round = Identity (U_out)"
    proto = loop(Counting(), changes=lambda text: text.replace("U_out = Identity (U)", circle))
    with pytest.raises(OnernnError, match="'U_out'.*'round'"):
        Session(read(proto))


def test_a_long_chain_behind_the_length_is_followed_without_recursion() -> None:
    casts = " ".join(f"X{k + 1} = Cast <to = 1> (X{k})" for k in range(3000)).replace("(X0)", "(X)")

    def changed(text: str) -> str:
        return text.replace("x = Gather (X, i)", "x = Gather (X3000, i)").replace(
            "sizes = Shape", f"{casts} sizes = Shape"
        )

    assert "Rnn" in kinds(loop(Counting(), changes=changed))
