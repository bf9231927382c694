"""Which files a corpus is: a file, a folder, a glob, here or in an object store."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from onernn.core.errors import UnsupportedError, did_you_mean
from onernn.core.records import dataclass

if TYPE_CHECKING:
    import pyarrow.fs as pafs

FORMATS = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "orc": (".orc",),
    "json": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "npz": (".npz",),
}
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
_WILD = frozenset("*?[")


@dataclass(frozen=True, eq=False)
class Files:
    """Files of one format, in the order of their names: ``sizes`` and ``times`` tell changes."""

    system: pafs.FileSystem
    paths: Sequence[str]
    sizes: Sequence[int]
    times: Sequence[int]
    format: str

    @property
    def fingerprint(self) -> list[list[Any]]:
        """What a changed corpus would change."""
        return [list(each) for each in zip(self.paths, self.sizes, self.times, strict=True)]


def find_files(where: str, format: str | None = None) -> Files:
    """The files of a path, glob or URI, without those whose names begin with ``_`` or ``.``.

    Raises `UnsupportedError` where there are none, or of several formats; `OSError` as the file
    system does.
    """
    import pyarrow as pa
    import pyarrow.fs as pafs

    if format is not None and format not in FORMATS:
        hint = did_you_mean(format, FORMATS)
        raise UnsupportedError(
            f"format {format!r} is unknown; known are {', '.join(FORMATS)}{hint}"
        )
    if "://" in where:
        wild = next((at for at, each in enumerate(where) if each in _WILD), len(where))
        try:  # a URI may hold no wildcards: the part before them tells the system
            base = where if wild == len(where) else where[:wild].rpartition("/")[0]
            system, root = pafs.FileSystem.from_uri(base)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedError(f"{where}: {error}") from error
        infos = _matching(system, root, root + where[len(base) :])
    else:
        system, root = pafs.LocalFileSystem(), os.path.abspath(where)
        if _WILD & set(where) and not os.path.exists(where):
            named = map(os.path.abspath, glob.glob(where, recursive=True))
            infos = system.get_file_info(list(named))
        else:
            infos = _matching(system, root, root)
    found = sorted((each for each in infos if each.is_file), key=lambda each: each.path)
    if not found:
        raise UnsupportedError(f"{where}: there are no files")
    formats = {format} if format else {_format_of(each.path) for each in found}
    if len(formats) > 1:
        told = ", ".join(sorted(formats))
        raise UnsupportedError(f"{where}: files of several formats, {told}; choose some by a glob")
    return Files(
        system,
        [each.path for each in found],
        [each.size or 0 for each in found],
        [each.mtime_ns or 0 for each in found],
        formats.pop(),
    )


def _matching(system: pafs.FileSystem, root: str, pattern: str) -> list[pafs.FileInfo]:
    """The file, what lies in the folder, or what in it is like the pattern."""
    import pyarrow.fs as pafs

    wild = pattern != root
    (info,) = system.get_file_info([root])
    if info.is_file:
        return [info]
    below = system.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    hidden = (
        any(part[0] in "_." for part in PurePosixPath(each.path[len(root) :].strip("/")).parts)
        for each in below
    )
    kept = [each for each, out in zip(below, hidden, strict=True) if not out]
    if not wild:
        return kept
    deep = "**" in pattern
    return [
        each
        for each in kept
        if fnmatch(each.path, pattern) and (deep or each.path.count("/") == pattern.count("/"))
    ]


def _format_of(path: str) -> str:
    name = PurePosixPath(path).name.lower()
    for suffix in CODECS:
        name = name.removesuffix(suffix)
    for format, suffixes in FORMATS.items():
        if name.endswith(suffixes):
            return format
    raise UnsupportedError(
        f"{path}: expected one of {', '.join(s for each in FORMATS.values() for s in each)}; tell"
        " the format (format=, --format), or leave the file out by a glob"
    )
