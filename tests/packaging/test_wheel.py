"""The wheel as a user has it: built, installed away from the checkout, run there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from onernn.kernels import build

pytestmark = pytest.mark.long

RECORDING = "fc_gru_h0_rev0"
# What would let the checkout or another environment shine through.
LEAKS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
ENVIRON = {name: value for name, value in os.environ.items() if name not in LEAKS}

UNTRACKED = (".*", "__pycache__", "*.egg-info", "build", "dist", "out", "built")

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""

TORCH = "onernn.adapters.torch"
FRAMEWORK_CLASSES = (
    *(f"{TORCH}.{name}" for name in ("custom_operator", "live_layer", "plugin")),
    "onernn.scoring",
)

NO_COMPILER = {"PATH": "/nowhere", "CXX": ""}
KERNELS = """
from onernn.backend.compiled.library import load_kernels
kernels = load_kernels()
print(kernels.isa, kernels.path)
"""


def run(*command: str | Path, cwd: Path, status: int = 0, **environment: str) -> str:
    """What the command prints; the test fails where its exit status is another."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=ENVIRON | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == status, f"{' '.join(map(str, command))}: {done.returncode}\n{said}"
    return done.stdout


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The package index: the tests are skipped where a small package cannot be had from it."""
    folder = tmp_path_factory.mktemp("index")
    options = ("--no-deps", "--no-cache-dir", "--retries=1", "--timeout=20", "--dest", folder)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *map(str, options), "iniconfig"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"package index not reached: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def copy(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without whatever git ignores, and without tests except their data, to which
    samples are links: a build leaves folders behind.
    """
    copy = tmp_path_factory.mktemp("parent") / "copy"
    if (repo / ".git").exists():
        git = ("git", "-c", "safe.directory=*", "ls-files", "-z")  # the checkout may be another's
        for name in filter(None, run(*git, cwd=repo).split("\0")):
            if not name.startswith("tests/") or name.startswith("tests/data/"):
                target = copy / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(repo / name, target, follow_symlinks=False)
    else:
        ignored = shutil.ignore_patterns(*UNTRACKED, "tests")
        shutil.copytree(repo, copy, symlinks=True, ignore=ignored)
        shutil.copytree(repo / "tests" / "data", copy / "tests" / "data", symlinks=True)
    return copy


def built(copy: Path, out: Path, **environment: str) -> Path:
    """The wheel of a copy."""
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, copy, cwd=out, **environment)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def bare(index: None, copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a machine without a compiler builds it."""
    return built(copy, tmp_path_factory.mktemp("bare"), **NO_COMPILER)


@pytest.fixture(scope="module")
def wheel(bare: Path, copy: Path, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as this machine builds it; kernels that the checkout has are not built again."""
    if (repo / "src" / "onernn" / "kernels" / "built").is_dir():
        ignored = shutil.ignore_patterns("part-*")
        shutil.copytree(
            repo / "src" / "onernn" / "kernels" / "built",
            copy / "src" / "onernn" / "kernels" / "built",
            ignore=ignored,
        )
    return built(copy, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a new environment in which the wheel is, with what it depends on."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    commands = folder / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", commands / "python", "install", "--quiet")
    run(*pip, "--disable-pip-version-check", wheel, cwd=folder)
    return commands


def modules_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if name.endswith(".py")]
    return [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files]


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_shipped_file(wheel: Path, bare: Path, repo: Path) -> None:
    shipped = set()
    patterns = (
        "*.py",
        "*.pyi",
        "*.h",
        "kernels/*.hpp",
        "library/onernn.hpp",
        "paddle/*.?pp",
        "onnx/*.json",
    )
    patterns += ("onnx/*.json", "*.jinja", "*.toml")
    for room in [*repo.glob("*/__init__.py"), repo / "src" / "onernn" / "__init__.py"]:
        for pattern in patterns:
            shipped |= {str(f.relative_to(repo)) for f in room.parent.rglob(pattern)}
    expected = {f"onernn/{name}".replace("onernn/src/onernn/", "onernn/") for name in shipped}
    expected |= {"onernn/py.typed", "_onernn_command.py", "_onernn_pytestplugin.py"}
    samples = repo / "src" / "onernn" / "samples"
    files = [file for file in samples.rglob("*") if file.is_file()]
    expected |= {f"onernn/samples/{file.relative_to(samples)}" for file in files}
    libraries = {
        f"onernn/kernels/built/{build.library_of(isa).name}" for isa in build.choose_sets()
    }
    libraries.add("onernn/kernels/built/libonernn.so")
    assert files_of(bare) == expected
    assert files_of(wheel) == expected | (libraries if has_compiler() else set())


def has_compiler() -> bool:
    try:
        return bool(build.compiler())
    except build.NoCompiler:
        return False


def test_a_wheel_is_for_this_machine_where_a_compiler_was_and_else_for_any(
    wheel: Path, bare: Path
) -> None:
    assert bare.name.endswith("-py3-none-any.whl")
    if has_compiler():
        assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")


@pytest.mark.parametrize("cap", list(build.isas())[::2])
def test_the_installed_kernels_are_loaded_where_no_compiler_is(
    wheel: Path, installed: Path, cap: str, tmp_path: Path
) -> None:
    if not has_compiler():
        pytest.skip("no compiler: no kernels in the wheel")
    only = {**NO_COMPILER, "ONERNN_MAX_ISA": cap}
    isa, path = run(installed / "python", "-c", KERNELS, cwd=tmp_path, **only).split()
    assert Path(path).is_relative_to(installed.parent) and path.endswith(f"libonernn-{isa}.so")
    known = list(build.isas())
    assert known.index(isa) <= known.index(cap)


def test_without_kernels_onednn_runs_and_how_to_get_them_is_told(
    bare: Path, installed: Path, data: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(bare) as archive:
        archive.extractall(tmp_path / "site")
    only = {**NO_COMPILER, "PYTHONPATH": str(tmp_path / "site")}
    python = installed / "python"
    refused = f"try:{KERNELS.replace(chr(10), chr(10) + ' ')}\nexcept Exception as e: print(e)"
    told = run(python, "-c", refused, cwd=tmp_path, **only)
    assert "this installation has no kernels: no compiler was there when it was built" in told
    assert "pip install --no-cache-dir --force-reinstall --no-deps onernn" in told
    model = data / "paddle" / RECORDING
    verify = ("-m", "onernn.cli", "verify", model, "--data", model / "io.npz")
    run(python, *verify, cwd=tmp_path, **only)


def test_every_module_of_the_wheel_imports(wheel: Path, installed: Path, tmp_path: Path) -> None:
    """But those made of PyTorch's classes, and scoring, which needs pyarrow."""
    names = [name for name in modules_of(wheel) if not name.startswith(FRAMEWORK_CLASSES)]
    assert {"onernn", "onernn.ir.ragged", "onernn.cli", "onernn.adapters.torch"} <= set(names)
    files = run(installed / "python", "-c", IMPORT_ALL, *names, cwd=tmp_path).split()
    assert len(files) == len(names)
    assert [file for file in files if not Path(file).is_relative_to(installed.parent)] == []


def test_the_installed_command_copies_samples_that_run(installed: Path, tmp_path: Path) -> None:
    onernn = installed / "onernn"
    run(onernn, "samples", "samples", cwd=tmp_path)
    for model in ("onnx_tagger/model.onnx", "paddle_gru", "mxnet_cells/model-symbol.json"):
        recording = Path("samples", model.partition("/")[0], "io.npz")
        run(onernn, "verify", f"samples/{model}", "--data", recording, cwd=tmp_path)


@pytest.mark.parametrize("page", ["tutorials/paddle.md", "tutorials/cpp.md", "moving/paddle.md"])
def test_a_guide_works_with_the_installed_package_alone(
    installed: Path, repo: Path, tmp_path: Path, page: str
) -> None:
    """Those that need no extra: their commands and programs run, and print what the page shows."""
    if not has_compiler():
        pytest.skip("no compiler: no kernels in the wheel, and no programs of C++")
    manual = ("-m", "support.manual", repo / "docs" / page)
    run(installed / "python", *manual, cwd=tmp_path, PYTHONPATH=str(repo / "tests"))


def test_the_installed_command_runs_and_verifies_a_recording(
    installed: Path, data: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(data / "paddle" / RECORDING, tmp_path / "model")
    recording = (model / "io.npz").rename(tmp_path / "io.npz")
    with np.load(recording) as file:
        recorded = dict(file)
    given = {k: a for k, a in recorded.items() if k.startswith(("in__", "lod__"))}
    np.savez(tmp_path / "in.npz", **given)  # type: ignore[arg-type]

    onernn = installed / "onernn"
    run(onernn, "run", model, "--input", "in.npz", "--output", "out.npz", cwd=tmp_path)
    with np.load(tmp_path / "out.npz") as file:
        made = dict(file)
    assert sorted(made) == sorted(recorded.keys() - given.keys())
    for key, expected in recorded.items():
        if key.startswith("outlod__"):
            assert made[key].tolist() == expected.tolist()
        elif key.startswith("out__"):
            assert made[key].shape == expected.shape
            assert np.abs(made[key] - expected).max() <= 1e-6 + 1e-5 * np.abs(expected).max()

    run(onernn, "verify", model, "--data", recording, cwd=tmp_path)
    np.savez(tmp_path / "both.npz", **given, **made)  # type: ignore[arg-type]
    run(onernn, "verify", model, "--data", "both.npz", cwd=tmp_path)
    (key,) = (key for key in made if key.startswith("out__"))
    made[key][0, 0] += 0.01
    np.savez(tmp_path / "wrong.npz", **given, **made)  # type: ignore[arg-type]
    run(onernn, "verify", model, "--data", "wrong.npz", cwd=tmp_path, status=1)
