"""Folders of results. A file is complete or missing, and the folder records the settings with which
it was begun.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from onernn.ir.errors import UnsupportedError
from onernn.ir.files import replacing
from onernn.scoring.corpus import NOTE
from onernn.scoring.systems import open_system, shown

MANIFEST = "_scoring.json"
ATTEMPTS = "_attempts.json"
MOST_ATTEMPTS = 3
"""The number of processes that may die while they score a window, before the window is given up."""
_PART = re.compile(r"part-(\d{6,})\.parquet")
_DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
_BLANK = b"0" * 64
"""The text that replaces a file's digest in the file while the digest is computed."""
_FOOTER = 2**26
"""Maximum number of bytes of a Parquet footer that is read."""


class Part(NamedTuple):
    """The facts about the file of one window. ``rows``, ``rejected``: the number of its rows and of
    its rejected rows. ``source``: the digest of the window's rows in the corpus.
    """

    rows: int
    rejected: int
    source: str


class Folder:
    """The files of windows in a folder, on this machine or in an object store.

    A file gets its final name when all its bytes are on the disk. The metadata of a file holds the
    number of its window, its `Part`, a digest of the folder's settings, and a digest of the file's
    other bytes. ``parts``: the `Part` of each window whose file is unchanged. ``repaired``: the
    files that must be scored again, with the reason. The file `MANIFEST` holds the settings with
    which the folder is scored. Readers of data sets skip this file, because its name begins with _.
    """

    def __init__(self, where: str) -> None:
        self._system, self._path = open_system(where)
        self._is_local = isinstance(self._system, LocalFileSystem)
        self._path = self._path.rstrip("/") or "/"
        self.name = self._path if self._is_local else shown(where).rstrip("/")
        self.parts: dict[int, Part] = {}
        self.repaired: list[str] = []
        self._there = set[int]()
        self._begun: dict[str, Any] = {}

    @contextmanager
    def hold(self, asked: Mapping[str, Any], corpus: list[Any]) -> Iterator[None]:
        """Checks the folder, and locks it while the block runs. Object stores have no locks; two
        runs in one folder there both write the same bytes.

        ``asked``: the settings of the run. ``corpus``: the corpus's `Corpus.fingerprint`. Raises
        `UnsupportedError` if a different process scores into the folder, if the folder was begun
        with different settings, or if it holds foreign files. Then nothing is changed.
        """
        kind = self._system.get_file_info(self._path).type
        if kind not in (FileType.Directory, FileType.NotFound):
            raise UnsupportedError(f"{self.name}: expected a folder for the output, got a file")
        with self._lock() if self._is_local else nullcontext():
            asked = json.loads(json.dumps(asked))
            names = self._names()
            windows = self._check_names(names)
            self._there = {*windows.values()}
            if windows:
                self._begun = self._check_manifest(asked)
            else:
                self._begun = {**asked, "corpus": corpus}
                self._begun["request"] = _digest(self._begun)
            for name, window in windows.items():
                result = self._read_part(name, window)
                if isinstance(result, Part):
                    self.parts[window] = result
                else:
                    self.repaired.append(f"{self.name}/{name}: {result}")
            self._write_manifest()
            yield

    @contextmanager
    def _lock(self) -> Iterator[None]:
        Path(self._path).mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnsupportedError(
                    f"{self.name}: a different process is scoring into this folder; wait until it"
                    " ends, or take a different folder"
                ) from None
            yield
        finally:
            os.close(handle)

    def _names(self) -> dict[str, bool]:
        """Returns whether each name in the folder is a file and not a link, by name."""
        selector = FileSelector(self._path, allow_not_found=True)
        infos = self._system.get_file_info(selector)
        return {
            each.base_name: each.type == FileType.File
            and not (self._is_local and os.path.islink(each.path))
            for each in sorted(infos, key=lambda each: each.path)
            if each.base_name[0] != "."
        }

    def _check_names(self, names: Mapping[str, bool]) -> dict[str, int]:
        windows = _windows(names)
        for name, is_file in names.items():
            if MANIFEST not in names or not (name in windows or name[0] == "_"):
                raise self._foreign(name)
            if name in (MANIFEST, *windows) and not is_file:
                raise UnsupportedError(
                    f"{self.name}/{name}: expected a file, got a link, a folder or a device; move"
                    " it away, or take a new folder"
                )
        return windows

    def _check_manifest(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings with which the folder was begun, from its manifest.

        Raises `UnsupportedError` if they differ from ``asked``, or if the manifest is damaged.
        """
        begun = self.read_json(MANIFEST)
        if begun.get("request") != _digest(begun):
            raise UnsupportedError(
                f"{self.name}: {MANIFEST} cannot be read, or an older onernn wrote it; continue"
                " with that version, or take a different folder"
            )
        for key in sorted({**asked, **begun}.keys() - _CORPUS):
            if begun.get(key) != asked.get(key):
                was, now = (json.dumps(each.get(key)) for each in (begun, asked))
                remedy = _REMEDIES.get(key, "continue with that value").format(begun.get(key))
                raise UnsupportedError(
                    f"{self.name}: expected {key} {was}, with which this folder was begun, got"
                    f" {now}; {remedy}, or take a different folder"
                )
        return begun

    def _foreign(self, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.name}: expected only files of this scoring, got {name!r}, which would be read"
            " with its rows; move it away, or take a new folder"
        )

    def was_scored_from(self, corpus: list[Any]) -> bool:
        """Returns whether an earlier run in the folder had a corpus with this fingerprint."""
        return corpus in (self._begun["corpus"], self._begun.get("seen"))

    def accept(self, corpus: list[Any]) -> None:
        """Writes to the manifest that a corpus with this fingerprint has the rows of the folder."""
        self._begun["seen"] = corpus
        self._write_manifest()

    def drop(self, window: int, why: str) -> None:
        """Removes a window from ``parts``, so that it is scored again. ``why``: the reason."""
        del self.parts[window]
        self.repaired.append(f"{self.name}/{_name(window)}: {why}")

    def check_parts(self, count: int, complete: bool = False) -> None:
        """Raises `UnsupportedError` if the folder has a file of a window after the last one.

        ``count``: the number of windows. If ``complete``, a missing file also raises the error.
        """
        there = _windows(self._names())
        for name, window in there.items():
            if window >= count:
                raise self._foreign(name)
        missing = set(range(count)).difference(there.values()) if complete else ()
        if missing:
            name = f"{self.name}/{_name(min(missing))}"
            raise UnsupportedError(f"{name} was removed during the run; run the command again")

    def schema(self) -> pa.Schema:
        """Returns the columns of the files. At least one file must exist."""
        with self._system.open_input_file(self._file(_name(min(self.parts)))) as stream:
            return pq.read_schema(stream)

    def write(self, window: int, table: pa.Table, part: Part) -> None:
        """Writes the file of a window completely or not at all. Raises `OSError`, which names the
        file.
        """
        content = pa.BufferOutputStream()
        note = {"window": window, **part._asdict(), "request": self._begun["request"]}
        with pq.ParquetWriter(
            content, table.schema, compression="zstd", write_page_checksum=True
        ) as writer:
            writer.write_table(table)
            text = json.dumps({**note, "sha256": _BLANK.decode()})
            writer.add_key_value_metadata({NOTE: text})
        blank = content.getvalue().to_pybytes()
        place = [*_DIGEST.finditer(blank)][-1].start(1)  # the values of columns may also match
        digest = sha256(blank).hexdigest().encode()
        self._write(_name(window), blank[:place] + digest + blank[place + len(digest) :])

    def remove(self, window: int) -> None:
        """Removes the file of a window, if there is one."""
        if window in self._there:
            self._system.delete_file(self._file(_name(window)))

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _write_manifest(self) -> None:
        self._write(MANIFEST, json.dumps(self._begun, sort_keys=True).encode())

    def _write(self, name: str, content: bytes) -> None:
        if self._is_local:
            with replacing(self._file(name)) as stream:
                stream.write(content)
        else:  # an object store shows an object only after all its bytes were written
            with self._system.open_output_stream(self._file(name), compression=None) as stream:
                stream.write(content)

    def read_json(self, name: str) -> dict[str, Any]:
        """Returns the object in a JSON file, or an empty dict if the file cannot be read."""
        try:
            with self._system.open_input_stream(self._file(name), compression=None) as stream:
                content = json.loads(stream.read())
        except (ValueError, FileNotFoundError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def write_attempts(self, attempts: Mapping[int, int]) -> None:
        """Writes how often each window was begun and not finished. Errors of the file system are
        ignored.
        """
        file = self._file(ATTEMPTS)
        with suppress(OSError):
            if not attempts:
                self._system.delete_file(file)
            else:
                with self._system.open_output_stream(file, compression=None) as stream:
                    stream.write(json.dumps(attempts).encode())

    def _read_part(self, name: str, window: int) -> Part | str:
        """Returns the `Part` in a file, or the reason why the file is not this run's file of the
        window.
        """
        with self._system.open_input_file(self._file(name)) as stream:
            note = _read_note(stream)
        if isinstance(note, str):
            return note
        if note["request"] != self._begun["request"]:
            return "it belongs to another model, corpus or options"
        if note["window"] != window:
            return f"it is the file of window {note['window']}"
        return Part(*(note[field] for field in Part._fields))


_CORPUS = {"corpus", "seen", "request"}
"""Keys of a manifest that are not settings: the fingerprint of the corpus in the first run, its
fingerprint in the last run, and a digest of the settings and the first fingerprint.
"""
_REMEDIES = {
    "onernn": "continue with onernn {}",
    "instruction_set": "continue on such a CPU, or on a better one with ONERNN_MAX_ISA={}",
}
"""Advice for a folder that was begun with a different value of a setting, by the setting's name."""


def _digest(begun: Mapping[str, Any]) -> str:
    request = {key: value for key, value in begun.items() if key not in ("seen", "request")}
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _windows(names: Iterable[str]) -> dict[str, int]:
    """Returns the window's number for each name of a file that `Folder.write` writes."""
    numbers = {name: int(match[1]) for name in names if (match := _PART.fullmatch(name))}
    return {name: number for name, number in numbers.items() if name == _name(number)}


def _name(window: int) -> str:
    return f"part-{window:06}.parquet"


def _read_note(stream: Any) -> dict[str, Any] | str:
    """Returns the note that `Folder.write` wrote into a file's metadata, or the reason why the file
    is damaged.
    """
    size = stream.size()
    stream.seek(max(size - 8, 0))
    length = int.from_bytes(stream.read(8)[:4], "little") + 8
    if not 8 < length <= min(size, _FOOTER):
        return "not a whole Parquet file"
    stream.seek(size - length)
    footer = stream.read(length)
    if not (places := [*_DIGEST.finditer(footer)]):
        return "its footer has no digest"
    begin, end = places[-1].span(1)
    stream.seek(0)
    result, left = sha256(), size - length
    while left and (piece := stream.read(min(left, 2**20))):
        result.update(piece)
        left -= len(piece)
    result.update(footer[:begin] + _BLANK + footer[end:])
    if result.hexdigest().encode() != places[-1][1]:
        return "its bytes are not those that were written"
    note: dict[str, Any] = json.loads(pq.read_metadata(stream).metadata[NOTE.encode()])
    return note


class Attempts:
    """The number of unfinished attempts to score each window. A window may end its process, for
    example because it needs too much memory.

    ``suspects``: the windows that earlier processes began and did not finish. ``given_up``: the
    windows with three unfinished attempts.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder, self._lock = folder, Lock()
        self._running = set[int]()
        self._counts = {
            int(window): count
            for window, count in folder.read_json(ATTEMPTS).items()
            if window.isdecimal() and int(window) not in folder.parts and isinstance(count, int)
        }
        self.suspects: Collection[int] = {*self._counts}
        self.given_up = {each for each, count in self._counts.items() if count >= MOST_ATTEMPTS}

    @contextmanager
    def attempt(self, window: int) -> Iterator[None]:
        """Counts an attempt to score a window until the block ends."""
        with self._lock:
            self._counts[window] = self._counts.get(window, 0) + 1
            self._running.add(window)
            self._folder.write_attempts(self._counts)
        try:
            yield
        finally:
            with self._lock:
                del self._counts[window]
                self._running.discard(window)

    def close(self) -> None:
        """Writes the attempts without the unfinished attempts of this process, and without the
        windows that were given up, so that the next run tries these windows again.
        """
        counts = {w: n - (w in self._running) for w, n in dict(self._counts).items()}
        self._folder.write_attempts({w: n for w, n in counts.items() if 0 < n < MOST_ATTEMPTS})
