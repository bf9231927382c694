"""Checks a release before it is published: `make release-check`.

The files to publish are written to the folder ``--out``. CXX names the compiler. Skips Python
versions that are not installed, and the audit if its service cannot be reached; a message says so.
Exit 1: a check failed.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PYTHONS = ("3.11", "3.12", "3.13")
MODELS = (
    "paddle/fc_gru_h0_rev0",
    "paddle/bigru_concat",
    "mxnet/gluon_lengths",
    "onnx/keras_gru/model.onnx",
)
"""Models in tests/data with recordings."""
FREE = re.compile(r"Apache|BSD|MIT\b|MIT License|PSF|Python Software|ISC|MPL|Mozilla", re.I)
UNREACHABLE = re.compile(r"ConnectionError|Max retries|timed out|ServiceError|resolve|SSLError")


class Failure(Exception):
    """The error of a check that fails."""


def run(
    *command: str | Path, cwd: Path = HERE, environment: Mapping[str, str] | None = None
) -> str:
    """Returns the output of a command. Raises `Failure` with all output if it fails."""
    words = list(map(str, command))
    leaks = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    known = {name: value for name, value in os.environ.items() if name not in leaks}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**known, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"[-4000:])
    return done.stdout


@dataclass
class Release:
    """The data that all checks share: folders, the version, and the environments that were made."""

    out: Path
    work: Path
    version: str
    environments: dict[str, Path] = field(default_factory=dict)

    @property
    def wheel(self) -> Path:
        (found,) = self.out.glob("*.whl")
        return found


def versions(release: Release) -> Iterator[str]:
    """Checks that pyproject.toml, CITATION.cff and CHANGELOG.md agree, and that the tag is free."""
    changes = (HERE / "CHANGELOG.md").read_text()
    heading = next((h for h in changes.splitlines() if h.startswith(f"## {release.version}")), "")
    if not heading:
        raise Failure(f"CHANGELOG.md has no section of {release.version}")
    if f"version: {release.version}\n" not in (HERE / "CITATION.cff").read_text():
        raise Failure(f"CITATION.cff: expected version: {release.version}")
    if run("git", "tag", "--list", f"v{release.version}").strip():
        raise Failure(f"v{release.version} is tagged already: raise the version")
    if not re.search(r"\d{4}-\d\d-\d\d$", heading):
        yield f"CHANGELOG.md: {heading[3:]!r} wants its date before the tag"
    if "\n## Unreleased" in changes:
        yield f"CHANGELOG.md: what stands under Unreleased goes into {release.version}"
    if run("git", "status", "--porcelain").strip():
        yield "what is not committed is not in the release"


def same_bytes(release: Release) -> Iterator[str]:
    """Checks that the sdist and the wheel, built from HEAD in two folders, are the same bytes."""
    commit, time = run("git", "log", "-1", "--format=%H %ct").split()
    sums = []
    for name in ("first", "the-second-in-a-folder-of-another-name"):
        place = release.work / name
        archive = subprocess.run(["git", "archive", commit], cwd=HERE, capture_output=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(place / "source", filter="tar")
        built = place / "built"
        told = {"SOURCE_DATE_EPOCH": time, "CCACHE_DISABLE": "1", "TMPDIR": str(place)}
        told["ISAS"] = "all"  # builds for all CPUs
        told["ZIG_LOCAL_CACHE_DIR"] = str(place / "zig")  # not for Zig's own libraries
        run(sys.executable, "-m", "build", "--outdir", built, place / "source", environment=told)
        if "ziglang" in os.environ.get("CXX", ""):
            portable(built, told)
        sums.append({each.name: digest(each) for each in sorted(built.iterdir())})
    for one, other in zip(*(sums[k].items() for k in (0, 1)), strict=True):
        if one != other:
            files = sorted(release.work.glob(f"*/built/{one[0]}"))
            raise Failure(f"{one[0]}: not the same twice\n" + "\n".join(differences(*files)))
    shutil.rmtree(release.out, ignore_errors=True)
    shutil.copytree(release.work / "first" / "built", release.out)
    lines = [f"{each}  {name}" for name, each in sums[0].items()]
    (release.out / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    yield from lines


def portable(folder: Path, environment: Mapping[str, str]) -> None:
    """Replaces the wheel for this machine by a wheel for any Linux of its glibc."""
    (wheel,) = folder.glob("*-linux_x86_64.whl")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    plat = "manylinux_2_17_x86_64"
    repair = (BIN / "auditwheel", "repair", "--plat", plat, "--wheel-dir", folder, wheel)
    run(*repair, environment={**environment, "PATH": path})
    wheel.unlink()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def differences(one: Path, other: Path) -> list[str]:
    """Returns the members of two archives that differ."""
    if one.suffix != ".whl":
        return ["compare them with diffoscope"]
    with zipfile.ZipFile(one) as a, zipfile.ZipFile(other) as b:
        return [
            f"  {x.filename}"
            for x, y in zip(a.infolist(), b.infolist(), strict=False)
            if x.filename != y.filename or a.read(x) != b.read(y) or x.date_time != y.date_time
        ]


def check_description(release: Release) -> Iterator[str]:
    """Checks that twine accepts the text for the page of the release."""
    run(sys.executable, "-m", "twine", "check", "--strict", *release.out.glob("onernn-*"))
    yield "twine"


def install_wheel(release: Release) -> Iterator[str]:
    """Checks that the wheel runs on each Python, with the newest and the oldest dependencies."""
    for version in PYTHONS:
        python = interpreter(version)
        if python is None:
            yield f"Python {version} is not here: not checked"
            continue
        for which in ("newest", "oldest"):
            folder = release.work / f"python-{version}-{which}"
            run(python, "-m", "venv", "--without-pip", folder)
            chosen = folder / "bin" / "python"
            least = release.work / f"least-{version}.txt"
            least.write_text("\n".join(lowest(release.wheel, version)) + "\n")
            limits = ("--constraint", least) if which == "oldest" else ()
            pip = (sys.executable, "-m", "pip", "--python", chosen)
            run(*pip, "install", "--quiet", *limits, release.wheel)
            run(*pip, "check")
            uses(chosen, release)
            release.environments[f"{version}-{which}"] = chosen
            said = json.loads(run(*pip, "list", "--format", "json"))
            names = {each["name"].lower(): each["version"] for each in said}
            yield f"Python {version}, NumPy {names['numpy']}, protobuf {names['protobuf']}"


def interpreter(version: str) -> str | None:
    """Returns a Python of this version that the system, pyenv or uv has installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: list[str | Path] = [f"python{version}"]
    found += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    if shutil.which("uv"):
        uv = subprocess.run(["uv", "python", "find", version], capture_output=True, text=True)
        found += [uv.stdout.strip()] if uv.returncode == 0 else []
    tell = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for each in found:
        try:
            if run(each, "-c", tell).strip() == version:
                return str(each)
        except (Failure, OSError):
            continue
    return None


def lowest(wheel: Path, python: str) -> Iterator[str]:
    """Yields the wheel's dependencies in the lowest versions that it declares for this Python."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    for text in metadata.get_all("Requires-Dist", []):
        needed = Requirement(text)
        here = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
        if needed.marker is None or needed.marker.evaluate(here):
            bounds = [each.version for each in needed.specifier if each.operator in (">=", "==")]
            if not bounds:
                raise Failure(f"pyproject.toml: {needed} declares no oldest version")
            yield f"{needed.name}=={max(bounds)}"


def uses(python: Path, release: Release) -> None:
    """Runs the command `onernn` on `MODELS`, outside of the checkout."""
    onernn = python.with_name("onernn")
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        if (said := run(onernn, "--version", cwd=here)).strip() != f"onernn {release.version}":
            raise Failure(f"onernn --version says {said!r}")
        for model in (HERE / "tests" / "data" / each for each in MODELS):
            data = (model if model.is_dir() else model.parent) / "io.npz"
            run(onernn, "verify", model, "--data", data, cwd=here)
            run(onernn, "inspect", model, "--html", "page.html", cwd=here)
            run(onernn, "run", model, "--input", data, "--output", "out.npz", cwd=here)
        run(onernn, "doctor", "--full", "--threads", "1", "--quiet", cwd=here)


def licences(release: Release) -> Iterator[str]:
    """Checks that the licences of onernn and its dependencies are known, and free for any use."""
    with zipfile.ZipFile(release.wheel) as archive:
        paths = [each for each in archive.namelist() if not each.endswith("/")]
        names = {Path(each).name for each in paths if "/licenses/" in each}
        if names != {"LICENSE", "NOTICE"}:
            raise Failure(f"the wheel's licences: expected LICENSE and NOTICE, got {names}")
        foreign = [
            each
            for each in paths
            if not each.endswith((".so", "LICENSE", "NOTICE"))
            and re.search(rb"(?i)copyright (?!the onernn)|SPDX-License", archive.read(each))
        ]
    if foreign:
        raise Failure(f"others' copyright, which NOTICE does not tell: {', '.join(foreign)}")
    python = newest(release)
    told = json.loads(run(python, "-c", LICENCES))
    if unknown := [
        f"{name}: {text or 'none'}" for name, text in told.items() if not FREE.search(text)
    ]:
        raise Failure(f"licences that nobody looked at: {'; '.join(unknown)}")
    lines = [f"{name}: {text}" for name, text in sorted(told.items())]
    (release.out / "LICENCES.txt").write_text("\n".join(lines) + "\n")
    yield from lines


LICENCES = """
import importlib.metadata as m, json
found = {}
for each in m.distributions():
    told = each.metadata
    kinds = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier", []) if "License ::" in c]
    said = told.get("License-Expression") or (told.get("License") or "").partition("\\n")[0]
    found[f"{told['Name']} {each.version}"] = "; ".join(filter(None, [said[:80], *kinds]))
print(json.dumps(found))
"""


def newest(release: Release) -> Path:
    """Returns the Python of an environment with the newest versions of the dependencies."""
    found = [python for name, python in release.environments.items() if name.endswith("newest")]
    if not found:
        raise Failure("no Python of a supported version was found, or none ran")
    return found[-1]


def bill_of_materials(release: Release) -> Iterator[str]:
    """Writes CycloneDX's list of the packages of an installation; the tool validates it."""
    file = release.out / f"onernn-{release.version}.cdx.json"
    options = ("--output-reproducible", "--of", "JSON", "-o", file)
    run(BIN / "cyclonedx-py", "environment", *options, newest(release))
    parts = json.loads(file.read_text())["components"]
    if not {"onernn", "numpy", "protobuf"} <= {each["name"].lower() for each in parts}:
        raise Failure(f"{file}: it lacks onernn or what it depends on")
    yield f"{file.name}: {len(parts)} components"


def audit_dependencies(release: Release) -> Iterator[str]:
    """Checks that no installed package has a known vulnerability."""
    sites = run(newest(release), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    try:
        run(
            BIN / "pip-audit",
            "--progress-spinner",
            "off",
            "--timeout",
            "20",
            "--path",
            sites.strip(),
        )
    except Failure as failure:
        if "vulnerabilit" in str(failure) or not UNREACHABLE.search(str(failure)):
            raise
        yield "the service of pip-audit is not reachable: not audited"
    else:
        yield "pip-audit knows of no vulnerability"


CHECKS: tuple[Callable[[Release], Iterator[str]], ...] = (
    versions,
    same_bytes,
    check_description,
    install_wheel,
    licences,
    bill_of_materials,
    audit_dependencies,
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--out", type=Path, default=HERE / "out" / "release")
    options.add_argument("--built", action="store_true", help="check what lies in --out already")
    chosen = options.parse_args()
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    failed = []
    with tempfile.TemporaryDirectory(prefix="release-") as work:
        release = Release(chosen.out.resolve(), Path(work), project["version"])
        for check in CHECKS:
            if chosen.built and check is same_bytes:
                continue
            print(
                f"{check.__name__.replace('_', ' ')}: {(check.__doc__ or '').strip()}", flush=True
            )
            try:
                for line in check(release):
                    print(f"  {line}", flush=True)
            except Failure as failure:
                failed.append(check.__name__.replace("_", " "))
                print(f"  FAILED: {failure}", flush=True)
    print(f"does not hold: {', '.join(failed)}" if failed else f"{release.version} can be released")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
