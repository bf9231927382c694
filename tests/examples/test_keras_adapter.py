"""examples/keras_adapter: an adapter of somebody else's under the kit, as its author runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.interpreters import run_python

FOLDER = Path(__file__).parents[2] / "examples" / "keras_adapter"


def example(folder: Path, cwd: Path, chosen: str, status: int) -> str:
    """What the kit prints."""
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, folder)
    return run_python(*command, cwd=cwd, status=status).stdout


@pytest.mark.long
def test_the_example_passes_but_for_its_known_failures(tmp_path: Path) -> None:
    told = example(FOLDER, tmp_path, "Formulas or refused", 0)
    assert "181 passed" in told and "60 xfailed" in told


def test_a_gate_that_the_example_reads_wrongly_is_found(tmp_path: Path) -> None:
    """The README's promise: swap two gates, and the kit says so."""
    for name in ("adapter.py", "layers.py", "test_adapter.py", "known_failures.toml"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        if name == "adapter.py":
            right = "kernel.reshape(-1, gates, units),"
            assert right in text
            text = text.replace(right, "kernel.reshape(-1, gates, units)[:, ::-1],")
        (tmp_path / name).write_text(text, encoding="utf-8")
    told = example(tmp_path, tmp_path, "Formulas and left2right and odd", 1)
    for cell in ("lstm", "gru", "lbr_gru"):
        assert f"{cell}-left2right-1layer-ragged-given-f32-odd" in told
    assert "FAILED test_adapter.py::TestAgainstFormulas::test_conforms[rnn_" not in told
