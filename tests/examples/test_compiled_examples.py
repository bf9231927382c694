"""The programs in C, C++ and Node print ONNX Runtime's probabilities of silero-vad."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.compiling import compiler

from onernn.kernels import build

SILERO = (
    *("--state", "state=stateN", "--given", "sr=16000"),
    *("--input", "input=float32(1, 576)", "--input", "state=float32(2, 1, 128)"),
)
CONTEXT, STEP = 64, 512


@pytest.fixture(scope="module")
def folder(
    repo: Path, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[float]]:
    """The example beside a compiled model and samples, and ONNX Runtime's probabilities."""
    runtime = pytest.importorskip("onnxruntime")
    models = sorted((repo / "out" / "models").glob("silero-vad*/**/silero_vad.onnx"))
    if not models:
        pytest.skip("silero-vad is not in out/models: python -m benchmarks.model_files")
    folder = tmp_path_factory.mktemp("speech") / "compiled"
    shutil.copytree(repo / "examples" / "compiled", folder)
    command = [sys.executable, "-m", "onernn", "compile", str(models[0]), "-o", "silero.onernn"]
    subprocess.run([*command, *SILERO], cwd=folder, check=True)
    rng, time = np.random.default_rng(0), np.arange(60 * STEP)
    voiced = np.sin(0.05 * time + 3 * np.sin(0.002 * time)) * (time // 8000 % 2)
    samples = (0.4 * voiced + 0.01 * rng.normal(size=len(time))).astype(np.float32)
    samples.tofile(folder / "samples.f32")
    session = runtime.InferenceSession(str(models[0]))
    frame, state = np.zeros((1, CONTEXT + STEP), np.float32), np.zeros((2, 1, 128), np.float32)
    result = []
    for part in samples.reshape(-1, STEP):
        frame[0, CONTEXT:] = part
        feed = {"input": frame, "state": state, "sr": np.array(16000)}
        output, state = session.run(["output", "stateN"], feed)
        result.append(float(output[0, 0]))
        frame[0, :CONTEXT] = part[-CONTEXT:]
    return folder, result


def printed(folder: Path, *command: str) -> list[float]:
    environment = {**os.environ, "LIBONERNN": str(build.library_of(""))}
    done = subprocess.run(
        [*command, "silero.onernn", "samples.f32"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [*map(float, done.stdout.split())]


def assert_alike(got: list[float], want: list[float]) -> None:
    """Four places are printed; both runtimes round in float32."""
    assert len(got) == len(want) > 50 and max(want) - min(want) > 0.01
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= 0.51e-4 + 1e-5


@pytest.mark.parametrize("source", ["speech.c", "speech.cpp"])
def test_a_program_prints_the_probabilities_of_onnx_runtime(
    source: str, folder: tuple[Path, list[float]]
) -> None:
    place, want = folder
    command = ["gcc"] if source.endswith(".c") else [compiler(), "-std=c++17"]
    if shutil.which(command[0]) is None:
        pytest.skip("no gcc")
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{build.HEADERS[0].parent}", f"-L{build.BUILT}"]
    links = ["-lonernn", f"-Wl,-rpath,{build.BUILT}", "-o", f"{source}.out"]
    subprocess.run([*command, source, *flags, *links], cwd=place, check=True)
    assert_alike(printed(place, f"./{source}.out"), want)


def test_node_prints_the_probabilities_of_onnx_runtime(folder: tuple[Path, list[float]]) -> None:
    place, want = folder
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node")
    command = ["npm", "install", "--no-audit", "--no-fund"]
    if subprocess.run(command, cwd=place, capture_output=True, check=False).returncode:
        pytest.skip("npm cannot get koffi")
    assert_alike(printed(place, "node", "speech.js"), want)
