"""What an adapter says of a known fault of its framework, and how the fault can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

from onernn.ir.graph import Graph, NativeOp
from onernn.ir.records import dataclass

Effect = Literal["wrong", "crashes", "refuses", "slower", "unmeasured"]
"""What becomes of a run: other numbers, a crash, an error, more time, or something not computed."""

Values = Mapping[str, Any]
"""Every value of a run, by its name in the graph."""

S = TypeVar("S")


def keep_unchanged(sound: Any) -> Any:
    """Returns what a fault makes of a thing where it changes no numbers."""
    return sound


@dataclass(frozen=True, eq=False)
class Fault(Generic[S]):
    """A known fault: its id, what to say of it, and what it makes of a thing without it.

    ``apply`` gives None where the thing cannot have the fault. `onernn audit` knows frameworks'
    faults of a native program, `onernn verify` those of a layer's numbers and of a graph.
    """

    id: str
    text: str
    apply: Callable[[S], Any]


@dataclass(frozen=True, eq=False)
class FrameworkFault(Fault[S]):
    """A fault that hits a model: where, on which of the framework's paths, and how.

    ``apply`` turns the native program into what the framework runs in its place. Where that depends
    on the batch, ``change_graph`` does it to the lowered graph, from the values of the right run.
    ``measure`` gives the cost of a batch where the effect is "slower"; ``occurs`` whether a batch
    brings the fault out, where that is more than other outputs.
    """

    effect: Effect
    paths: tuple[str, ...]
    at: NativeOp
    value: str
    change_graph: Callable[[Graph, Values], Graph] | None = None
    measure: Callable[[Values], str] | None = None
    occurs: Callable[[Values], bool] | None = None

    @property
    def repeats(self) -> bool:
        """Whether it can be computed what the framework gives."""
        return self.apply is not keep_unchanged or self.change_graph is not None


@dataclass(frozen=True, eq=False)
class FaultyModel(Generic[S]):
    """A native program and the faults that hit it. ``paths``: the framework's ways of running it.

    Faults on other paths than these (an exporter, training) are described, and hit no run.
    """

    framework: str
    program: S
    lower: Callable[[S], Graph]
    paths: Mapping[str, str]
    faults: tuple[FrameworkFault[S], ...] = ()

    @property
    def model(self) -> Graph:
        """The graph as the operators document it."""
        return self.lower(self.program)

    def with_faults(self, faults: Iterable[FrameworkFault[S]], values: Values) -> Graph:
        """Returns the graph of what the framework computes under some of the faults."""
        chosen, program = [*faults], self.program
        for fault in chosen:
            program = fault.apply(program)
        graph = self.lower(program)
        for fault in chosen:
            graph = fault.change_graph(graph, values) if fault.change_graph else graph
        return graph
