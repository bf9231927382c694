"""Programs of Paddle 3 with our operator in them, each case in a process of its own.

There PIR is on, as Paddle 3 has it by default, and what crashes takes only its process along.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import paddle
import pytest

from onernn import LibraryError
from onernn.backend.compiled.library import load_kernels
from onernn.kernels import build

HERE = Path(__file__).parent
CASES = [
    (name, case)
    for name in ("paddle_pir_cases.py", "paddle_jit_cases.py")
    for case in re.findall(r"^def case_(\w+)", (HERE / name).read_text(), re.MULTILINE)
]


def _missing() -> str:
    try:
        load_kernels()
        build.compiler()
    except (LibraryError, build.BuildError) as error:
        return str(error)
    return "Paddle 2 has no PIR" if paddle.__version__ < "3" else ""


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


def run(cache: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "FLAGS_enable_pir_api"}
    environ |= {"XDG_CACHE_HOME": str(cache), **more}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("file, case", CASES, ids=[case for _, case in CASES])
def test_as_paddle_itself(file: str, case: str, cache: Path) -> None:
    if case == "mixed_precision" and "avx512" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("Paddle's own products in bf16 need AVX-512")
    for _ in range(4):
        done = run(cache, str(HERE / file), case)
        # Paddle's profiler dies now and then while it gathers its threads' events.
        if case != "single_steps" or done.returncode != -signal.SIGSEGV:
            break
    assert done.returncode == 0 and done.stdout.endswith("whole\n"), done.stderr[-3000:]


REGISTER = (
    "import onernn.adapters.paddle.custom_operators as p; p.register_operators(); print('whole')"
)


def test_the_operator_is_compiled_once_and_never_loaded_when_damaged(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", REGISTER).stdout == "whole\n"
    (kept,) = (tmp_path / "onernn").glob("paddle-*.so")
    content, made = kept.read_bytes(), kept.stat().st_mtime_ns
    assert run(tmp_path, "-c", REGISTER, CXX="/bin/false").stdout == "whole\n"
    assert kept.stat().st_mtime_ns == made
    for damaged in (content[:-1], content[:5000] + bytes(100) + content[5100:], b""):
        kept.write_bytes(damaged)
        assert run(tmp_path, "-c", REGISTER).stdout == "whole\n"
        assert len(kept.read_bytes()) == len(content)


def test_without_a_compiler_it_tells_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", REGISTER, CXX="/bin/false")
    assert done.returncode == 1 and "g++" in done.stderr.splitlines()[-1], done.stderr
