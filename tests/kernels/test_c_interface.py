"""Programs in C run compiled models: the bits of a session, from many threads, without Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compiled_models import models

from onernn import Ragged, Session
from onernn.engine.compiling import compile_model
from onernn.kernels import build

pytestmark = pytest.mark.usefixtures("built")
HEADERS = build.HEADERS[0].parent


def linked(source: Path, program: Path, *flags: str) -> None:
    """Compiles a program of C as strictly as compilers do, and links it with libonernn."""
    if shutil.which("gcc") is None or not build.library_of("").exists():
        pytest.skip("no gcc, or no kernels")
    strict = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread")
    folder = build.BUILT
    library = (f"-L{folder}", "-lonernn", f"-Wl,-rpath,{folder}")
    command = ["gcc", *strict, *flags, f"-I{HEADERS}", str(source), "-o", str(program), *library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def bytes_of(feed: dict[str, Any], names: list[str]) -> bytes:
    """Inputs as the program reads them."""
    parts = []
    for name in names:
        value = feed[name]
        levels = (*value.outer, value.offsets) if isinstance(value, Ragged) else ()
        array = value.data if isinstance(value, Ragged) else np.asarray(value)
        parts.append(np.array(array.shape, np.int64).tobytes())
        parts += [np.array([len(o) - 1, *o], np.int64).tobytes() for o in levels]
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


def written(outputs: dict[str, Any]) -> bytes:
    """Outputs as the program writes them."""
    parts = []
    for name, value in outputs.items():
        levels = (*value.outer, value.offsets) if isinstance(value, Ragged) else ()
        array = value.data if isinstance(value, Ragged) else np.asarray(value)
        parts.append(" ".join([name, *map(str, array.shape)]).encode() + b"\n")
        parts += [each.astype(np.int64).tobytes() for each in levels]
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


@pytest.fixture(scope="module")
def program(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("c") / "program"
    linked(repo / "tests" / "kernels" / "c_interface_test.c", made)
    return made


@pytest.mark.parametrize(
    "name", ["tagger", "documents", "convolution", "bytes", "loops: early end"]
)
def test_a_program_in_c_has_the_bits_of_a_session_in_eight_threads(
    name: str, program: Path, tmp_path: Path
) -> None:
    """Dense and ragged inputs, and outputs whose sizes only a run finds."""
    graph, feeds = models()[name]
    compile_model(graph, tmp_path / "m.onernn")
    feed: Any = feeds[0]
    (tmp_path / "in").write_bytes(bytes_of(feed, [value.name for value in graph.inputs]))
    command = [str(program), "m.onernn", "in", "out", "8", "20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    want = written(Session(graph, backend="kernels").run(feed))
    assert (tmp_path / "out").read_bytes() == want


def test_the_header_is_one_of_c_and_libonernn_has_its_functions_alone() -> None:
    declared = set(re.findall(r"\b(onernn_\w+|RegisterCustomOps)\(", build.HEADERS[0].read_text()))
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(build.library_of(""))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[-1] for line in done.stdout.splitlines()} == declared
