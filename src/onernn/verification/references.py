"""References for comparisons: recorded outputs, another model, or a framework's own run.

A framework runs in a process of its own, so that its crash becomes an error message. The process
reads inputs (keys in__ and lod__) from one file. It writes outputs (keys out__ and outlod__) or an
error message to other files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from glob import escape
from pathlib import Path
from typing import Any

from onernn.adapters.common.files import reading
from onernn.adapters.loading import load
from onernn.adapters.registry import RUNTIMES
from onernn.engine.session import find_unsupported
from onernn.ir.budget import time_limit
from onernn.ir.errors import (
    MissingDependencyError,
    ModelFormatError,
    OnernnError,
    UnsupportedError,
    did_you_mean,
)
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Batch
from onernn.ir.records import dataclass
from onernn.verification.comparing import MAP, Batches
from onernn.verification.recording import (
    check_names,
    read_arrays,
    read_given,
    read_outputs,
    write_inputs,
    write_outputs,
)
from onernn.verification.tracing import StepCounter, rename_values


@dataclass(frozen=True, eq=False)
class Reference:
    """The outputs of a reference by name.

    ``who``: the reference's name in messages. ``graph``: the model that made the outputs, if onernn
    can read it. ``session``: the session that ran the model, if onernn did. ``complete``: whether
    all outputs are present; a recording may omit some. ``against``: the model, which can run again;
    None for a recording.
    """

    who: str
    outputs: Batches
    graph: Graph | None = None
    feed: Batches = field(default_factory=dict)
    session: StepCounter | None = None
    complete: bool = True
    against: Against | None = None


@dataclass(frozen=True, eq=False)
class Against:
    """A model to run as the reference, in the framework ``kind``, or in onernn if ``kind`` is "".

    ``live``: the framework's own object, which then runs in this process; ``graph`` has the names
    of inputs and outputs. ``own``: the framework's name of each input that is renamed in ``graph``.
    onernn runs the model on the NumPy reference, which shares no kernel with the verified model.
    """

    graph: Graph
    path: str = ""
    kind: str = ""
    params: str | None = None
    live: Any = None
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_read(self) -> bool:
        """Whether onernn can run the model's graph; of some files it reads only inputs and
        outputs.
        """
        return not find_unsupported(self.graph)

    def run(self, feed: Batches, progress: Callable[[str, int, int], None]) -> Reference:
        """Returns the outputs of the model. Raises `UnsupportedError` if the model does not run."""
        progress("running the reference", 0, 1)
        return replace(self._run(feed), against=self)

    def _run(self, feed: Batches) -> Reference:
        fed = {self.own.get(name, name): value for name, value in feed.items()}
        if self.live is not None:
            return self._run_live(fed)
        if self.kind:
            names = [value.name for value in self.graph.outputs]
            outputs = run_framework(self.kind, self.path, self.params, fed, names)
            who = f"{self.kind} {RUNTIMES[self.kind].version} on {self.path}"
            return Reference(who, outputs, self.graph if self.is_read else None, feed)
        session = StepCounter(self.graph, backend="reference")
        outputs = session.run(feed)
        return Reference(self.path or self.graph.name, outputs, self.graph, feed, session)

    def rename(self, names: Mapping[str, str], model: Graph) -> Against:
        """Returns the reference with a model's names of inputs and outputs. ``names``: the
        reference's names by the model's names.

        Raises `UnsupportedError` for a name that the model or the reference lacks, or if two inputs
        or outputs would have one name.
        """
        mine, theirs = (
            {value.name for value in (*each.inputs, *each.outputs)} for each in (model, self.graph)
        )
        check_names(names, mine, theirs)
        to = {other: name for name, other in names.items()}
        if twice := [name for name in names if name in theirs and name not in to]:
            raise UnsupportedError(
                f"{MAP}: the reference also has {twice[0]!r}; pass its name in the model"
            )
        return replace(self, graph=rename_values(self.graph, to), own={**names})

    def _run_live(self, feed: Batches) -> Reference:
        run = RUNTIMES[self.kind].run_live
        assert run is not None  # `live_against` accepts only frameworks with this function
        names, outputs = [value.name for value in self.graph.outputs], run(self.live, feed)
        if len(names) != len(outputs):
            names = [str(index) for index in range(len(outputs))]
        who = f"{self.kind} {RUNTIMES[self.kind].version}, {type(self.live).__qualname__}"
        return Reference(who, dict(zip(names, outputs, strict=True)))


def live_against(model: object, graph: Graph) -> Against:
    """Returns a reference that runs a live model, such as a torch.nn.Module; its outputs are named
    by ``graph``, in order.

    Raises `UnsupportedError` for an object of an unknown framework.
    """
    homes = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    kind = next((name for name in RUNTIMES if RUNTIMES[name].run_live and name in homes), "")
    if not kind:
        raise UnsupportedError(
            "against: expected the result of onernn.load, a path, FRAMEWORK:PATH or a live module,"
            f" got {type(model).__module__}.{type(model).__qualname__}"
        )
    return Against(graph, kind=kind, live=model)


def open_against(
    text: str,
    params: str | Path | None = None,
    semantics: str = "documented",
    rules: Mapping[str, Any] | None = None,
) -> Against:
    """Returns a reference that runs ``PATH`` in onernn, or ``NAME:PATH`` in a framework of
    `RUNTIMES`, such as ``paddle:PATH``.

    `load` describes the other arguments. Raises the errors of `load`, which reads the names of
    inputs and outputs from the model's files.
    """
    kind, colon, path = text.partition(":")
    if not colon or kind not in RUNTIMES:
        if colon:
            _check_prefix(kind, Path(text))
        kind, path = "", text
    read = RUNTIMES[kind].load if kind else None
    if read is None:
        graph = load(path, params, semantics, rules=rules)
    else:
        with reading(path):
            graph = read(path, rules=rules)
    return Against(graph, path, kind, None if params is None else str(params))


def _check_prefix(kind: str, path: Path) -> None:
    """Raises `ModelFormatError` if the text before a colon is not a framework's name and no file
    has this path.
    """
    if kind.isidentifier() and not any(path.parent.glob(f"{escape(path.name)}*")):
        known = ", ".join(f"{name}:" for name in RUNTIMES)
        hint = did_you_mean(kind, RUNTIMES)
        raise ModelFormatError(f"no such file or folder; known prefixes are {known}{hint}", path)


# --- runs of models in their own frameworks, each in a process of its own


_SECONDS = 600
_MISSING = 3  # the exit status if the framework is not installed


def run_framework(
    kind: str, path: str, params: str | None, feed: Batches, names: list[str]
) -> dict[str, Batch]:
    """Returns the outputs of a model, run by a framework in a process of its own. ``names``: the
    outputs' names.

    Raises `MissingDependencyError` if the framework is not installed, `UnsupportedError` with its
    message if it does not run the model or crashes.
    """
    with tempfile.TemporaryDirectory() as folder:
        taken, results, said = (str(Path(folder, name)) for name in ("in.npz", "out.npz", "said"))
        write_inputs(taken, feed)
        call = f"import os, sys; from {__name__} import main; os._exit(main(*sys.argv[1:]))"
        # os._exit: some frameworks crash when Python shuts down. -P: Python does not import modules
        # from the working folder, which may be the model's folder.
        command = [sys.executable, "-P", "-c", call, kind, path, params or "", taken, results, said]
        limit = time_limit()
        seconds = _SECONDS if limit is None else max(0.0, min(_SECONDS, limit.left))
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                command,
                env=environ,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            if limit:
                limit.check()
            raise UnsupportedError(f"{kind}: {path} took longer than {seconds:g} s") from error
        text = Path(said).read_text("utf-8") if os.path.exists(said) else ""
        if done.returncode == _MISSING:
            raise MissingDependencyError(text)
        if done.returncode:
            text = text or _crash(kind, done)
            raise UnsupportedError(f"{kind} does not run {path}: {text}")
        values = tuple(Value(name) for name in names)
        return read_outputs(read_arrays(results), values, f"{kind}'s outputs")


def _crash(kind: str, done: subprocess.CompletedProcess[str]) -> str:
    """Describes a crash of a process: its exit status and its last line of output."""
    how = f"exit status {done.returncode}"
    if done.returncode < 0:
        how = f"signal {-done.returncode}, {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = f"; its last words: {lines[-1][-500:]}" if lines else ""
    version = " ".join(filter(None, (kind, RUNTIMES[kind].version)))
    return f"{version} crashed ({how}) in a process of its own{last}"


def main(kind: str, path: str, params: str, taken: str, written: str, said: str) -> int:
    """Writes the framework's outputs to ``written``, or its error to ``said``; returns an exit
    status.

    0: done, `_MISSING`: the framework is not installed, 1: another error.
    """
    feed = read_given(read_arrays(taken))
    try:
        results = RUNTIMES[kind].run(path, params, feed)
    except Exception as error:  # the framework may raise any exception
        text = str(error) if isinstance(error, OnernnError) else f"{type(error).__name__}: {error}"
        lines = [line for line in text.splitlines() if line.strip()]
        Path(said).write_text(" ".join(lines)[-2000:], "utf-8", "replace")
        return _MISSING if isinstance(error, MissingDependencyError) else 1
    write_outputs(written, {str(k): each for k, each in enumerate(results)})
    return 0
