"""The command that copies the sample models of the manual."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from onernn.commands import Json
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.files import replacing_all
from onernn.showing import counted, show_json, show_written

SAMPLES = Path(__file__).with_name("samples")


def samples(
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="The folder to copy to; it is made if it is missing."),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that differ from the samples.")
    ] = False,
    json: Json = False,
) -> None:
    """Copies the sample models and recordings of the manual into DIR.

    Files in DIR that are equal to a sample are kept. If DIR has different files with the names of
    samples, nothing is written.
    """
    if not folder:
        raise UnsupportedError("DIR: expected the name of a folder, got ''; . is this folder")
    contents = _read_samples(Path(folder))
    differ = [path for path, content in contents.items() if not _holds(path, content)]
    blocked = [path for path in differ if os.path.lexists(path) and not (force and _is_own(path))]
    if blocked:
        advice = "" if force else "; --force overwrites files"
        raise ModelFormatError(f"is in the way, nothing is written{advice}", blocked[0])
    for parent in {path.parent: None for path in differ}:
        parent.mkdir(parents=True, exist_ok=True)
    with replacing_all(differ) as streams:
        for path, stream in zip(differ, streams, strict=True):
            stream.write(contents[path])
    if json:
        show_json("pass", written=list(map(str, differ)))
    kept = [f"{len(contents) - len(differ)} were there already"] * (differ != [*contents])
    listing = ["cat", Path(folder, "README.md")]
    show_written(
        folder, differ, [counted(len(differ), "file"), *kept], "see what they are", listing
    )


def _read_samples(folder: Path) -> dict[Path, bytes]:
    """Returns the content of each sample by its path in ``folder``.

    Raises `ModelFormatError` if the installation has no samples.
    """
    files = [file for file in sorted(SAMPLES.rglob("*")) if not file.is_dir()]
    if len(files) < 2:  # a wheel that was built without tests/data has only README.md
        raise ModelFormatError("this installation has no samples; install onernn again", SAMPLES)
    return {folder / file.relative_to(SAMPLES): file.read_bytes() for file in files}


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _is_own(path: Path) -> bool:
    """Returns whether a path is a regular file and not a link, so that it may be overwritten."""
    return path.is_file() and not path.is_symlink()
