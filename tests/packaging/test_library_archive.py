"""The archive of libonernn, unpacked and linked with as its users do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.compiling import compiler

pytestmark = pytest.mark.long

PROGRAMS = {
    "program.c": """#include <onernn.h>
#include <stdio.h>
int main(void) {
  printf("%d %d", onernn_interface() == ONERNN_INTERFACE, onernn_open("nothing", 1, 0) != 0);
}
""",
    "program.cpp": """#include <onernn.hpp>
#include <cstdio>
int main() try {
  onernn::Model model("nothing");
} catch (const onernn::Error& error) {
  std::printf("%d %d", onernn_interface() == ONERNN_INTERFACE, error.status == ONERNN_NO_FILE);
}
""",
}
CMAKE = """cmake_minimum_required(VERSION 3.16)
project(program C CXX)
find_package(onernn REQUIRED)
add_executable(program SOURCE)
target_link_libraries(program onernn::onernn)
"""


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def folder(repo: Path, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive, beside it the programs."""
    folder = tmp_path_factory.mktemp("archive")
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    tool = repo / "tools" / "release" / "library.py"
    with tarfile.open(run(sys.executable, tool, folder)) as tar:
        tar.extractall(folder, filter="data")
    (unpacked,) = folder.glob("onernn-*/")
    return unpacked.rename(folder / "onernn")


def test_the_same_files_give_the_same_archive(repo: Path, folder: Path, tmp_path: Path) -> None:
    tool = repo / "tools" / "release" / "library.py"
    one, other = (run(sys.executable, tool, tmp_path / name) for name in "ab")
    assert Path(one).read_bytes() == Path(other).read_bytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_pkg_config_finds_it(name: str, folder: Path, tmp_path: Path) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config")
    found = run(
        "pkg-config", "--cflags", "--libs", "onernn", PKG_CONFIG_PATH=str(folder / "lib/pkgconfig")
    )
    program = tmp_path / "program"
    language = ("-x", "c") if name.endswith(".c") else ("-std=c++17",)
    run(compiler(), *language, folder.parent / name, *found.split(), "-o", program)
    assert run(program, LD_LIBRARY_PATH=str(folder / "lib")) == "1 1"


@pytest.mark.parametrize("name", PROGRAMS)
def test_cmake_finds_it(name: str, folder: Path, tmp_path: Path) -> None:
    if not shutil.which("cmake"):
        pytest.skip("no cmake")
    shutil.copy(folder.parent / name, tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.replace("SOURCE", name))
    run("cmake", "-S", tmp_path, "-B", tmp_path / "out", f"-DCMAKE_PREFIX_PATH={folder}")
    run("cmake", "--build", tmp_path / "out")
    assert run(tmp_path / "out" / "program") == "1 1"
