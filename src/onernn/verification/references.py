"""What a model is compared with: recorded outputs, another model, or a framework's own run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from onernn.adapters.common.files import reading
from onernn.adapters.loading import load
from onernn.adapters.registry import RUNTIMES
from onernn.engine.session import Session, unsupported
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph
from onernn.ir.ragged import Batch
from onernn.ir.records import dataclass
from onernn.verification.frameworks import run_framework
from onernn.verification.layerwise import Traced, traced


@dataclass(frozen=True, eq=False)
class Reference:
    """Outputs by name, what they came from, and the model behind them where there is one."""

    who: str
    outputs: Mapping[str, Batch]
    graph: Graph | None = None
    feed: Mapping[str, Batch] = field(default_factory=dict)

    def traced(self) -> Traced | None:
        """All values of a run of the model behind it."""
        return None if self.graph is None else traced(self.graph, self.feed)


@dataclass(frozen=True, eq=False)
class Against:
    """A model to run as the reference; by ``kind`` in that framework, by us where it is "".

    ``live``: the framework's own object, which then runs in this process; ``graph`` tells names.
    Ours runs on the NumPy reference: it shares no kernel with what is verified.
    """

    graph: Graph
    path: str = ""
    kind: str = ""
    params: str | None = None
    live: Any = None

    @property
    def is_read(self) -> bool:
        """Whether ours could run it, too; of a framework's own file we may know the face alone."""
        return not unsupported(self.graph)

    def run(
        self, feed: Mapping[str, Batch], progress: Callable[[str, int, int], None]
    ) -> Reference:
        """The outputs. Raises `UnsupportedError` where it does not run."""
        progress("running the reference", 0, 1)
        if self.live is not None:
            return self._run_live(feed)
        if self.kind:
            names = [value.name for value in self.graph.outputs]
            outputs = run_framework(self.kind, self.path, self.params, feed, names)
            who = f"{self.kind} {RUNTIMES[self.kind].version} on {self.path}"
            return Reference(who, outputs, self.graph if self.is_read else None, feed)
        outputs = Session(self.graph, backend="reference").run(feed)
        return Reference(self.path or self.graph.name, outputs, self.graph, feed)

    def _run_live(self, feed: Mapping[str, Batch]) -> Reference:
        run = RUNTIMES[self.kind].run_live
        assert run is not None  # `live_against` chose it
        names, outputs = [value.name for value in self.graph.outputs], run(self.live, feed)
        if len(names) != len(outputs):
            names = [str(at) for at in range(len(outputs))]
        who = f"{self.kind} {RUNTIMES[self.kind].version}, {type(self.live).__qualname__}"
        return Reference(who, dict(zip(names, outputs, strict=True)))


def live_against(model: object, graph: Graph) -> Against:
    """From a live model, such as a torch.nn.Module, which gives what ``graph`` does in order.

    Raises `UnsupportedError` for an object of no framework that is known.
    """
    homes = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    kind = next((name for name in RUNTIMES if RUNTIMES[name].run_live and name in homes), "")
    if not kind:
        raise UnsupportedError(
            "against: expected a model as onernn.load gives it, a path, FRAMEWORK:PATH or a live"
            f" module, got {type(model).__module__}.{type(model).__qualname__}"
        )
    return Against(graph, kind=kind, live=model)


def open_against(
    text: str, params: str | Path | None = None, semantics: str = "documented"
) -> Against:
    """From ``PATH``, or ``paddle:PATH``, ``mxnet:PATH``, ``torch:PATH``, any of `RUNTIMES`.

    Raises what `load` does: names of inputs and outputs are read from the model's files.
    """
    kind, colon, path = text.partition(":")
    if not colon or kind not in RUNTIMES:
        kind, path = "", text
    known = str(params) if params is not None else None
    fixed = RUNTIMES[kind].load if kind else None
    if fixed is None:
        graph = load(path, params, semantics)
    else:
        with reading(path):
            graph = fixed(path)
    return Against(graph, path, kind, known)
