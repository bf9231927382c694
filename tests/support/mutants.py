"""Small faults put into a copy of the sources, and what becomes of the tests there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ALL = bool(os.environ.get("ONERNN_MUTANTS"))
"""Whether every fault is tried, and not just a few."""


class Mutant(NamedTuple):
    """A fault: in ``file``, ``old`` becomes ``new``; ``tests`` (file and -k) must fail."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, str]


# Fails at the first example, without looking for a smaller one.
QUICK = "settings.register_profile('here', **_UNTIMED, max_examples=60, phases=[Phase.generate])"


class Checkout:
    """A copy of the sources and tests, in which one fault stands at a time."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.folder = folder
        packages = [p.name for p in repo.iterdir() if (p / "__init__.py").is_file()]
        ignored = shutil.ignore_patterns("__pycache__", "data", "frameworks", "packaging")
        for name in [*packages, "src", "tests", "tools"]:
            shutil.copytree(repo / name, folder / name, symlinks=True, ignore=ignored)
        shutil.copy(repo / "pyproject.toml", folder)
        settings = folder / "tests" / "conftest.py"
        text = settings.read_text()
        quick = text.replace(
            "import HealthCheck, settings\n", "import HealthCheck, Phase, settings\n"
        ).replace("settings.load_profile(", f"{QUICK}\nsettings.load_profile('here') or (")
        assert quick.count("Phase") == 2
        settings.write_text(quick)

    def run(self, tests: tuple[str, str]) -> subprocess.CompletedProcess[str]:
        file, chosen = tests
        (found,) = (self.folder / "tests").rglob(f"test_{file}.py")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
        ]
        command += [str(found), *(["-k", chosen] if chosen else [])]
        # No compiled files: one of the same size and second as before would be taken for it.
        environment = {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=1800,  # of a busy machine
        )

    def assert_seen(self, mutant: Mutant) -> None:
        """Its tests fail while the fault stands, and not since none could be read."""
        file = self.folder / mutant.file
        sound = file.read_text()
        file.write_text(sound.replace(mutant.old, mutant.new))
        try:
            done = self.run(mutant.tests)
        finally:
            file.write_text(sound)
        # A test failed, or the process was killed: not that none was chosen, or none could be read.
        assert done.returncode == 1 or done.returncode < 0, done.stdout
        assert "error" not in done.stdout.rpartition("\n1 ")[2], done.stdout
