"""Writes loops and branches as Paddle's operators. The bodies become blocks of the program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onernn.adapters.common.writing import write_nodes
from onernn.adapters.paddle.messages import ARRAY, SCOPES
from onernn.adapters.paddle.writer import Variable, Writing, rule
from onernn.ir.errors import UnsupportedError
from onernn.ir.types import UNKNOWN, Type
from onernn.ops.control import Turns

# The operators while, conditional_block and select_input are used in the same way as by
# static.nn.while_loop and static.nn.cond of 2.6.
#
# A block returns results by assigning variables of its outer block and by appending to tensor
# arrays.


def _write_body(block: Writing) -> list[Variable]:
    try:
        write_nodes(block.graph, block.write, block.stand_in, None)
    except UnsupportedError as error:
        raise UnsupportedError(f"in its body {'; '.join(map(str, error.refusals))}") from error
    return [block.value(output.name) for output in block.graph.outputs]


def _assign(block: Writing, values: Sequence[Variable], targets: Sequence[Variable]) -> None:
    """Assigns values to variables of the outer block. Values that are targets themselves are copied
    first, so that no assignment changes a later value.
    """
    changed = {target.name for target in targets}
    copied = [value.copy() if value.name in changed else value for value in values]
    for value, target in zip(copied, targets, strict=True):
        block.nest("assign", {"X": value}, {"Out": target})
        block.program.fetches.append(target.name)


def _check_dense(w: Writing) -> None:
    for name in filter(None, (*w.node.inputs, *w.node.outputs)):
        if w.types[name].depth:
            raise UnsupportedError(f"{name!r}: expected no LoD in a loop or a branch")


def _of_any_turn(known: Type) -> Type:
    return Type(known.dtype, known.shape, ())


@rule("If")
def conditional(condition, *taken, then_branch, else_branch, then_taken, w):
    """Writes a conditional_block for each branch, and a select_input for each result. Only one of
    the blocks runs.
    """
    _check_dense(w)
    truth = condition.reshape(1)
    results: list[list[Variable]] = []
    for key, values in (("then_branch", taken[:then_taken]), ("else_branch", taken[then_taken:])):
        holds = truth.logical_not() if results else truth
        block = w.block(key, values)
        outputs = _write_body(block)
        targets = [w.declare(_of_any_turn(w.types[n]), "branch.out") for n in w.node.outputs]
        _assign(block, outputs, targets)
        results.append(targets)
        w.nest(
            "conditional_block",
            {"Cond": holds, "Input": block.reads()},
            {"Out": targets, "Scope": w.declare(UNKNOWN, "scope", SCOPES)},
            sub_block=block.program.index,
            is_scalar_condition=True,
        )
    mask = truth.cast("int32")
    chosen = [w.declare(each.type, "select_input.out") for each in results[0]]
    for then, other, out in zip(*results, chosen, strict=True):
        w.nest("select_input", {"Mask": mask, "X": [other, then]}, {"Out": out})
    read = map(w.graph.is_read, w.node.outputs)
    return tuple(
        each.copy() if is_read else None for each, is_read in zip(chosen, read, strict=True)
    )


@rule("Loop")
def loop(most, going, *values, body, carried, w):
    limit = None if most is None else most.cast("int64").reshape(1)
    truth = None if going is None else going.reshape(1)
    return _turns(w, limit, truth, values[:carried], [], values[carried:])


@rule("Scan")
def scan(
    *values,
    body,
    states,
    scanned,
    input_axes,
    input_directions,
    output_axes,
    output_directions,
    w,
):
    """Writes a loop over the elements of the scanned inputs. Inputs that are scanned backwards are
    reversed before the loop.
    """
    whole = zip(values[states : states + scanned], input_axes, input_directions, strict=True)
    elements = [value.flip(axis=[axis]) if turned else value for value, axis, turned in whole]
    limit = elements[0].size(input_axes[0] % elements[0].rank)
    return _turns(w, limit, None, values[:states], elements, values[states + scanned :])


def _turns(
    w: Writing,
    limit: Variable | None,
    going: Variable | None,
    initial: Sequence[Variable],
    scanned: Sequence[Variable],
    captured: Sequence[Variable],
) -> tuple[Variable, ...]:
    """Writes a loop. Returns its last states and its stacked outputs."""
    _check_dense(w)
    turns, types = Turns.of(w.node.attrs), [w.types[name] for name in w.node.outputs]

    def carry(value: Variable, known: Type) -> Variable:
        target = w.declare(_of_any_turn(known), "carried")
        w.nest("assign", {"X": value}, {"Out": target})
        return target

    def continues(at: Variable, end: Variable | None, truth: Variable | None) -> Variable:
        runs = at.w.constant(np.ones(1, bool)) if end is None else at.binary("less_than", end)
        return runs if truth is None else runs.binary("logical_and", truth)

    states = [carry(*each) for each in zip(initial, types, strict=False)]
    turn = carry(w.number(0), w.number(0).type)
    again = carry(continues(turn, limit, going), Type("bool", turn.type.shape, ()))
    arrays = [w.declare(Type(each.dtype), "array", ARRAY) for each in types[turns.states :]]

    block = w.block("body", captured)
    at, own = block.take(turn), [block.take(state) for state in states]
    if turns.front:
        own = [at.squeeze2(axes=[0]), block.constant(np.ones((), bool)), *own]
    place = {"StartsTensor": at.cast("int32"), "EndsTensor": (at + 1).cast("int32")}
    unknown = {"starts": [-1], "ends": [-1], "infer_flags": [-1]}
    for value, axis in zip(scanned, turns.input_axes, strict=True):
        axes = [axis % value.rank]
        own.append(block.take(value).slice(axes=axes, decrease_axis=axes, **place, **unknown))
    for taken, variable in zip(block.graph.inputs, own, strict=False):
        block.bind(taken.name, variable)
    outputs = _write_body(block)
    truth, outputs = (outputs[0].reshape(1), outputs[1:]) if turns.front else (None, outputs)
    for value, array in zip(outputs[turns.states :], arrays, strict=True):
        length = block.declare(Type("int64", turn.type.shape, ()), "lod_array_length.out")
        block.nest("lod_array_length", {"X": array}, {"Out": length})
        block.nest("write_to_array", {"X": value, "I": length}, {"Out": array})
        block.program.fetches.append(array.name)
    after = at + 1
    runs = continues(after, limit and block.take(limit), truth)
    _assign(block, [*outputs[: turns.states], after, runs], [*states, turn, again])
    changed = [*states, turn, again, *arrays]
    w.nest(
        "while",
        {"X": [*block.reads(), *changed], "Condition": again},
        {"Out": changed, "StepScopes": w.declare(UNKNOWN, "scopes", SCOPES)},
        sub_block=block.program.index,
        is_test=True,
    )
    results = [state.copy() for state in states]
    both = zip(turns.output_axes, turns.output_directions, strict=True)
    for array, known, (axis, turned) in zip(arrays, types[turns.states :], both, strict=True):
        out = w.declare(_of_any_turn(known), "tensor_array_to_tensor.out")
        places = w.declare(Type("int32", turn.type.shape, ()), "tensor_array_to_tensor.index")
        joined = {"Out": out, "OutIndex": places}
        along = axis % out.rank
        w.nest("tensor_array_to_tensor", {"X": array}, joined, axis=along, use_stack=True)
        results.append(out.flip(axis=[along]) if turned else out.copy())
    return tuple(results)
