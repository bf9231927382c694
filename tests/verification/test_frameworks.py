"""Other runtimes run in processes of their own: crashes, messages and modules stay there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import planted
from support.planted import model, read, recording

import onernn
from onernn.ir.errors import UnsupportedError
from onernn.verification.references import Against
from onernn.verification.verifying import verify


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and a recording of it."""
    data = model("GRU", planted.weights("GRU"))
    (tmp_path / "m.onnx").write_bytes(data)
    np.savez(tmp_path / "io.npz", **recording(data))
    return tmp_path / "m.onnx", tmp_path / "io.npz"


def test_a_check_of_a_written_file_runs_onnx_runtime_elsewhere(files: tuple[Path, Path]) -> None:
    """A runtime that dies, as ONNX Runtime did for float16 models, must not take ours along."""
    lines = [
        "import sys, onernn",
        "model, recording = sys.argv[1:]",
        "assert onernn.convert(onernn.load(model), model + '.out.onnx', check=recording)",
        "assert 'onnxruntime' not in sys.modules",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines), *map(str, files)])
    assert done.returncode == 0


@pytest.mark.parametrize(
    "dies, told",
    [
        ("os.kill(os.getpid(), 11)", "signal 11, SIGSEGV"),
        ("os._exit(77)", "exit status 77"),
    ],
)
def test_a_crash_is_told_as_the_runtimes_own(
    files: tuple[Path, Path],
    dies: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying = f"import os\nprint('its last sigh', file=__import__('sys').stderr, flush=True)\n{dies}"
    (tmp_path / "onnxruntime.py").write_text(dying)
    monkeypatch.syspath_prepend(tmp_path)
    graph = onernn.load(files[0])
    with pytest.raises(UnsupportedError) as caught:
        verify(graph, against=Against(graph, str(files[0]), "onnxruntime"))
    with pytest.raises(UnsupportedError) as checked:
        onernn.convert(graph, tmp_path / "out.onnx", check=files[1])
    for text in (str(caught.value), str(checked.value)):
        assert text.startswith("onnxruntime does not run ") and "\n" not in text
        assert told in text and "in a process of its own" in text
        assert text.endswith("its last words: its last sigh") and "runpy" not in text


def test_a_crash_after_the_last_output_is_none(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large frameworks fall over their own threads and destructors when Python ends."""
    lines = [
        "import atexit, os, sys",
        "atexit.register(os.kill, os.getpid(), 11)",
        "sys.path.remove(os.path.dirname(__file__))",
        "del sys.modules[__name__]",
        "import onnxruntime",
    ]
    (tmp_path / "onnxruntime.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    graph = read(files[0].read_bytes())
    assert verify(graph, against=Against(graph, str(files[0]), "onnxruntime"))


def test_python_files_in_the_working_folder_are_not_run(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stands in the folder of a model from elsewhere runs nothing that lies there."""
    for name in ("numpy", "onnxruntime", "onernn", "zlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run from the working folder')")
    monkeypatch.chdir(tmp_path)
    graph = read(files[0].read_bytes())
    assert verify(graph, against=Against(graph, str(files[0]), "onnxruntime"))
