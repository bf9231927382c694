"""References for comparisons: recorded outputs, another model, or a framework's own run.

A framework runs in a process of its own, so that a crash there is a message: it reads in__ and
lod__ keys from one file and writes out__ and outlod__ keys, or what the framework said, to others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from onernn.adapters.common.files import reading
from onernn.adapters.loading import load
from onernn.adapters.registry import RUNTIMES
from onernn.engine.session import unsupported
from onernn.ir.errors import MissingDependencyError, OnernnError, UnsupportedError
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Batch
from onernn.ir.records import dataclass
from onernn.verification.recording import (
    read_arrays,
    read_given,
    read_outputs,
    write_inputs,
    write_outputs,
)
from onernn.verification.tracing import StepCounter, Traced, trace_layers


@dataclass(frozen=True, eq=False)
class Reference:
    """Outputs by name, what they came from, and the model behind them where there is one.

    ``session``: the one that ran it, if onernn did.
    """

    who: str
    outputs: Mapping[str, Batch]
    graph: Graph | None = None
    feed: Mapping[str, Batch] = field(default_factory=dict)
    session: StepCounter | None = None

    def trace_layers(self) -> Traced | None:
        """Returns all values of a run of the model behind it."""
        return None if self.graph is None else trace_layers(self.graph, self.feed)


@dataclass(frozen=True, eq=False)
class Against:
    """A model to run as the reference; by ``kind`` in that framework, by us where it is "".

    ``live``: the framework's own object, which then runs in this process; ``graph`` has the names.
    Ours runs on the NumPy reference: it shares no kernel with what is verified.
    """

    graph: Graph
    path: str = ""
    kind: str = ""
    params: str | None = None
    live: Any = None

    @property
    def is_read(self) -> bool:
        """Whether onernn could run it, too; of some files only inputs and outputs are known."""
        return not unsupported(self.graph)

    def run(
        self, feed: Mapping[str, Batch], progress: Callable[[str, int, int], None]
    ) -> Reference:
        """Returns the outputs. Raises `UnsupportedError` if it does not run."""
        progress("running the reference", 0, 1)
        if self.live is not None:
            return self._run_live(feed)
        if self.kind:
            names = [value.name for value in self.graph.outputs]
            outputs = run_framework(self.kind, self.path, self.params, feed, names)
            who = f"{self.kind} {RUNTIMES[self.kind].version} on {self.path}"
            return Reference(who, outputs, self.graph if self.is_read else None, feed)
        session = StepCounter(self.graph, backend="reference")
        outputs = session.run(feed)
        return Reference(self.path or self.graph.name, outputs, self.graph, feed, session)

    def _run_live(self, feed: Mapping[str, Batch]) -> Reference:
        run = RUNTIMES[self.kind].run_live
        assert run is not None  # `live_against` chose it
        names, outputs = [value.name for value in self.graph.outputs], run(self.live, feed)
        if len(names) != len(outputs):
            names = [str(index) for index in range(len(outputs))]
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


# --- models run by their own frameworks, each in a process of its own: a crash there is a message


_SECONDS = 600
_MISSING = 3  # the exit status where the framework is not installed


def run_framework(
    kind: str, path: str, params: str | None, feed: Mapping[str, Batch], names: list[str]
) -> dict[str, Batch]:
    """Returns the outputs of the model in paddle, mxnet or onnxruntime; ``names``: of them, in
    order.

    Raises `MissingDependencyError` if it is not installed, `UnsupportedError` with what it said
    where it does not run the model or crashes.
    """
    with tempfile.TemporaryDirectory() as folder:
        taken, results, said = (str(Path(folder, name)) for name in ("in.npz", "out.npz", "said"))
        write_inputs(taken, feed)
        call = f"import os, sys; from {__name__} import main; os._exit(main(*sys.argv[1:]))"
        # Frameworks crash when Python shuts down, too; by then all is written.
        # -P: a file in the working folder, which may be the model's, is no module.
        command = [sys.executable, "-P", "-c", call, kind, path, params or "", taken, results, said]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                command,
                env=environ,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"{kind}: {path} took longer than {_SECONDS} s") from error
        text = Path(said).read_text("utf-8") if os.path.exists(said) else ""
        if done.returncode == _MISSING:
            raise MissingDependencyError(text)
        if done.returncode:
            text = text or _crash(kind, done)
            raise UnsupportedError(f"{kind} does not run {path}: {text}")
        values = tuple(Value(name) for name in names)
        return read_outputs(read_arrays(results), values, f"{kind}'s outputs")


def _crash(kind: str, done: subprocess.CompletedProcess[str]) -> str:
    """The end of a process that left no message: its status and last line."""
    how = f"exit status {done.returncode}"
    if done.returncode < 0:
        how = f"signal {-done.returncode}, {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = f"; its last words: {lines[-1][-500:]}" if lines else ""
    version = " ".join(filter(None, (kind, RUNTIMES[kind].version)))
    return f"{version} crashed ({how}) in a process of its own{last}"


def main(kind: str, path: str, params: str, taken: str, written: str, said: str) -> int:
    """Writes what the framework gives, or says against it. 0: done, 3: it is not installed."""
    feed = read_given(read_arrays(taken))
    try:
        results = RUNTIMES[kind].run(path, params, feed)
    except Exception as error:  # whatever the framework raises is its answer
        text = str(error) if isinstance(error, OnernnError) else f"{type(error).__name__}: {error}"
        lines = [line for line in text.splitlines() if line.strip()]
        Path(said).write_text(" ".join(lines)[-2000:], "utf-8", "replace")
        return _MISSING if isinstance(error, MissingDependencyError) else 1
    write_outputs(written, {str(k): each for k, each in enumerate(results)})
    return 0
