"""Lowers the nodes of a symbol, one after the other, by the rules."""

from __future__ import annotations

from collections import Counter

from onernn.adapters.mxnet.lower.operator import Context, MxnetOperator
from onernn.adapters.mxnet.lower.rules import Rule, find_rule, needed, slots_of
from onernn.adapters.mxnet.read import VARIABLE, Entry, SymbolNode
from onernn.core.errors import OnernnError, UnsupportedError
from onernn.core.graph import NativeOp

_OUTPUTS = {
    "SliceChannel": ("output0",),
    "RNN": ("output", "state_output", "statecell_output"),
    "_npx_rnn": ("output", "state_output", "statecell_output"),
    "_npi_matmul": ("out",),
    "_npi_concatenate": ("out",),
}
"""What an operator calls its outputs, where it names them (FListOutputNames)."""

_NAMED_BEFORE = 900  # until 0.9.0 auxiliary states were no inputs in the file


def lower_nodes(context: Context) -> list[str]:
    """The value of each head, under MXNet's name of it.

    Variables are inputs or constants that the builder has already. What cannot be lowered becomes
    a node with the reason.
    """
    builder, symbol = context.builder, context.symbol
    made: dict[tuple[int, int], str] = {}
    refused: dict[int, str] = {}
    reads: dict[int, list[str]] = {}
    heads = {(entry.node, entry.output) for entry in symbol.heads}
    # Nodes may share a name: those whose values are outputs come first.
    taken = {output_name(symbol.nodes[at], out, n) for at, out in heads for n in (1, 2)}

    def value(entry: Entry) -> str:
        at = entry.node, entry.output
        node = symbol.nodes[entry.node]
        if at not in made:
            reason = refused.get(entry.node, f"output {entry.output} is not computed")
            builder.origin = (NativeOp(entry.node, node.op),)
            name = output_name(node, entry.output, 1)
            builder.refuse(name, reason, reads.get(entry.node, ()))
            made[at] = builder.value(name)
        return made[at]

    used = needed(symbol)
    for position, node in enumerate(symbol.nodes):
        if node.op == VARIABLE:
            made[position, 0] = node.name
        if node.op == VARIABLE or position not in used:
            continue
        inputs = [value(entry) if entry.node in used else "" for entry in node.inputs]
        reads[position] = inputs
        builder.origin = (NativeOp(position, node.op),)
        try:
            results = _lower(context, position, node, inputs)
        except OnernnError as error:
            refused[position] = str(error)
            continue
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Attributes or inputs of no known form.
            refused[position] = f"malformed: {type(error).__name__} {error}"
            continue
        for k, result in enumerate(results):
            name = output_name(node, k, len(results))
            if name in taken and (position, k) not in heads:
                name = f"{name}#{position}"
            made[position, k] = _given(context, name, result)
    counts = Counter(position for position, _ in made)
    values: list[str] = []
    for entry in symbol.heads:
        node, found = symbol.nodes[entry.node], value(entry)
        name = output_name(node, entry.output, counts[entry.node])
        if found in values or found.split("#")[0] != name:  # another node's value, or a second time
            builder.origin = (NativeOp(entry.node, node.op),)
            facts = context.of(found)
            found = _given(context, name, builder.emit("Identity", (found,)))
            context.facts[found] = facts
        values.append(found)
    return values


def _lower(context: Context, position: int, node: SymbolNode, inputs: list[str]) -> tuple[str, ...]:
    found = find_rule(node.op)
    if found is None:
        raise UnsupportedError("this operator is not known")
    inputs = inputs + late_inputs(context, found, node, len(inputs))
    slots: dict[str, list[str]] = {}
    for slot, value in zip(slots_of(found, len(inputs)), inputs, strict=True):
        slots.setdefault(slot, []).append(value)
    unsized = [value in context.inferred for value in inputs]
    if any(unsized) and not found.inferred:
        raise UnsupportedError("an input of zeros, whose size MXNet would infer from other inputs")
    op = MxnetOperator(context, position, node, slots)
    results = found.lower(op)
    op.check_read()
    results = (results,) if isinstance(results, str) else results
    if found.inferred == "first" and unsized[0] or found.inferred == "all" and all(unsized):
        context.inferred.update(results if unsized else ())
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
    given = _OUTPUTS.get(node.op, ())
    if output < len(given):
        kind = given[output]
    else:
        kind = "output" if count == 1 else f"output{output}"
    return f"{node.name}_{kind}" if node.name else kind


def _given(context: Context, name: str, value: str) -> str:
    """The value under a name, where it is new."""
    context.builder.give(name, value)
    found = context.builder.value(name)
    context.facts[found] = context.of(value)
    if value in context.inferred:
        context.inferred.add(found)
    return found
