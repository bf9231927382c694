"""The command line in this process: starting one for each line takes a second."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from onernn.cli import main


def onernn(*words: object) -> CompletedProcess[str]:
    """What ``onernn WORDS`` ends with and prints."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    line = ["onernn", *map(str, words)]
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", line):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return CompletedProcess(line, code, out.getvalue(), err.getvalue())


def failed(run: CompletedProcess[str]) -> str:
    """The one message of a run that cannot be done."""
    assert run.returncode == 2 and "Traceback" not in run.stderr
    return run.stderr
