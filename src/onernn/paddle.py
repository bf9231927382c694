"""``python -m onernn.paddle script.py args``: runs a Paddle program without Paddle.

``-m package.module args`` runs a module. If the first argument is ``--replace``, onernn replaces an
installed Paddle.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from onernn.adapters.paddle.inference.served_modules import install
from onernn.ir.errors import OnernnError, UnsupportedError

USAGE = "[--replace] script.py args, or [--replace] -m module args"


def run_program(arguments: Sequence[str]) -> None:
    """Runs a Python program in which ``import paddle`` imports `onernn.adapters.paddle.inference`.

    Raises `UnsupportedError` if the program does not exist, or if Paddle is installed and
    ``--replace`` is missing. If the program itself raises an exception, the process ends with a
    traceback and exit code 1.
    """
    replace, rest = arguments[:1] == ["--replace"], list(arguments)
    rest = rest[1:] if replace else rest
    as_module = rest[:1] == ["-m"]
    rest = rest[1:] if as_module else rest
    if not rest or not (as_module or Path(rest[0]).exists()):
        wrong = f"no such file: {rest[0]}" if rest else "no program given"
        raise UnsupportedError(f"{wrong}; expected {USAGE}")
    install(replace=replace)
    sys.argv = rest
    sys.path.insert(0, "" if as_module else str(Path(rest[0]).resolve().parent))
    try:
        if as_module:
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(rest[0], run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())  # prints the traceback, as Python does
        sys.exit(1)


if __name__ == "__main__":
    try:
        run_program(sys.argv[1:])
    except OnernnError as error:
        print(f"onernn.paddle: {error}", file=sys.stderr)
        sys.exit(2)
