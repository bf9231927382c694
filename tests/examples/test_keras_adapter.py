"""examples/keras_adapter: an adapter of somebody else's under the kit, as its author runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "keras_adapter"


def example(folder: Path, cwd: Path, chosen: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen]
    return subprocess.run([*command, str(folder)], cwd=cwd, capture_output=True, text=True)


@pytest.mark.long
def test_the_example_passes_but_for_its_known_failures(tmp_path: Path) -> None:
    done = example(FOLDER, tmp_path, "Formulas or refused")
    assert done.returncode == 0, done.stdout
    assert "181 passed" in done.stdout and "60 xfailed" in done.stdout


def test_a_gate_that_the_example_reads_wrongly_is_found(tmp_path: Path) -> None:
    """The README's promise: swap two gates, and the kit says so."""
    for name in ("adapter.py", "layers.py", "test_adapter.py", "known_failures.toml"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        if name == "adapter.py":
            right = "kernel.reshape(-1, gates, units),"
            assert right in text
            text = text.replace(right, "kernel.reshape(-1, gates, units)[:, ::-1],")
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = example(tmp_path, tmp_path, "Formulas and left2right and odd")
    assert done.returncode == 1
    for cell in ("lstm", "gru", "lbr_gru"):
        assert f"{cell}-left2right-1layer-ragged-given-f32-odd" in done.stdout
    assert "FAILED test_adapter.py::TestAgainstFormulas::test_conforms[rnn_" not in done.stdout
