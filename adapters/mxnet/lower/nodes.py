"""Lowers the nodes of a symbol, one after the other, by the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from onernn.adapters.lowering import LoweringStep, Output, Results, lower_steps
from onernn.adapters.mxnet.lower.operator import Context, MxnetOperator
from onernn.adapters.mxnet.lower.rules import Rule, find_rule, known_name, needed
from onernn.adapters.mxnet.read import VARIABLE, SymbolNode
from onernn.core.errors import UnsupportedError
from onernn.core.graph import NativeOp

_OUTPUTS = {
    "SliceChannel": ("output0",),
    "RNN": ("output", "state_output", "statecell_output"),
    "_npi_matmul": ("out",),
    "_npi_concatenate": ("out",),
}
"""What an operator calls its outputs, where it names them (FListOutputNames)."""

_NAMED_BEFORE = 900  # until 0.9.0 auxiliary states were no inputs in the file


def lower_nodes(context: Context) -> list[str]:
    """The value of each head, under MXNet's name of it.

    The builder has the variables already, as inputs or constants. What cannot be lowered becomes a
    node with the reason.
    """
    builder, symbol = context.builder, context.symbol
    heads = [(entry.node, entry.output) for entry in symbol.heads]
    used, ends = needed(symbol), set(heads)
    read: dict[int, set[int]] = {}
    for entry in (*symbol.heads, *(each for at in used for each in symbol.nodes[at].inputs)):
        read.setdefault(entry.node, set()).add(entry.output)
    # Nodes may share a name: those whose values are outputs come first.
    taken = {output_name(symbol.nodes[at], out, n) for at, out in heads for n in (1, 2)}
    counts: dict[int, int] = {}

    def step(position: int, node: SymbolNode) -> LoweringStep:
        def outputs(count: int) -> Iterator[Output]:
            counts[position] = count or len(read[position])  # none where it was refused
            for k in sorted({*range(count), *read[position]}):
                name = output_name(node, k, counts[position])
                if name in taken and (position, k) not in ends:
                    name = f"{name}#{position}"
                yield Output(str(k), variable_of(position, k), name)

        reads = tuple(variable_of(*each[:2]) if each.node in used else "" for each in node.inputs)
        lower = partial(_lower, context, position, node, reads)
        return LoweringStep(NativeOp(position, node.op, node.name), reads, lower, outputs)

    steps = [step(at, node) for at, node in enumerate(symbol.nodes) if at in used]
    lower_steps(builder, steps, [variable_of(*head) for head in heads])
    values: dict[str, None] = {}
    for at, out in heads:
        node, found = symbol.nodes[at], builder.value(variable_of(at, out))
        name = output_name(node, out, counts[at])
        if found in values or found.split("#")[0] != name:  # another node's value, or a second time
            builder.origin = (NativeOp(at, node.op, node.name),)
            again = f"head {len(values)}"
            builder.give(again, builder.emit("Identity", (found,)), name)
            found = builder.value(again)
        values[found] = None
    return list(values)


def variable_of(position: int, output: int) -> str:
    """What the builder calls an output of a node."""
    return f"{position}:{output}"


def _lower(context: Context, position: int, node: SymbolNode, reads: Sequence[str]) -> Results:
    if node.op == VARIABLE:
        return node.name
    found = find_rule(node.op)
    if found is None:
        raise UnsupportedError("this operator is not known")
    inputs = [each and context.builder.value(each) for each in reads]
    inputs += late_inputs(context, found, node, len(inputs))
    slots: dict[str, list[str]] = {}
    for slot, value in zip(found.slots_of(len(inputs)), inputs, strict=True):
        slots.setdefault(slot, []).append(value)
    unsized = [each in context.inferred for each in reads]
    if any(unsized) and not found.inferred:
        raise UnsupportedError("an input of zeros, whose size MXNet would infer from other inputs")
    inferred = {value for value, each in zip(inputs, unsized, strict=False) if each}
    op = MxnetOperator(
        context, NativeOp(position, node.op, node.name), found.name, node, slots, inferred
    )
    results = op.lowered(found.lower)
    decisive = unsized[:1] if found.inferred == "first" else unsized
    if op.gives_inferred or decisive and all(decisive) and found.inferred != "none":
        count = 1 if isinstance(results, str) else len(results)
        context.inferred.update(variable_of(position, k) for k in range(count))
    return results


def late_inputs(context: Context, found: Rule, node: SymbolNode, count: int) -> list[str]:
    """The auxiliary states that files of MXNet before 0.9 leave out."""
    if context.symbol.version >= _NAMED_BEFORE:
        return []
    names = [f"{node.name}_{slot}" for slot in found.slots[count:]]
    return [name for name in names if name in context.builder.constants]


def output_name(node: SymbolNode, output: int, count: int) -> str:
    """What MXNet calls an output of a node of ``count`` outputs (Symbol::ListOutputNames)."""
    if node.op == VARIABLE:
        return node.name
    given = _OUTPUTS.get(known_name(node.op), ())
    if output < len(given):
        kind = given[output]
    else:
        kind = "output" if count == 1 else f"output{output}"
    return f"{node.name}_{kind}" if node.name else kind
