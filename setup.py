"""What pyproject.toml cannot say: the packages of two roots, and a wheel with compiled kernels."""

from __future__ import annotations

import gzip
import os
import platform
import runpy
import shutil
import sys
import tarfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.sdist import sdist

PACKAGES = ("adapters", "fuse_passes", "reorders")  # at the top; the other packages are in src
BUILD = Path(__file__).parent / "src" / "onernn" / "kernels" / "build.py"
kernels = SimpleNamespace(**runpy.run_path(str(BUILD)))
# Of a wheel for another architecture: Python's own variable, which names the wheel, too.
MACHINE = os.environ.get("_PYTHON_HOST_PLATFORM", "").rpartition("-")[2] or platform.machine()


@cache
def has_kernels() -> bool:
    """Whether there are kernels, or a compiler for them; else says why not."""
    try:
        return kernels.is_built(machine=MACHINE) or bool(kernels.compiler(MACHINE))
    except kernels.NoCompiler as error:
        print(f"onernn: a wheel without kernels: {error}", file=sys.stderr)
        return False


class BuildKernels(Command):
    """Compiles into the tree, where `build_py` finds them: once for all installations."""

    description = "compile the kernels (build.py says for which instruction sets)"
    user_options = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        if has_kernels():
            kernels.build(machine=MACHINE)
        else:  # what other sources gave must not get into the wheel
            shutil.rmtree(kernels.BUILT, ignore_errors=True)


class Build(build):
    sub_commands = [("build_kernels", None), *build.sub_commands]


class KernelsDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return has_kernels()  # files of one platform: nothing else is asked


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]  # no extension module: any Python 3


class SourceDistribution(sdist):
    """The same files give the same bytes, if SOURCE_DATE_EPOCH tells the time; wheels do that."""

    def make_archive(
        self, base_name: str, format: str, *places: str | None, **owners: str | None
    ) -> str:
        told = os.environ.get("SOURCE_DATE_EPOCH")
        if told is None or format != "gztar":
            return super().make_archive(base_name, format, *places, **owners)
        folder = Path(str(owners["base_dir"]))
        path, time = Path(f"{base_name}.tar.gz"), int(told)
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            open(path, "wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=time) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for file in sorted(each for each in folder.rglob("*") if each.is_file()):
                entry = tarfile.TarInfo(str(file))
                entry.size, entry.mtime = file.stat().st_size, time
                entry.mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
                with open(file, "rb") as content:
                    archive.addfile(entry, content)
        return str(path)


packages = find_packages("src")  # follows the links of these packages, which an archive may lack
packages += [f"onernn.{name}" for name in find_packages(include=[f"{each}*" for each in PACKAGES])]
setup(
    packages=sorted(set(packages)),
    distclass=KernelsDistribution,
    cmdclass={
        "build": Build,
        "build_kernels": BuildKernels,
        "bdist_wheel": Wheel,
        "sdist": SourceDistribution,
    },
)
