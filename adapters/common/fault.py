"""Describes a known fault of a framework, and how onernn reproduces it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

from onernn.ir.graph import Graph, NativeOp
from onernn.ir.records import dataclass

Effect = Literal["wrong", "crashes", "refuses", "slower", "unmeasured"]
"""The effect on a run: different values, a crash, an error, more time, or an effect that onernn
does not compute.
"""

Values = Mapping[str, Any]
"""Every value of a run, by its name in the graph."""

S = TypeVar("S")


def keep_unchanged(sound: Any) -> Any:
    """Returns its argument; this is the ``apply`` of a fault that changes no values."""
    return sound


@dataclass(frozen=True, eq=False)
class Fault(Generic[S]):
    """A known fault: its id, its description, and ``apply``, which adds the fault to a correct
    program or layer.

    ``apply`` returns None if the fault cannot occur in this program or layer. `onernn audit`
    reports framework faults of a native program; `onernn verify` finds faults in a layer's values
    and in a graph.
    """

    id: str
    text: str
    apply: Callable[[S], Any]


@dataclass(frozen=True, eq=False)
class FrameworkFault(Fault[S]):
    """A fault of a framework that affects a model.

    ``paths``: the framework's ways of running the model in which the fault occurs, see
    `FaultyModel`. ``at``, ``value``: the operator and the value that are affected.

    ``apply`` turns the native program into the program that the framework runs instead. If the
    faulty result depends on the batch, ``change_graph`` changes the lowered graph, using the values
    of the correct run. If the effect is "slower", ``measure`` returns a text about the cost for a
    batch. If a fault may occur without changing the outputs, ``occurs`` returns whether a batch
    triggers it. Both take the values of the correct run.
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
        """Whether onernn can compute the result that the framework returns because of the fault."""
        return self.apply is not keep_unchanged or self.change_graph is not None


@dataclass(frozen=True, eq=False)
class FaultyModel(Generic[S]):
    """A framework's program and the faults that affect it.

    ``paths``: the framework's ways of running the program, with descriptions.

    A fault that occurs only outside of these paths, such as in an exporter, affects no run.
    """

    framework: str
    program: S
    lower: Callable[[S], Graph]
    paths: Mapping[str, str]
    faults: tuple[FrameworkFault[S], ...] = ()

    @property
    def model(self) -> Graph:
        """The graph of the model, whose operators compute what is documented."""
        return self.lower(self.program)

    def with_faults(self, faults: Iterable[FrameworkFault[S]], values: Values) -> Graph:
        """Returns the graph that the framework computes if some of the faults occur."""
        chosen, program = [*faults], self.program
        for fault in chosen:
            program = fault.apply(program)
        graph = self.lower(program)
        for fault in chosen:
            graph = fault.change_graph(graph, values) if fault.change_graph else graph
        return graph
