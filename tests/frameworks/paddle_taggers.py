"""Random GRU taggers as legacy static graphs of Paddle, and batches for them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tests.frameworks.paddle_graphs import OUTPUTS, Batch, PaddleGraph, Variable

from onernn import Ragged
from onernn.ir.arrays import Array
from onernn.ir.graph import Value

FUNCTIONS = ["sigmoid", "tanh", "relu", "identity"]
PAIRS = ["plain"] * 5 + [
    *("one projection", "one gru bias", "one gru weight", "one fc weight", "one fc bias"),
    *("other input", "wrong order", "other size", "other functions", "half a state"),
]


@dataclass
class Plan:
    """What a GRU is made of; ``shared`` holds variables that another one uses, too."""

    size: int
    reverse: bool
    functions: tuple[str, str]
    origin: bool
    state: bool
    shared: dict[str, Any] = field(default_factory=lambda: {"keep": ""})


@dataclass
class Half:
    """A GRU as a fuse pass may see it."""

    hidden: Variable
    source: Variable
    seen: tuple[Any, ...]  # what must be equal in both halves of a pair
    reverse: bool
    alone: bool  # nothing else looks into it, and it reads ``source`` itself once fused


class Tagger:
    """A random graph; ``fired``: how often each pass has to fire."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph, self.numbers = PaddleGraph(), itertools.count()
        self.fetches: list[Variable] = []
        self.states: dict[int, Variable] = {}
        self.fired: Counter[str] = Counter()
        self.levels = 2 if self.chance(0.2) else 1
        self.unbounded, self.has_fusion_gru = self.chance(0.3), False
        self.embedding, self.channels = self.chance(0.4), self.some_size()
        x = self.front()
        for _ in range(self.rng.choice([1, 1, 2])):
            x = self.layer(x)
        self.fetches += [x, *self.top(x)]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def some_size(self) -> int:
        return int(self.rng.choice([1, 2, 3, 5, 8, 17]))

    def array(self, *shape: int) -> Array:
        """Uniform, within 1 / sqrt(rows): contractive, also for functions without bounds."""
        bound = (0.1 if self.unbounded else 1) / np.sqrt(shape[0])
        return (self.rng.uniform(-1, 1, shape) * bound).astype(np.float32)

    def parameter(self, *shape: int) -> tuple[Variable, bool]:
        """Numbers of the model, now and then computed at run time; whether they are not."""
        made = self.graph.parameter(self.array(*shape))
        if self.chance(0.95):
            return made, True
        return self.graph.op("scale", {"X": made}, scale=0.5), False

    def front(self) -> Variable:
        if not self.embedding:
            return self.graph.feed("x", [-1, self.channels], lod_level=self.levels)
        old = self.chance(0.5)
        ids = self.graph.feed("x", [-1, 1] if old else [-1], "int64", self.levels)
        table = self.graph.parameter(self.array(11, self.channels))
        padding = int(self.rng.choice([-1, 0, 4]))
        operator = "lookup_table" if old else "lookup_table_v2"
        return self.graph.op(operator, {"Ids": ids, "W": table}, padding_idx=padding)

    def layer(self, x: Variable) -> Variable:
        first = self.plan()
        if self.chance(0.3):
            first.reverse = self.chance(0.5)
            self.channels, channels = first.size, self.channels
            return self.gru(x, channels, first).hidden
        kind = self.rng.choice(PAIRS)
        second = replace(first, reverse=True, origin=self.chance(0.5), shared=first.shared)
        source, channels = x, self.channels
        first.shared["keep"] = kind.removeprefix("one ") if kind.startswith("one") else ""
        if kind == "other input":
            source = self.graph.op("tanh", {"X": x})
        elif kind == "wrong order":
            first.reverse, second.reverse = True, False
        elif kind == "other size":
            second.size += 1
        elif kind == "other functions":
            second.functions = (first.functions[0], "relu")
        elif kind == "half a state":
            second.state = not first.state
        halves = [self.gru(x, channels, first), self.gru(source, channels, second)]
        a, b = halves
        if (a.reverse, b.reverse) == (False, True) and a.alone and b.alone:
            self.fired["bidirectional"] += a.seen == b.seen and a.source is b.source
        self.channels = first.size + second.size
        axis = int(self.rng.choice([1, -1]))
        return self.graph.op("concat", {"X": [half.hidden for half in halves]}, axis=axis)

    def plan(self) -> Plan:
        functions = ("sigmoid", "tanh")
        if self.unbounded:
            functions = tuple(map(str, self.rng.choice(FUNCTIONS, 2)))
        return Plan(self.some_size(), False, functions, self.chance(0.5), self.chance(0.4))

    def kept(self, plan: Plan, name: str, make: Callable[[], Any]) -> Any:
        """What the other half has made, where the plan shares it."""
        if plan.shared["keep"] != name:
            return make()
        if name not in plan.shared:
            plan.shared[name] = make()
        return plan.shared[name]

    def gru(self, x: Variable, channels: int, plan: Plan) -> Half:
        width, fused = 3 * plan.size, plan.shared["keep"] != "projection" and self.chance(0.2)
        weight = self.kept(
            plan, "gru weight", lambda: self.graph.parameter(self.array(plan.size, width))
        )
        inputs = {"WeightH" if fused else "Weight": weight}
        if self.chance(0.6) or plan.shared["keep"] == "gru bias":
            inputs["Bias"] = self.kept(
                plan, "gru bias", lambda: self.graph.parameter(self.array(1, width))
            )
        if plan.state:
            inputs["H0"] = self.state(plan.size)
        alone = True
        if fused:
            self.has_fusion_gru, plan.origin = True, False
            inputs |= {"X": x, "WeightX": self.graph.parameter(self.array(channels, width))}
        else:
            inputs["Input"], alone = self.kept(
                plan, "projection", lambda: self.projection(x, channels, width, plan)
            )
            alone = alone and plan.shared["keep"] != "projection"
            self.fired["linear_rnn"] += alone
        name = "fusion_gru" if fused else "gru"
        hidden = self.graph.op(
            name,
            inputs,
            OUTPUTS[name],
            is_reverse=plan.reverse,
            origin_mode=plan.origin,
            gate_activation=plan.functions[0],
            activation=plan.functions[1],
        )[0]
        if self.chance(0.1):
            self.fetches.append(hidden)
            alone = False
        keeps = plan.origin or plan.functions[0] == "sigmoid"
        seen = (plan.size, plan.functions, keeps, plan.state)
        return Half(hidden, x, seen, plan.reverse, alone)

    def projection(
        self, x: Variable, channels: int, width: int, plan: Plan
    ) -> tuple[Variable, bool]:
        """x times weight, and a bias where the dice say so; whether a pass may fold it."""
        op, kind, add = self.graph.op, self.rng.choice(["mul", "fc", "matmul_v2"]), self.chance(0.7)
        weight, foldable = self.kept(plan, "fc weight", lambda: self.parameter(channels, width))
        bias, constant = self.kept(plan, "fc bias", lambda: self.parameter(width))
        if kind == "fc":  # there a bias computed at run time is refused
            inputs = {"Input": x, "W": weight, **({"Bias": bias} if add and constant else {})}
            out = op("fc", inputs, in_num_col_dims=1)
        else:
            out = op(kind, {"X": x, "Y": weight})
            if add:
                out = op("elementwise_add", {"X": out, "Y": bias}, axis=1)
                foldable = foldable and constant
            if kind == "matmul_v2":
                out = op("lod_reset", {"X": out, "Y": x})
        if self.chance(0.1):
            self.fetches.append(out)
            foldable = False
        return out, foldable

    def state(self, size: int) -> Variable:
        """A new initial state, or one that another GRU starts from, too."""
        if size not in self.states or self.chance(0.5):
            self.states[size] = self.graph.feed(f"h{next(self.numbers)}", [-1, size])
        return self.states[size]

    def top(self, x: Variable) -> list[Variable]:
        kind = self.rng.choice(["none", "softmax", "crf", "tags"])
        if kind == "none":
            return []
        tags = self.some_size()
        inputs = {"X": x, "Y": self.graph.parameter(self.array(self.channels, tags))}
        emission = self.graph.op("mul", inputs)
        if kind == "softmax":
            return [self.graph.op("softmax", {"X": emission}, axis=-1)]
        if kind == "tags":
            return [emission, self.graph.op("arg_max", {"X": emission}, gives="int64", axis=-1)]
        inputs = {
            "Emission": emission,
            "Transition": self.graph.parameter(self.array(tags + 2, tags)),
        }
        return [emission, self.graph.op("crf_decoding", inputs, ("ViterbiPath",), gives="int64")]

    def batch(self, inputs: tuple[Value, ...], kind: str) -> dict[str, Batch]:
        sentences = 1 if kind == "one word" else int(self.rng.integers(1, 6))
        lengths = {
            "one word": [1],
            "equal": [self.rng.integers(1, 8)] * sentences,
            "any": [*self.rng.integers(0, 12, sentences - 1), self.rng.integers(1, 12)],
        }[kind]
        self.rng.shuffle(lengths)
        words = int(sum(lengths))
        data = self.rng.integers(0, 11, (words, 1)) if self.embedding else None
        feeds: dict[str, Batch] = {}
        for value in inputs:
            if not value.lod_depth:
                feeds[value.name] = self.rng.uniform(-1, 1, (sentences, value.shape[1])).astype(
                    np.float32
                )
                continue
            if data is None:
                data = self.rng.uniform(-1, 1, (words, value.shape[1])).astype(np.float32)
            ragged = Ragged.from_lengths(data.reshape(words, *value.shape[1:]), lengths)
            cut = int(self.rng.integers(0, sentences + 1))
            outer = [[0, cut, cut, sentences]] if self.levels == 2 else []
            feeds[value.name] = Ragged(ragged.data, ragged.offsets, tuple(outer))
        return feeds
