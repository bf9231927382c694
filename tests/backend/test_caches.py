"""Damaged caches: what is loaded into a process is whole and ours, or made anew, or not loaded.

Each start is a process of its own, as a damaged library ends the one that loads it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

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
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


GOOD = ["3"]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with it."""
    cache = tmp_path_factory.mktemp("cache")
    assert start(cache) == GOOD
    return cache


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def lengthened(file: Path) -> None:
    os.truncate(file, file.stat().st_size + 1)


def tampered_with(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(20_000_000)
        stream.write(b"\xcc" * 16)
    os.utime(file, ns=(0, 0))


def with_a_zeroed_page(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(4096)
        stream.write(bytes(4096))


def with_another_header(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(32)
        stream.write(b"\xff" * 24)


def as_text(file: Path) -> None:
    file.write_text("not a library\n")


def as_another_library(file: Path) -> None:
    import _ctypes

    shutil.copyfile(_ctypes.__file__, file)


def as_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def as_a_broken_link(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.with_name("nowhere") / "at all")


HARMS = [
    *(
        truncated,
        lengthened,
        tampered_with,
        with_a_zeroed_page,
        with_another_header,
        as_text,
        as_another_library,
    ),
    *(as_a_folder, as_a_pipe, as_a_broken_link),
]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.long
def test_what_is_damaged_is_made_anew_or_left_alone(
    harm: Callable[[Path], None], full: Path, tmp_path: Path
) -> None:
    shutil.copytree(full, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "onernn"
    (file,) = folder.glob("libdnnP-*.so")
    good = file.read_bytes()
    harm(file)
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
