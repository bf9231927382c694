"""The folder of a scoring: parts, rejected rows, and the manifest by which they are checked."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onernn.ir.errors import UnsupportedError
from onernn.ir.files import replacing_all
from onernn.ir.graph import Graph

MANIFEST = "_scoring.jsonl"
_MOST_WINDOWS = 10**6
_PART = re.compile(r"part-(\d{6})\.parquet")
_REJECTS = re.compile(r"rejected/_part-(\d{6})\.jsonl")


class Part(NamedTuple):
    """A window in the folder. ``sha256``: of its rows and of its rejected rows, None without."""

    window: int
    rows: int
    rejected: int
    sha256: Sequence[str | None]


def file_names(window: int) -> tuple[str, str]:
    """The file names of a window's rows and of its rejected rows."""
    if window >= _MOST_WINDOWS:
        raise UnsupportedError(f"more than {_MOST_WINDOWS:,} windows: give larger ones (--window)")
    return f"part-{window:06}.parquet", f"rejected/_part-{window:06}.jsonl"


class Folder:
    """The files of windows in a folder on this machine.

    The manifest is lines of JSON: how the folder is scored, one line for each complete window, and
    at the end the number of windows. Readers of data sets skip names that begin with ``_``.
    ``parts``: the windows whose files are as the manifest says; ``windows``: how many there are,
    once that is known; ``repaired``: what was missing or changed.
    """

    def __init__(self, where: str) -> None:
        if "://" in where:
            raise UnsupportedError(
                f"{where}: the output is a folder on this machine; for object stores use"
                " RayScorer, spark_scorer or beam_model_handler, whose engines write there"
            )
        self.path = Path(os.path.abspath(where))
        self.parts: dict[int, Part] = {}
        self.windows: int | None = None
        self.repaired: list[str] = []

    @property
    def scratch(self) -> Path:
        """The folder of this run's temporary files."""
        return self.path / ".scratch"

    @contextmanager
    def held(self, asked: Mapping[str, Any], threads: int = 1) -> Iterator[None]:
        """Checks the folder, and locks it while the block runs; ``threads`` read the files.

        Raises `UnsupportedError` if another process scores into it, where the manifest is
        missing or damaged, or says another model, corpus or options, and where the folder holds
        something else. Nothing is changed then.
        """
        with ExitStack() as stack:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnsupportedError(f"{self.path}: another scoring runs into it") from None
            self._asked = json.loads(json.dumps(asked))
            lines = self._read_manifest()
            self._clean()
            self._check(lines, threads)
            self._write_manifest()
            stack.callback(self._clean)
            self.scratch.mkdir(exist_ok=True)
            yield

    def _clean(self) -> None:
        """Removes unfinished files."""
        for left in (*self.path.rglob(".onernn-*.part"), *self.scratch.glob("*")):
            left.unlink(missing_ok=True)
        if self.scratch.exists():
            self.scratch.rmdir()

    def _entries(self) -> dict[str, bool]:
        """The names in the folder in order, and whether each is a file or a link to one."""
        every = ((p, p.is_symlink() or p.is_file()) for p in sorted(self.path.rglob("*")))
        names = ((str(path.relative_to(self.path)), is_file) for path, is_file in every)
        return {name: is_file for name, is_file in names if name[0] != "."}

    def _read_manifest(self) -> list[dict[str, Any]]:
        """The lines behind the first one, without those that are damaged."""
        names = self._entries()
        if MANIFEST not in names:
            for name in names:
                raise UnsupportedError(
                    f"{self.path} holds {name!r} and no {MANIFEST}; take a new folder"
                )
            return []
        head, *lines = map(_content, (self.path / MANIFEST).read_bytes().split(b"\n"))
        if not head:
            raise UnsupportedError(
                f"{self.path}: {MANIFEST} is damaged, so the model and the corpus of its files"
                " are not known; put the manifest back, or take a new folder"
            )
        known = [line for line in lines if line.keys() in ({"window", "sha256"}, {"windows"})]
        for key in {**head, **self._asked} if known or any(map(_PART.fullmatch, names)) else ():
            if head.get(key) != self._asked.get(key):
                was, now = (_short(each.get(key)) for each in (head, self._asked))
                raise UnsupportedError(
                    f"{self.path}: this folder was begun with {key} {was}, now it is {now}; go on"
                    " as it was begun, or take another folder"
                )
        return known

    def _check(self, lines: list[dict[str, Any]], threads: int) -> None:
        """Finds the windows with complete files."""
        known = {line["window"]: line["sha256"] for line in lines if "window" in line}
        self.windows = next((line["windows"] for line in lines if "windows" in line), None)
        self._refuse_strangers()
        with ThreadPoolExecutor(threads) as pool:
            for part in pool.map(lambda item: self._part(*item), sorted(known.items())):
                if isinstance(part, str):
                    self.repaired.append(part)
                else:
                    self.parts[part.window] = part
        for window in {*range(self.windows or 0)} - known.keys():
            self.repaired.append(f"{self.path}/{file_names(window)[0]}: no line in {MANIFEST}")
        used = {file_names(part.window)[1] for part in self.parts.values() if part.rejected}
        for name in self._entries().keys() - used:
            if match := _REJECTS.fullmatch(name):
                (self.path / name).unlink()
                if int(match[1]) in self.parts:
                    self.repaired.append(f"{self.path}/{name}: removed, no row of it is rejected")

    def _part(self, window: int, hashes: Sequence[str | None]) -> Part | str:
        """The window, or why it is to be scored again."""
        contents = []
        for name, digest in zip(file_names(window), hashes, strict=True):
            try:
                contents.append(b"" if digest is None else (self.path / name).read_bytes())
            except OSError:
                return f"{self.path}/{name}: there is no file that can be read"
            if digest is not None and sha256(contents[-1]).hexdigest() != digest:
                return f"{self.path}/{name}: its bytes are not those that were written"
        rows = pq.read_metadata(pa.BufferReader(contents[0])).num_rows
        return Part(window, rows, contents[1].count(b"\n"), hashes)

    def _refuse_strangers(self) -> None:
        """Raises where readers of the rows would read a file that is no part."""
        for name, is_file in self._entries().items():
            match = _PART.fullmatch(name) or _REJECTS.fullmatch(name)
            known = match and is_file and (self.windows is None or int(match[1]) < self.windows)
            if not known and name[0] != "_" and (name != "rejected" or is_file):
                raise UnsupportedError(
                    f"{self.path} holds {name!r}, which is no part of this scoring and would be"
                    " read with its rows; move it away, and start the same again"
                )

    def _write(self, contents: Mapping[str, bytes]) -> None:
        """Writes all files with all their bytes, or none. Raises `OSError` naming the file."""
        paths = [self.path / name for name in contents]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            if path.is_symlink():
                path.unlink()
        with replacing_all(paths) as streams:
            for into, content in zip(streams, contents.values(), strict=True):
                into.write(content)

    def write(self, window: int, rows: bytes, rejected: bytes) -> Sequence[str | None]:
        """The digests of a window's files, which are there when this returns."""
        names = file_names(window)
        contents = {names[1]: rejected, names[0]: rows} if rejected else {names[0]: rows}
        self._write(contents)
        return [sha256(each).hexdigest() if each else None for each in (rows, rejected)]

    def add(self, part: Part) -> None:
        """Records a window that was written: from now on it is not scored again."""
        self.parts[part.window] = part
        with open(self.path / MANIFEST, "ab") as stream:
            stream.write(_line(part))
            stream.flush()
            os.fsync(stream.fileno())

    def finish(self) -> None:
        """Raises `UnsupportedError` if there are more files than windows."""
        self.windows = len(self.parts)
        self._refuse_strangers()
        self._write_manifest()

    def _write_manifest(self) -> None:
        lines = [json.dumps(self._asked).encode() + b"\n"]
        lines += [_line(part) for _, part in sorted(self.parts.items())]
        if self.windows is not None and len(self.parts) == self.windows:
            lines.append(json.dumps({"windows": self.windows}).encode() + b"\n")
        self._write({MANIFEST: b"".join(lines)})


def _line(part: Part) -> bytes:
    return json.dumps({"window": part.window, "sha256": part.sha256}).encode() + b"\n"


def _content(line: bytes) -> dict[str, Any]:
    """The content of a line of the manifest; empty if it is cut or changed."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:76]} ..."


def digest(model: Graph) -> str:
    """SHA-256 of all that decides what the model computes, wherever its files lie."""
    result = sha256()
    for part in (model.inputs, model.outputs, model.nodes, dict(model.constants)):
        _add(part, result.update)
    return result.hexdigest()


def _add(value: Any, update: Any) -> None:
    """Each value with its type and length in front, so that no two run into each other."""
    parts: list[Any]
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        update(f"{array.dtype.str}{array.shape}".encode())
        update(array.tobytes())
        return
    if isinstance(value, Mapping):
        parts = [part for item in sorted(value.items(), key=lambda i: str(i[0])) for part in item]
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value) if field.name != "origin"]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, set | frozenset):
        parts = sorted(value, key=str)
    else:
        update(f"{type(value).__name__} {value!r};".encode(errors="surrogatepass"))
        return
    update(f"{type(value).__name__} {len(parts)}:".encode())
    for part in parts:
        _add(part, update)
