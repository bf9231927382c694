"""Programs of Paddle 1.x with DynamicRNN and StaticRNN, built operator by operator.

    python -m tests.frameworks.record_paddle_dynamic_rnn tests/data/paddle

Paddle 2.6.2 has the operators but neither class in Python: this is what these appended.
"""

from __future__ import annotations

import sys

# Paddle brings its own zlib; whoever loads Python's after it crashes.
import zlib  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
from paddle.static.nn.control_flow import While
from tests.frameworks.paddle_graphs import Batch, PaddleGraph, core, numbers, ragged
from tests.frameworks.record_paddle import record_runs
from tests.frameworks.recording import strip_call_stacks

KINDS = core.VarDesc.VarType
O = 3  # noqa: E741
FIRST = {"shape": [1], "dtype": 3, "value": 0.0}
"""Of a constant that is the index of the first step."""
LODS: dict[str, list[list[int]]] = {
    "falling": [[0, 4, 7, 8]],
    "any": [[0, 2, 6, 7, 9]],
    "empty": [[0, 2, 2, 6, 6]],
}


class Program(PaddleGraph):
    """A graph whose operators also go into inner blocks."""

    def variable(self, kind: Any = KINDS.LOD_TENSOR, dtype: str = "float32", name: str = "") -> Any:
        block = self._main.current_block()
        typed = {} if kind in (KINDS.LOD_RANK_TABLE, KINDS.STEP_SCOPES) else {"dtype": dtype}
        return block.create_var(name=name or self._name("v"), type=kind, **typed)

    def add_row(self, operator: str, inputs: Any, outputs: Any, **attributes: Any) -> None:
        with paddle.static.program_guard(self._main, self._startup):
            self._main.current_block().append_op(
                type=operator, inputs=inputs, outputs=outputs, attrs=attributes
            )

    def row(self, operator: str, gives: str = "float32", /, **rest: Any) -> Any:
        """The output of an operator; names in capitals are slots."""
        made = self.variable(dtype=gives)
        slots = {name: value for name, value in rest.items() if name[0].isupper()}
        attributes = {name: value for name, value in rest.items() if name not in slots}
        self.add_row(operator, slots, {"Out": made}, **attributes)
        return made

    def weights(self) -> list[Any]:
        return [self.parameter(numbers(4, O)), self.parameter(numbers(O, O, seed=3))]

    def tanh(self, x: Any, h: Any, weights: Any = ()) -> Any:
        weights = weights or self.weights()
        products = [self.row("mul", X=a, Y=w) for a, w in zip((x, h), weights, strict=True)]
        return self.row("tanh", X=self.row("elementwise_add", X=products[0], Y=products[1]))

    def block(self, condition: Any) -> Any:
        with paddle.static.program_guard(self._main, self._startup):
            return While(condition).block()

    def steps_of(self, x: Any) -> Any:
        """The steps of sequences as an array."""
        table, steps = self.variable(KINDS.LOD_RANK_TABLE), self.variable(KINDS.LOD_TENSOR_ARRAY)
        self.add_row("lod_rank_table", {"X": x}, {"Out": table}, level=0)
        self.add_row("lod_tensor_to_array", {"X": x, "RankTable": table}, {"Out": steps})
        return steps

    def rolled(self, build: Callable[[Any], Any]) -> Any:
        """A block that `build` fills."""
        block = self._main._create_block()
        build(block)
        self._main._rollback()
        return block


Step = Callable[[Program, Any, Any, Any], Any]


def dynamic(
    graph: Program, x: Any, step: Step, first: Any = None, static: Any = None, ranked: bool = True
) -> Any:
    """What DynamicRNN appends: ``step`` returns the next state from a step, a state, ``static``."""
    table, steps = graph.variable(KINDS.LOD_RANK_TABLE), graph.variable(KINDS.LOD_TENSOR_ARRAY)
    graph.add_row("lod_rank_table", {"X": x}, {"Out": table}, level=0)
    longest = graph.row("max_sequence_len", "int64", RankTable=table)
    i = graph.row("fill_constant", "int64", **FIRST)
    going = graph.row("less_than", "bool", X=i, Y=longest)
    graph.add_row("lod_tensor_to_array", {"X": x, "RankTable": table}, {"Out": steps})

    def order(value: Any) -> Any:
        if not ranked:
            return value
        return graph.row("reorder_lod_tensor_by_rank", X=value, RankTable=table)

    if first is None:
        like = graph.row("read_from_array", X=steps, I=i)
        filled = {"shape": [-1, O], "value": 0.5, "dtype": 5}
        begin = graph.row("fill_constant_batch_size_like", Input=like, **filled)
    else:
        begin = order(first)
    kept = None if static is None else order(static)
    states, outputs = (graph.variable(KINDS.LOD_TENSOR_ARRAY) for _ in range(2))
    graph.add_row("write_to_array", {"X": begin, "I": i}, {"Out": states})
    with paddle.static.program_guard(graph._main, graph._startup), graph.block(going):

        def shrink(value: Any) -> Any:
            return graph.row("shrink_rnn_memory", X=value, I=i, RankTable=table)

        now = graph.row("read_from_array", X=steps, I=i)
        state = shrink(graph.row("read_from_array", X=states, I=i))
        after = step(graph, now, state, None if kept is None else shrink(kept))
        graph.add_row("write_to_array", {"X": after, "I": i}, {"Out": outputs})
        graph.add_row("increment", {"X": i}, {"Out": i}, step=1.0)
        graph.add_row("write_to_array", {"X": after, "I": i}, {"Out": states})
        graph.add_row("less_than", {"X": i, "Y": longest}, {"Out": going})
    return graph.row("array_to_lod_tensor", X=outputs, RankTable=table)


def plain(graph: Program, x: Any, h: Any, _: Any) -> Any:
    return graph.tanh(x, h)


def with_static(graph: Program, x: Any, h: Any, static: Any) -> Any:
    return graph.row("elementwise_add", X=graph.tanh(x, h), Y=static)


def of_words(graph: Program, x: Any, h: Any, _: Any) -> Any:
    table = graph.parameter(numbers(6, 4, seed=5))
    return graph.tanh(graph.row("lookup_table", Ids=x, W=table, padding_idx=-1), h)


def mixed(graph: Program, x: Any, h: Any, _: Any) -> Any:
    """A step that combines the sequences of a batch."""
    made = graph.tanh(x, h)
    mean = graph.row("reduce_mean", X=made, dim=[0], keep_dim=True)
    return graph.row("elementwise_add", X=made, Y=mean)


def saved(folder: Path, feeds: dict[str, Batch], build: Callable[..., Any]) -> Any:
    graph = Program()
    made = build(graph, **{name: graph.feed_like(name, value) for name, value in feeds.items()})
    return graph.save(folder, [made])


def static(graph: Program, x: Any, h: Any, reverse: bool = False) -> Any:
    """What StaticRNN appends: inputs and outputs are called the same inside and outside."""
    out, scopes = graph.variable(name="out"), graph.variable(KINDS.STEP_SCOPES)
    weights, after = graph.weights(), list[str]()

    def step(block: Any) -> None:
        now = block.create_var(name=x.name, dtype="float32", shape=[-1, 4])
        before = block.create_var(name="before", dtype="float32", shape=[-1, O])
        made = graph.tanh(now, before, weights)
        after.append(graph.row("assign", X=made).name)
        doubled = block.create_var(name="out", dtype="float32")
        graph.add_row("scale", {"X": made}, {"Out": doubled}, scale=2.0)

    block = graph.rolled(step)
    slots = {"inputs": [x], "initial_states": [h], "parameters": weights}
    graph.add_row(
        "recurrent", slots, {"outputs": [out], "step_scopes": [scopes]}, ex_states=["before"],
        states=after, sub_block=block, reverse=reverse, has_states=True, is_train=False,
    )  # fmt: skip
    return out


MODELS: dict[str, tuple[Callable[..., Any], dict[str, Batch]]] = {
    "loop_dynamic_2": (
        lambda g, x, h: dynamic(g, x, with_static, h, h),
        {"x": ragged(LODS["any"], 4), "h": numbers(4, O)},
    ),
    "loop_static_2": (static, {"x": numbers(5, 2, 4), "h": numbers(2, O)}),
}

if __name__ == "__main__":
    for name, (build, feeds) in MODELS.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        program = saved(folder, feeds, build)
        strip_call_stacks(folder / "model.pdmodel")
        record_runs(program, feeds)
