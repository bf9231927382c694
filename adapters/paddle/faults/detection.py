"""The known faults of Paddle's own recurrent path that hit a program.

Measured with 2.6.2 and 3.3.1 under its legacy IR: design/0018,
tests/frameworks/test_paddle_audit.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from onernn.adapters.common.fault import Effect, FaultyModel, FrameworkFault, unchanged
from onernn.adapters.paddle.faults.wrong_kernels import (
    has_empty_sentences,
    misread_sentences,
    padding,
    stale_state,
)
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Operator, Program
from onernn.ir.arrays import Array
from onernn.ir.graph import called

PATHS = {
    "plain": "Executor, or switch_ir_optim(False) and disable_mkldnn()",
    "fused": "paddle.inference with its fuse passes, disable_mkldnn()",
    "onednn": "paddle.inference with enable_mkldnn(), the default of 2.6.2 on a CPU",
}
FUNCTIONS = {
    "gru": {"gate_activation": "sigmoid", "activation": "tanh"},
    "lstm": {
        "gate_activation": "sigmoid",
        "candidate_activation": "tanh",
        "cell_activation": "tanh",
    },
}
"""The activations that oneDNN's kernels take: the defaults."""

PROJECTIONS = ("mul", "elementwise_add", "fc", "matmul_v2", "lod_reset")

PaddleFault = FrameworkFault[Program]


class Fusion(NamedTuple):
    """An rnn that Paddle's pass makes one with its projection; ``bias``: the projection's or ""."""

    rnn: Operator
    bias: str


def find_faults(program: Program) -> FaultyModel[Program]:
    """The program with its faults."""
    return FaultyModel(
        "Paddle 2.6.2, 3.3.1", program, lower, PATHS, tuple(_Detector(program).faults())
    )


class _Detector:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.makers: dict[str, list[Operator]] = {}
        self.readers: dict[str, list[Operator]] = {}
        for op in program.operators:
            for uses, slots in ((self.makers, op.outputs), (self.readers, op.inputs)):
                for name in {name for names in slots.values() for name in names if name}:
                    uses.setdefault(name, []).append(op)
        rnns = [op for op in program.operators if op.type in ("gru", "lstm")]
        found = {op.position: self.fusion(op) for op in rnns}
        self.fusions = {at: fusion for at, fusion in found.items() if isinstance(fusion, Fusion)}
        self.refusals = {at: reason for at, reason in found.items() if isinstance(reason, str)}

    def faults(self) -> Iterator[PaddleFault]:
        for op in self.program.operators:
            if op.position in self.fusions:
                yield from self.of_fusion(op)
            elif op.position in self.refusals:
                yield _fault(op, "not_fused", "slower", ("onednn",), self.refusals[op.position])
            elif op.type in ("fusion_gru", "fusion_lstm"):
                yield from self.of_fused_operator(op)
            elif op.type == "rnn":
                text = "paddle.nn layers never run on oneDNN's RNN primitives"
                yield _fault(op, "no_onednn", "slower", ("onednn",), text)
            elif op.type == "concat":
                yield from self.of_concat(op)
        yield from self.shared_biases()
        grus = [op for op in self.program.operators if op.type in ("gru", "fusion_gru")]
        for op in grus[:1]:
            text = (
                "Paddle's int8 GRU was measured 0.22 to 0.55 apart from float32; not computed here"
            )
            yield _fault(op, "int8_gru", "unmeasured", ("int8",), text)

    def of_fusion(self, op: Operator) -> Iterator[PaddleFault]:
        """What `fc_gru_fuse_pass`, `mul_gru_fuse_pass` or `mul_lstm_fuse_pass` gets wrong."""
        states = [slot for slot in ("H0", "C0") if _first(op.inputs, slot)]
        if states:
            drop = partial(_without_states, position=op.position)
            text = f"the fuse pass drops {' and '.join(states)}: sentences start from zeros"
            yield _fault(op, "state_dropped", "wrong", ("fused", "onednn"), text, change=drop)
        plain = _has_default_functions(op)
        if op.type == "lstm" and not plain:
            text = "the fuse pass forgets the activations: sigmoid, tanh and tanh are used"
            reset = partial(_with_attributes, position=op.position, attributes=FUNCTIONS["lstm"])
            paths = ("fused", "onednn")
            yield _fault(op, "activations_dropped", "wrong", paths, text, change=reset)
            plain = True
        yield _empty(op, ("fused",) if plain else ("fused", "onednn"), stateless=True)
        if plain:
            yield _padding(op)
        yield from self.unwritten_cell(op)

    def of_fused_operator(self, op: Operator) -> Iterator[PaddleFault]:
        """What the kernels get wrong where a program holds their operator itself."""
        if op.type == "fusion_gru" and op.attributes.get("origin_mode", False):
            text = "the native kernel ignores origin_mode: its update gate works the other way"
            other = {"origin_mode": False}
            change = partial(_with_attributes, position=op.position, attributes=other)
            paths = ("plain", "fused")
            yield _fault(op, "origin_mode_ignored", "wrong", paths, text, change=change)
        if not _first(op.inputs, "H0"):
            yield _empty(op, ("plain", "fused"), stateless=False)
        if not _has_default_functions(op):
            text = "oneDNN's kernel takes no activations but sigmoid and tanh: it raises an error"
            yield _fault(op, "activations_refused", "refuses", ("onednn",), text)
            return
        if _first(op.inputs, "H0"):
            text = (
                "kernels are cached by variables' names and sizes, with the first batch's state"
                " inside: from the second batch of as many sentences and the same longest one on,"
                " sentences start from stale states (shown with their neighbours')"
            )
            stale = partial(stale_state, at=op.native)
            yield _fault(op, "state_stale", "wrong", ("onednn",), text, change_graph=stale)
        yield _padding(op)
        yield from self.unwritten_cell(op)

    def unwritten_cell(self, op: Operator) -> Iterator[PaddleFault]:
        cell = _first(op.outputs, "Cell")
        users = self.readers.get(cell, ())
        if "lstm" in op.type and users:
            text = f"oneDNN's kernel never writes Cell, which {users[0].type} reads: a crash"
            yield _fault(op, "cell_unwritten", "crashes", ("onednn",), text, value=cell)

    def of_concat(self, op: Operator) -> Iterator[PaddleFault]:
        halves = [self.maker(name) for name in op.inputs.get("X", ())]
        ways = {
            bool(half.attributes.get("is_reverse", False))
            for half in halves
            if half and half.type in ("gru", "lstm", "fusion_gru", "fusion_lstm")
        }
        if len(halves) == len(ways) == 2:
            text = "two directions run as two primitives of one direction and a copy"
            yield _fault(op, "directions_apart", "slower", ("onednn",), text)

    def shared_biases(self) -> Iterator[PaddleFault]:
        """`fc_gru_fuse_pass` adds a projection's bias into the GRU's in place, for all to see."""
        users: dict[str, list[Fusion]] = {}
        for fusion in self.fusions.values():
            if fusion.bias:
                users.setdefault(_first(fusion.rnn.inputs, "Bias"), []).append(fusion)
        for name, fusions in users.items():
            if len(readers := self.readers[name]) > 1:
                listed = ", ".join(called((op.native,)) for op in readers)
                text = f"the fuse pass adds projections' biases into one that others read: {listed}"
                change = partial(_summed, bias=name, fusions=tuple(fusions))
                paths, first = ("fused", "onednn"), fusions[0].rnn
                yield _fault(first, "bias_shared", "wrong", paths, text, value=name, change=change)

    def fusion(self, op: Operator) -> Fusion | str | None:
        """What the pass fuses, why it does not, or None where there is no projection."""
        made = self.maker(_first(op.inputs, "Input"))
        if made is None or made.type not in PROJECTIONS:
            return None
        matrix, bias = made, ""
        if made.type == "elementwise_add":
            found, bias = self.maker(_first(made.inputs, "X")), _first(made.inputs, "Y")
            if found is None or bias not in self.program.parameters:
                return None
            matrix = found
        if matrix.type != "mul":
            return f"behind {made.type} Paddle's passes look for no {op.type}: nothing is fused"
        ops = [matrix] if matrix is made else [matrix, made]
        if any(len(self.readers.get(_first(each.outputs, "Out"), ())) > 1 for each in ops):
            return "the projection has another reader: nothing is fused"
        columns = [matrix.attributes.get(f"{side}_num_col_dims", 1) for side in "xy"]
        if _first(matrix.inputs, "Y") not in self.program.parameters or columns != [1, 1]:
            return "the projection is of a form that Paddle's passes do not fuse"
        if op.type == "lstm":
            if bias:
                return "fc_lstm_fuse_pass is disabled in Paddle, which could not make it right"
            return Fusion(op, "")
        if op.attributes.get("origin_mode", False):
            return "Paddle fuses no GRU with origin_mode"
        parameters, own = self.program.parameters, _first(op.inputs, "Bias")
        if own not in parameters:
            return "Paddle fuses no GRU without a bias of its own"
        if bias and parameters[own].size != parameters[bias].size:
            return "the projection is of a form that Paddle's passes do not fuse"
        return Fusion(op, bias)

    def maker(self, name: str) -> Operator | None:
        makers = self.makers.get(name, ())
        return makers[0] if len(makers) == 1 else None


def _empty(op: Operator, paths: tuple[str, ...], *, stateless: bool) -> PaddleFault:
    text = (
        "the native kernel takes a word for a sentence of length zero: those behind it are cut in"
        " other places, and memory behind the last is overwritten (it may crash or hang)"
    )
    # The passes choose the kernel that goes sentence by sentence.
    by_sentence = stateless or op.attributes.get("use_seq", True)
    change = partial(misread_sentences, at=op.native, by_sentence=by_sentence, stateless=stateless)
    occurs = partial(has_empty_sentences, value=_input(op))
    return _fault(op, "empty_sentences", "wrong", paths, text, change_graph=change, occurs=occurs)


def _padding(op: Operator) -> PaddleFault:
    text = "oneDNN's kernel pads every sentence to the longest one"
    cost = partial(padding, value=_input(op))
    return _fault(op, "padded", "slower", ("onednn",), text, measure=cost)


def _fault(
    op: Operator,
    name: str,
    effect: Effect,
    paths: tuple[str, ...],
    text: str,
    *,
    value: str = "",
    change: Any = unchanged,
    **how: Any,
) -> PaddleFault:
    """``change``: of the program; ``how``: what happens to the graph, and for which batches."""
    value = value or _first(op.outputs, "Hidden") or _first(op.outputs, "Out")
    return FrameworkFault(name, text, change, effect, paths, op.native, value, **how)


def _input(op: Operator) -> str:
    return _first(op.inputs, "X") or _first(op.inputs, "Input")


def _first(slots: Any, slot: str) -> str:
    names = slots.get(slot, ())
    return str(names[0]) if names else ""


def _has_default_functions(op: Operator) -> bool:
    expected = FUNCTIONS["lstm" if "lstm" in op.type else "gru"]
    return all(op.attributes.get(name, value) == value for name, value in expected.items())


def _changed(program: Program, position: int, **fields: Any) -> Program:
    operators = [
        replace(op, **fields) if op.position == position else op for op in program.operators
    ]
    return replace(program, operators=tuple(operators))


def _operator(program: Program, position: int) -> Operator:
    return next(op for op in program.operators if op.position == position)


def _without_states(program: Program, *, position: int) -> Program:
    inputs = _operator(program, position).inputs
    kept = {slot: names for slot, names in inputs.items() if slot not in ("H0", "C0")}
    return _changed(program, position, inputs=kept)


def _with_attributes(program: Program, *, position: int, attributes: Mapping[str, Any]) -> Program:
    old = _operator(program, position).attributes
    return _changed(program, position, attributes={**old, **attributes})


def _summed(program: Program, *, bias: str, fusions: tuple[Fusion, ...]) -> Program:
    """Every reader of the bias gets the sum; a fused one's own share is added in front of it."""
    old = program.parameters[bias]
    shares = [program.parameters[fusion.bias].reshape(old.shape) for fusion in fusions]
    total = sum(shares, start=old)
    parameters: dict[str, Array] = {**program.parameters, bias: total}
    for fusion, share in zip(fusions, shares, strict=True):
        name = f"{bias}#{fusion.rnn.position}"
        parameters[name] = total - share
        inputs = {**_operator(program, fusion.rnn.position).inputs, "Bias": (name,)}
        program = _changed(program, fusion.rnn.position, inputs=inputs)
    return replace(program, parameters=parameters)
