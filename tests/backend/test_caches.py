"""Damaged caches: what is loaded into a process is whole and ours, or made anew, or not loaded.

Each start is a process of its own, as a damaged library ends the one that loads it.
"""

from __future__ import annotations

import _ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from support.interpreters import run_program

START = """
import resource
import onernn
from onernn.backend.onednn.library import load_library
"""


def start(cache: Path, code: str = "", wrapped: tuple[str, ...] = ()) -> list[str]:
    """What a new process gets from the library, or why it is refused."""
    told = """
    try: print(load_library().lib.dnnl_version().major)
    except onernn.LibraryError as error: print("refused:", *str(error).split())
    """
    command = [*wrapped, sys.executable, "-c", START + dedent(code) + dedent(told)]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    return run_program(*command, env=environment, timeout=600).stdout.splitlines()


GOOD = ["3"]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with it."""
    cache = tmp_path_factory.mktemp("cache")
    assert start(cache) == GOOD
    return cache


def overwrite(file: Path, place: int, content: bytes) -> None:
    with open(file, "r+b") as stream:
        stream.seek(place)
        stream.write(content)
    os.utime(file, ns=(0, 0))


def replace(file: Path, put: Callable[[Path], object]) -> None:
    file.unlink()
    put(file)


HARMS: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "lengthened": lambda file: os.truncate(file, file.stat().st_size + 1),
    "tampered with": lambda file: overwrite(file, 20_000_000, b"\xcc" * 16),
    "with a zeroed page": lambda file: overwrite(file, 4096, bytes(4096)),
    "with another header": lambda file: overwrite(file, 32, b"\xff" * 24),
    "as text": lambda file: file.write_text("not a library\n"),
    "as another library": lambda file: shutil.copyfile(_ctypes.__file__, file),
    "as a folder": lambda file: replace(file, Path.mkdir),
    "as a pipe": lambda file: replace(file, os.mkfifo),
    "as a broken link": lambda file: replace(file, lambda at: at.symlink_to("nowhere/at all")),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.long
def test_what_is_damaged_is_made_anew_or_left_alone(harm: str, full: Path, tmp_path: Path) -> None:
    shutil.copytree(full, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "onernn"
    (file,) = folder.glob("libdnnP-*.so")
    good = file.read_bytes()
    HARMS[harm](file)
    assert start(tmp_path) == GOOD
    assert not file.is_file() or file.read_bytes() == good
    shutil.rmtree(folder)  # 54 MB, which pytest would keep


@pytest.mark.parametrize("options", ["noexec", "size=4k", "ro"])
def test_a_cache_that_holds_nothing_or_runs_nothing_is_done_without(
    options: str, tmp_path: Path
) -> None:
    mount = f"mount -t tmpfs -o mode=700,{options} tmpfs {tmp_path} && exec "
    apart = ("unshare", "-Urm", "sh", "-c", mount + '"$@"', "sh")
    if (
        not shutil.which("unshare")
        or subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode
    ):
        pytest.skip("no mounts of one's own here")
    assert start(tmp_path, wrapped=apart) == GOOD


def test_where_nothing_can_be_written_at_all_errors_say_so(tmp_path: Path) -> None:
    """Not even in memory: that counts as a file, too."""
    told = start(tmp_path, "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))")
    assert len(told) == 1 and told[0].startswith("refused: ")
    assert list((tmp_path / "onernn").iterdir()) == []


def test_a_folder_whose_parents_others_may_rename_is_not_used(tmp_path: Path) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(0o777)
    (parent / "mine").mkdir(mode=0o700)
    temporary = f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}"
    assert start(parent / "mine", temporary) == GOOD
    assert list((parent / "mine" / "onernn").iterdir()) == []
    assert list(tmp_path.iterdir()) == [parent]  # nothing is left of the process
    parent.chmod(0o1777)  # as /tmp: everybody renames what is theirs
    assert start(parent / "mine") == GOOD
    assert list((parent / "mine" / "onernn").iterdir()) != []
    shutil.rmtree(parent)
