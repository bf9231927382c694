"""File systems of corpora and results: local files, object stores, and fsspec's file systems."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, FSSpecHandler, PyFileSystem

from onernn.adapters.common.adapter import require
from onernn.ir.errors import Refusal, UnsupportedError

_HIDDEN = "***"
_PUBLIC = frozenset({"region", "scheme", "endpoint_override"})
"""Keys in the query of a URI whose values may be printed."""
_TABLES = {
    "_delta_log": ("Delta", "deltalake.DeltaTable(PATH).to_pyarrow_dataset()"),
    "metadata/*.metadata.json": ("Iceberg", "pyiceberg's table.scan().to_arrow()"),
    ".hoodie": ("Hudi", "spark.read.format('hudi').load(PATH)"),
}
"""Table formats by a name that only occurs in their folders. The value is the format's name, and
the code that reads the current rows of such a table.
"""
_SECRET = 4
"""Minimum number of characters of a secret that is replaced in messages. Shorter secrets would
match parts of ordinary words.
"""


def open_system(where: str) -> tuple[FileSystem, str]:
    """Returns the file system of a path or URI, and the path in this file system.

    pyarrow opens local files, S3, Google and Azure. fsspec opens the other schemes, with the
    credentials in fsspec's configuration. Raises `UnsupportedError` for an unknown scheme.
    """
    if "://" not in where:
        return FileSystem.from_uri("file:///")[0], os.path.abspath(where)
    try:
        return FileSystem.from_uri(where)
    except pa.ArrowInvalid as error:
        if "Unrecognized" not in str(error):
            raise UnsupportedError(f"{shown(where)}: {error}") from error
    try:
        system, path = require("fsspec.core", "stores").url_to_fs(where)
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"{shown(where)}: {error}") from error
    return PyFileSystem(FSSpecHandler(system)), path


def shown(where: str) -> str:
    """Returns a path or URI for messages, without user, password and the secrets in its query."""
    return _split(where)[0]


def _split(where: str) -> tuple[str, set[str]]:
    """Returns a path or URI without its secrets, and the set of the secrets."""
    scheme, is_uri, rest = where.partition("://")
    if not is_uri:
        return where, set()
    rest, mark, query = rest.partition("?")
    user, at, path = rest.partition("@")
    if at and ":" in user:
        user, at, path = rest.rpartition("@")  # a password may contain / and @
    elif "/" in user or scheme.startswith(("abfs", "wasb")):  # CONTAINER@ACCOUNT
        user, at, path = "", "", rest
    secrets, pairs = {user, *user.split(":", 1)}, list[str]()
    for pair in query.split("&"):
        key, equals, value = pair.partition("=")
        if value and key not in _PUBLIC:
            secrets.add(value)
            pair = f"{key}={_HIDDEN}"
        pairs.append(pair)
    user = _HIDDEN if user else ""
    return f"{scheme}://{user}{at}{path}{mark}{'&'.join(pairs)}", secrets


@contextmanager
def hiding_secrets(*uris: str) -> Iterator[None]:
    """Removes the secrets of URIs from the texts of all errors that the block raises."""
    try:
        yield
    except Exception as error:
        texts = dict(_texts(uris))
        link: BaseException | None = error
        while link is not None and texts:
            link.args = tuple(_clean(each, texts) for each in link.args)
            for name, value in vars(link).items():
                setattr(link, name, _clean(value, texts))
            if isinstance(link, OSError):
                link.filename = _clean(link.filename, texts)
                link.strerror = _clean(link.strerror, texts)
            link = link.__cause__ or link.__context__
        raise


def _texts(uris: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs of a text to replace in messages and its replacement. Whole URIs come before the
    secrets in them.
    """
    split = {uri: _split(uri) for uri in uris}
    for uri, (clean, secrets) in split.items():
        if secrets:
            yield uri, clean
    every = {each for _, secrets in split.values() for each in secrets}
    for each in sorted(every | {*map(unquote, every)}, key=len, reverse=True):
        if len(each) >= _SECRET:
            yield each, _HIDDEN


def _clean(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_clean(each, texts) for each in value)
    if isinstance(value, Refusal):
        return Refusal(_clean(value.reason, texts), value.where)
    if not isinstance(value, str):
        return value
    for secret, instead in texts.items():
        value = value.replace(secret, instead)
    return value


def list_files(system: FileSystem, root: str, where: str) -> list[FileInfo]:
    """Returns the files in a folder and in its inner folders, sorted by path. If ``root`` is a
    file, returns this file.

    Files and folders whose names begin with _ or a dot are skipped. ``where``: the name of the
    folder in errors. Raises `FileNotFoundError` if ``root`` does not exist. Raises
    `UnsupportedError` for the folder of a table format, because it also holds deleted rows.
    """
    info = system.get_file_info(root)
    if info.type == FileType.NotFound:
        raise FileNotFoundError(errno.ENOENT, "no such file or folder; check the path", where)
    if info.type != FileType.Directory:
        return [info]
    result = []
    for each in system.get_file_info(FileSelector(root, recursive=True)):
        name = relative(each.path, root)
        for pattern, (kind, reader) in _TABLES.items():
            if fnmatch(name, pattern) or fnmatch(name, f"*/{pattern}"):
                raise UnsupportedError(
                    f"{where}: expected plain files, got a {kind} table ({name!r}), which also"
                    f" holds deleted rows; write its current rows to Parquet first: {reader}"
                )
        if each.type == FileType.File and not re.search(r"(^|/)[_.]", name):
            result.append(each)
    return sorted(result, key=lambda each: each.path)


def relative(path: str, root: str) -> str:
    """Returns the path of a file relative to the folder ``root``. If ``root`` is the file itself,
    returns the file's name.
    """
    if path == root:
        path = path.partition("?")[0] if "://" in path else path
        return path.rstrip("/").rpartition("/")[2]
    return path.removeprefix(root).lstrip("/")
