"""Finds the known faults of Paddle's recurrent kernels and fuse passes that affect a program.

The faults were measured with Paddle 2.6.2, and with 3.3.1 under its legacy IR. See design/0018 and
tests/frameworks/test_paddle_audit.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.caller_rules import CallerRule
from onernn.adapters.common.fault import Effect, FaultyModel, FrameworkFault, Values, keep_unchanged
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Operator, Program
from onernn.ir.arrays import Array, Int64
from onernn.ir.graph import Graph, NativeOp, Node, describe_operators
from onernn.ir.ragged import Ragged
from onernn.ir.rnn import Recurrent

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
"""The default activations, which are the only ones that oneDNN's kernels support."""

PROJECTIONS = ("mul", "elementwise_add", "fc", "matmul_v2", "lod_reset")

PaddleFault = FrameworkFault[Program]


class Fusion(NamedTuple):
    """A recurrent operator that Paddle's pass fuses with the projection of its input. ``bias``: the
    name of the projection's bias, "" if it has none.
    """

    rnn: Operator
    bias: str


def find_faults(
    program: Program, callers: Mapping[str, CallerRule] = MappingProxyType({})
) -> FaultyModel[Program]:
    """Returns the program with the known faults of Paddle that affect it."""
    faults, read = tuple(_Detector(program).faults()), partial(lower, callers=callers)
    return FaultyModel("Paddle 2.6.2, 3.3.1", program, read, PATHS, faults)


class _Detector:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.makers: dict[str, list[Operator]] = {}
        self.readers: dict[str, list[Operator]] = {}
        for op in program.operators:
            for uses, names in ((self.makers, op.writes), (self.readers, op.reads)):
                for name in {*names}:
                    uses.setdefault(name, []).append(op)
        rnns = [op for op in program.operators if op.type in ("gru", "lstm")]
        result = {op.position: self.fusion(op) for op in rnns}
        self.fusions = {at: fusion for at, fusion in result.items() if isinstance(fusion, Fusion)}
        self.refusals = {at: reason for at, reason in result.items() if isinstance(reason, str)}

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
        yield from self.find_shared_biases()
        grus = [op for op in self.program.operators if op.type in ("gru", "fusion_gru")]
        for op in grus[:1]:
            text = (
                "Paddle's int8 GRU was measured 0.22 to 0.55 apart from float32; not computed here"
            )
            yield _fault(op, "int8_gru", "unmeasured", ("int8",), text)

    def of_fusion(self, op: Operator) -> Iterator[PaddleFault]:
        """Yields the faults of `fc_gru_fuse_pass`, `mul_gru_fuse_pass` or `mul_lstm_fuse_pass`."""
        states = [slot for slot in ("H0", "C0") if _first(op.inputs, slot)]
        if states:
            drop = {"dropped": ("H0", "C0")}
            text = f"the fuse pass drops {' and '.join(states)}: sequences start from zeros"
            yield _fault(op, "state_dropped", "wrong", ("fused", "onednn"), text, edit=drop)
        plain = _has_default_functions(op)
        if op.type == "lstm" and not plain:
            text = "the fuse pass forgets the activations: sigmoid, tanh and tanh are used"
            paths, reset = ("fused", "onednn"), {"attributes": FUNCTIONS["lstm"]}
            yield _fault(op, "activations_dropped", "wrong", paths, text, edit=reset)
            plain = True
        yield _empty(op, ("fused",) if plain else ("fused", "onednn"), stateless=True)
        if plain:
            yield _padding(op)
        yield from self.unwritten_cell(op)

    def of_fused_operator(self, op: Operator) -> Iterator[PaddleFault]:
        """Yields the faults of the fused kernels for a program that was saved with a fused
        operator.
        """
        if op.type == "fusion_gru" and op.attributes.get("origin_mode", False):
            text = "the native kernel ignores origin_mode: its update gate works the other way"
            paths, other = ("plain", "fused"), {"attributes": {"origin_mode": False}}
            yield _fault(op, "origin_mode_ignored", "wrong", paths, text, edit=other)
        if not _first(op.inputs, "H0"):
            yield _empty(op, ("plain", "fused"), stateless=False)
        if not _has_default_functions(op):
            text = "oneDNN's kernel takes no activations but sigmoid and tanh: it raises an error"
            yield _fault(op, "activations_refused", "refuses", ("onednn",), text)
            return
        if _first(op.inputs, "H0"):
            text = (
                "kernels are cached by variables' names and sizes, with the first batch's state"
                " inside: from the second batch with as many sequences and the same maximum length"
                " on, sequences start from stale states (shown with their neighbours')"
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

    def find_shared_biases(self) -> Iterator[PaddleFault]:
        """Yields a fault for each GRU bias that another operator also reads. `fc_gru_fuse_pass`
        adds the projection's bias to the GRU's bias in place.
        """
        users: dict[str, list[Fusion]] = {}
        for fusion in self.fusions.values():
            if fusion.bias:
                users.setdefault(_first(fusion.rnn.inputs, "Bias"), []).append(fusion)
        for name, fusions in users.items():
            if len(readers := self.readers[name]) > 1:
                listed = ", ".join(describe_operators((op.native,)) for op in readers)
                text = f"the fuse pass adds projections' biases into one that others read: {listed}"
                change = partial(_sum_readers, bias=name, fusions=tuple(fusions))
                paths, first = ("fused", "onednn"), fusions[0].rnn
                yield _fault(first, "bias_shared", "wrong", paths, text, value=name, change=change)

    def fusion(self, op: Operator) -> Fusion | str | None:
        """Returns the fusion that Paddle's pass makes, or the reason why it makes none. Returns
        None if the operator has no projection.
        """
        made = self.maker(_first(op.inputs, "Input"))
        if made is None or made.type not in PROJECTIONS:
            return None
        matrix, bias = made, ""
        if made.type == "elementwise_add":
            result, bias = self.maker(_first(made.inputs, "X")), _first(made.inputs, "Y")
            if result is None or bias not in self.program.parameters:
                return None
            matrix = result
        if matrix.type != "mul":
            return f"Paddle's passes do not fuse {op.type} after {made.type}"
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
        "the native kernel takes one step for a sequence of length zero: later sequences begin at"
        " wrong steps, and memory after the last one is overwritten (it may crash or hang)"
    )
    # After a fuse pass, Paddle always uses the kernel that runs sequence by sequence.
    by_sentence = stateless or op.attributes.get("use_seq", True)
    change = partial(misread_sentences, at=op.native, by_sentence=by_sentence, stateless=stateless)
    occurs = partial(has_empty_sentences, value=_input(op))
    return _fault(op, "empty_sentences", "wrong", paths, text, change_graph=change, occurs=occurs)


def _padding(op: Operator) -> PaddleFault:
    text = "oneDNN's kernel pads each sequence to the longest one"
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
    change: Any = keep_unchanged,
    edit: Mapping[str, Any] | None = None,
    **how: Any,
) -> PaddleFault:
    """Returns a fault of an operator.

    ``change``: a function that returns the faulty program. ``edit``: arguments of `_change`, in
    place of ``change``. ``how``: further fields of `FrameworkFault`.
    """
    change = partial(_change, position=op.position, **edit) if edit else change
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


def _change(
    program: Program,
    *,
    position: int,
    dropped: tuple[str, ...] = (),
    inputs: Mapping[str, tuple[str, ...]] = {},  # noqa: B006
    attributes: Mapping[str, Any] = {},  # noqa: B006
) -> Program:

    def change(op: Operator) -> Operator:
        if op.position != position:
            return op
        kept = {slot: names for slot, names in op.inputs.items() if slot not in dropped}
        return replace(op, inputs={**kept, **inputs}, attributes={**op.attributes, **attributes})

    return replace(program, operators=tuple(map(change, program.operators)))


def _sum_readers(program: Program, *, bias: str, fusions: tuple[Fusion, ...]) -> Program:
    """Returns the program in which all readers of the bias read its sum with the projections'
    biases. A fused GRU's sum excludes the bias that its own projection adds.
    """
    old = program.parameters[bias]
    shares = [program.parameters[fusion.bias].reshape(old.shape) for fusion in fusions]
    total = sum(shares, start=old)
    parameters: dict[str, Array] = {**program.parameters, bias: total}
    for fusion, share in zip(fusions, shares, strict=True):
        name = f"{bias}#{fusion.rnn.position}"
        parameters[name] = total - share
        program = _change(program, position=fusion.rnn.position, inputs={"Bias": (name,)})
    return replace(program, parameters=parameters)


# Graphs that compute the same wrong results as Paddle's fused kernels.

Chains = list[list[int]]
"""The sequences that a kernel runs from zero states. Each is a list of row indices of the batch."""


def padding(values: Values, *, value: str) -> str:
    """Returns a text with the number of rows of the padded batch, the number of steps, and their
    ratio.
    """
    x = values.get(value)
    if not isinstance(x, Ragged) or not len(x.data):
        return "unknown for this batch"
    rows, steps = len(x) * int(x.lengths.max()), len(x.data)
    return f"{rows} rows for {steps} steps, {rows / steps:.2g} times as many"


def has_empty_sentences(values: Values, *, value: str) -> bool:
    """Returns whether the batch has a sequence without steps. If only the last sequence has no
    steps, the outputs are still correct, but Paddle overwrites the memory after them.
    """
    x = values.get(value)
    return isinstance(x, Ragged) and not x.lengths.all()


def stale_state(graph: Graph, values: Values, *, at: NativeOp) -> Graph:
    """Returns the graph in which each sequence has the initial states of the previous sequence. A
    batch of one sequence has no previous sequence, so its initial states are negated.
    """
    for node in _rnns(graph, at):
        rnn = Recurrent.of(node)
        stale = {}
        for name in filter(None, rnn.states):
            state = values[name]
            stale[f"{name}/stale"] = np.roll(state, 1, axis=2) if state.shape[2] > 1 else -state
        states = tuple(name and f"{name}/stale" for name in rnn.states)
        return graph.splice([node], [rnn.with_states(states, rnn.finals).node()], stale)
    return graph


def misread_sentences(
    graph: Graph, values: Values, *, at: NativeOp, by_sentence: bool, stateless: bool
) -> Graph:
    """Returns the graph whose layer runs at least one step for each sequence, like Paddle's kernels
    without an initial state.

    ``stateless``: whether a pass of Paddle has dropped the initial state that the graph still has.
    """
    for node in _rnns(graph, at):
        rnn = Recurrent.of(node)
        x, has_states = values[rnn.x], any(rnn.states) and not stateless
        if has_states or not isinstance(x, Ragged) or x.lengths.all():
            return graph
        by_sentence = by_sentence or len(x) == 1
        order = _sentence_chains if by_sentence else _batch_chains
        chains = order(x, rnn.spec.direction == "right2left")
        return _regroup(graph, node, [chain for chain in chains if chain])
    return graph


def _rnns(graph: Graph, at: NativeOp) -> Iterator[Node]:
    return (node for node in graph.nodes if node.op == "Rnn" and at in node.origin)


def _sentence_chains(x: Ragged, reverse: bool) -> Chains:
    """Returns the sequences that SeqCompute in fusion_gru_op.cc runs. Each has at least one
    step.
    """
    words, begin, chains = len(x.data), 0, []
    for length in x.lengths[::-1] if reverse else x.lengths:
        end = min(words, begin + max(1, int(length)))
        chains.append([words - 1 - row if reverse else row for row in range(begin, end)])
        begin = end
    return chains


def _batch_chains(x: Ragged, reverse: bool) -> Chains:
    """Returns the sequences that BatchCompute in fusion_gru_op.cc runs: a first step for all of
    them, then each step for those that have not ended.
    """
    order = np.argsort(-x.lengths, kind="stable")
    longest = int(x.lengths.max(initial=0))
    rows: list[int] = []  # sorted by time, then longest sequence first
    running = [int(np.count_nonzero(x.lengths > t)) for t in range(longest)]
    for t, count in enumerate(running):
        for n in order[:count]:
            begin, end = int(x.offsets[n]), int(x.offsets[n + 1])
            rows.append(end - 1 - t if reverse else begin + t)
    chains = [[row] for row in rows[: len(x)]]
    chains += [[] for _ in range(len(x) - len(chains))]
    at = len(x)
    for count in running[1:]:
        for n, row in enumerate(rows[at : at + count]):
            chains[n].append(row)
        at += count
    return chains


def _regroup(graph: Graph, node: Node, chains: Chains) -> Graph:
    """Returns the graph whose layer runs over the sequences ``chains``. Each output keeps the
    position of its step.
    """
    rnn = Recurrent.of(node)
    rows = np.concatenate([np.asarray(chain, np.int64) for chain in chains or [[]]])
    offsets: Int64 = np.cumsum([0, *map(len, chains)])
    stem = f"{rnn.y}/misread"
    constants: dict[str, Array] = {
        f"{stem}/rows": rows,
        f"{stem}/back": np.argsort(rows),
        f"{stem}/offsets": offsets,
    }
    misread = replace(
        rnn,
        spec=replace(rnn.spec, direction="left2right"),
        x=f"{stem}/sentences",
        y=f"{stem}/y",
        cells=rnn.cells and f"{stem}/cells",
    ).with_states((), rnn.finals)
    nodes = [
        _gather(rnn.x, f"{stem}/rows", f"{stem}/x"),
        Node("SequenceReset", (f"{stem}/x", f"{stem}/offsets"), (misread.x,)),
        misread.node(),
    ]
    for name, made in ((rnn.y, misread.y), (rnn.cells, misread.cells)):
        if name:
            words = f"{made}/words"
            nodes.append(_gather(made, f"{stem}/back", words))
            nodes.append(Node("SequenceLike", (words, rnn.x), (name,), {}, node.origin))
    return graph.splice([node], nodes, constants)


def _gather(value: str, rows: str, out: str) -> Node:
    return Node("Gather", (value, rows), (out,), {"axis": 0})
