"""Models run by their own frameworks, each in a process of its own: a crash there is a message.

The process reads in__ and lod__ keys from one file and writes out__ and outlod__ keys, or what the
framework said, to others. What it runs stands in each adapter, see
`adapters.common.adapter.Runtime`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from onernn.adapters.registry import RUNTIMES
from onernn.ir.errors import MissingDependencyError, OnernnError, UnsupportedError
from onernn.ir.graph import Value
from onernn.ir.ragged import Batch
from onernn.verification.recording import (
    read_arrays,
    read_given,
    read_outputs,
    write_inputs,
    write_outputs,
)

_SECONDS = 600
_MISSING = 3  # the exit status where the framework is not installed


def run_framework(
    kind: str, path: str, params: str | None, feed: Mapping[str, Batch], names: list[str]
) -> dict[str, Batch]:
    """What paddle, mxnet or onnxruntime gives for the model, under these output names, in order.

    Raises `MissingDependencyError` where it is not installed, `UnsupportedError` with what it said
    where it does not run the model or crashes.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, made, said = (str(Path(folder, name)) for name in ("in.npz", "out.npz", "said"))
        write_inputs(given, feed)
        call = f"import os, sys; from {__name__} import main; os._exit(main(*sys.argv[1:]))"
        # Frameworks crash when Python shuts down, too; by then all is written.
        # -P: a file in the working folder, which may be the model's, is no module.
        command = [sys.executable, "-P", "-c", call, kind, path, params or "", given, made, said]
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
        return read_outputs(read_arrays(made), values, f"{kind}'s outputs")


def _crash(kind: str, done: subprocess.CompletedProcess[str]) -> str:
    """How a process ended that told nothing, and what it wrote last."""
    how = f"exit status {done.returncode}"
    if done.returncode < 0:
        how = f"signal {-done.returncode}, {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = f"; its last words: {lines[-1][-500:]}" if lines else ""
    version = " ".join(filter(None, (kind, RUNTIMES[kind].version)))
    return f"{version} crashed ({how}) in a process of its own{last}"


def main(kind: str, path: str, params: str, given: str, made: str, said: str) -> int:
    """Writes what the framework gives, or says against it. 0: done, 3: it is not installed."""
    feed = read_given(read_arrays(given))
    try:
        results = RUNTIMES[kind].run(path, params, feed)
    except Exception as error:  # whatever the framework raises is its answer
        text = str(error) if isinstance(error, OnernnError) else f"{type(error).__name__}: {error}"
        lines = [line for line in text.splitlines() if line.strip()]
        Path(said).write_text(" ".join(lines)[-2000:], "utf-8", "replace")
        return _MISSING if isinstance(error, MissingDependencyError) else 1
    write_outputs(made, {str(k): each for k, each in enumerate(results)})
    return 0
