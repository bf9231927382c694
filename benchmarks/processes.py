"""Starts the processes of contenders, sends requests, and stops the processes between turns."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".venvs"


class Died(Exception):
    """An error if a process ended or did not answer in time. The message says which of both
    happened.
    """


def interpreter(name: str, packages: Iterable[str]) -> str | None:
    """Returns the path of a Python that has all of ``packages``, or None if there is none.

    This Python comes first, then environments in .venvs whose names begin with ``name``, such as
    .venvs/paddle-2.6.2, then all other environments.
    """
    if all(find_spec(package) for package in packages):
        return sys.executable
    folders = sorted(ENVIRONMENTS.glob("*"), key=lambda f: (not f.name.startswith(name), f.name))
    for folder in folders:
        if all(any(folder.glob(f"lib/python*/site-packages/{p}")) for p in packages):
            return str(folder / "bin" / "python")
    return None


class Worker:
    """The process of a contender in one mode with one number of threads."""

    def __init__(self, python: str, file: Path, mode: str, threads: int) -> None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        self._errors = tempfile.TemporaryFile()
        environ = os.environ | dict.fromkeys(names, str(threads))
        # pip compiles installed modules. The first process compiles the modules of a checkout.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", str(file), mode],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, patience: float, **request: Any) -> dict[str, Any]:
        """Sends a request and returns the answer.

        After the answer the process is stopped, so that its thread pools cannot spin. Raises `Died`
        if the process ends, or if there is no answer in ``patience`` seconds; then the process is
        killed.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        self._signal(signal.SIGCONT)
        line = ""
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=stdin, flush=True)
            if not select.select([stdout], [], [], patience)[0]:
                self.close()
                raise Died(f"no answer in {patience:g} seconds")
            line = stdout.readline()
        if not line:
            raise Died(self._ending())
        self._signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _ending(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        how = signal.Signals(-code).name if code < 0 else f"exit {code}"
        return f"process ended: {how}{', ' + said[-1] if said else ''}"
