"""The folder of a scoring: whole windows under their names, and what it takes to go on with it."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onernn.core.errors import UnsupportedError
from onernn.core.files import replacing, replacing_all

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "_scoring.json"
_MOST_WINDOWS = 10**6


class Output:
    """Window i is ``part-NNNNNN.parquet``, whole from the moment that it has this name.

    Its rejected rows are lines of JSON in ``rejected/_part-NNNNNN.jsonl``, which is there before:
    readers of data sets pass over names with ``_``. So do they over the manifest, which tells how
    the folder is scored, and in the end what is in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hidden = folder / ".weights"  # of the model, while workers share them

    @contextmanager
    def held(self, asked: Mapping[str, Any]) -> Iterator[set[int]]:
        """The windows that are done; meanwhile nobody else scores into the folder.

        Raises `UnsupportedError` where somebody does, where the folder holds something else, or a
        scoring of another model, corpus or options.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        holding = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(holding, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnsupportedError(f"{self.folder}: another scoring runs into it") from None
            done = self.done()
            if done or (self.manifest() is None and self._others()):
                self._check(asked)
            else:
                self._write_manifest(asked)
            self._clean()
            self.hidden.mkdir(exist_ok=True)
            try:
                yield done
            finally:
                self._clean()
                self.hidden.rmdir()
        finally:
            os.close(holding)

    def done(self) -> set[int]:
        """The windows that are whole."""
        return {int(match[1]) for match in map(_PART.fullmatch, os.listdir(self.folder)) if match}

    def _others(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if name[0] != "."]

    def _clean(self) -> None:
        """Removes what was not finished."""
        for unfinished in (*self.folder.rglob(".onernn-*.part"), *self.hidden.glob("*")):
            unfinished.unlink(missing_ok=True)

    def discard_all_but(self, windows: set[int]) -> None:
        """Removes the other windows, as if they had never been scored."""
        for index in self.done() - windows:
            for file in (self.part(index), self._told(index)):
                file.unlink(missing_ok=True)

    def _check(self, asked: Mapping[str, Any]) -> None:
        known = self.manifest()
        if known is None:
            raise UnsupportedError(
                f"{self.folder} holds {self._others()[0]!r} and no scoring; take a new folder"
            )
        check_same(self.folder, known, asked)

    def manifest(self) -> dict[str, Any] | None:
        """What the folder is; None for a new one."""
        try:
            found: dict[str, Any] = json.loads((self.folder / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UnsupportedError(f"{self.folder / MANIFEST}: {error}") from error
        return found

    def _write_manifest(self, content: Mapping[str, Any]) -> None:
        with replacing(self.folder / MANIFEST) as stream:
            stream.write(json.dumps(content, indent=1).encode())

    @property
    def is_complete(self) -> bool:
        return bool((self.manifest() or {}).get("complete"))

    def complete(self) -> None:
        self._write_manifest({**(self.manifest() or {}), "complete": True})

    def part(self, index: int) -> Path:
        if index >= _MOST_WINDOWS:
            raise UnsupportedError(
                f"more than {_MOST_WINDOWS:,} windows: give larger ones (--window)"
            )
        return self.folder / f"part-{index:06}.parquet"

    def _told(self, index: int) -> Path:
        return self.folder / "rejected" / f"_part-{index:06}.jsonl"

    def write(self, index: int, table: pa.Table, rejected: pa.Table) -> None:
        """The window, on the disk when this returns. Raises `OSError` naming the file."""
        import pyarrow.parquet as pq

        rows, files = rejected.to_pylist(), [self.part(index)]
        if rows:
            files = [self._told(index), *files]  # renamed in this order
            files[0].parent.mkdir(exist_ok=True)
        with replacing_all(files) as streams:
            for row in rows:
                streams[0].write(json.dumps(row).encode() + b"\n")
            pq.write_table(table, streams[-1], compression="zstd")

    def rejected(self) -> int:
        """How many rows were rejected in all windows."""
        files = (self.folder / "rejected").glob("_part-*.jsonl")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def rows(self, windows: int, size: int) -> int:
        """How many rows the windows have; all but the last one are full."""
        import pyarrow.parquet as pq

        return (windows - 1) * size + pq.read_metadata(self.part(windows - 1)).num_rows


def check_same(folder: object, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises `UnsupportedError` where a folder was begun with something else."""
    wanted = json.loads(json.dumps(asked))
    for key in {**known, **wanted}.keys() - {"complete"}:
        if known.get(key) != wanted.get(key):
            was, now = (_short(each.get(key)) for each in (known, wanted))
            raise UnsupportedError(
                f"{folder}: was begun with {key} {was}, now it is {now}; go on as it was begun, or"
                " take another folder"
            )


_PART = re.compile(r"part-(\d{6})\.parquet")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:76]} ..."
