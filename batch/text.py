"""Rows of JSON lines and CSV: a row that cannot be read is told, and the others go on."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from io import BufferedReader
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from onernn.batch.columns import array_of
from onernn.batch.files import CODECS, Files
from onernn.core.errors import ModelFormatError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1024
_SAMPLE = 1000
"""Rows that tell the columns and their types."""
_LONGEST = 2**28  # bytes of a line

Record = bytes | list[str] | csv.Error


class TextRows:
    """The rows of text files. Columns and types are those of the first rows.

    What does not fit them is a bad row. Columns of CSV that are inputs stay text, which the model's
    input reads.
    """

    def __init__(self, files: Files, inputs: Collection[str], wanted: list[str] | None) -> None:
        self._files, self._inputs, self._wanted = files, inputs, wanted
        self._separator = {"csv": ",", "tsv": "\t"}.get(files.format)
        self.schema = self._schema()
        self.columns = self.schema.names

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        found: dict[str, list[Any]] = {}
        with closing(self._records()) as records:
            for record, names, _ in islice(records, _SAMPLE):
                if not isinstance(row := self._row(record, names), str):
                    for name, value in row.items():
                        found.setdefault(name, []).append(value)
        if not found:
            raise UnsupportedError(f"{self._files.paths[0]}: there are no rows that can be read")
        if missing := [name for name in self._wanted or () if name not in found]:
            raise ShapeError(f"there is no column {missing[0]!r}; the columns are {[*found]}")
        names = self._wanted or list(found)
        return pa.schema([(name, self._type(name, found[name])) for name in names])

    def _type(self, name: str, values: list[Any]) -> pa.DataType:
        import pyarrow as pa

        if self._separator is None:
            return array_of(values, {}).type
        if name not in self._inputs and any(values):
            for kind, number in ((pa.int64(), int), (pa.float64(), float)):
                if all(map(_reads_as(number), filter(None, values))):
                    return kind
        return pa.string()

    def chunks(self, start: int) -> Iterator[Any]:
        from onernn.batch.sources import Chunk

        with closing(self._records()) as records:
            yield Chunk(self.schema.empty_table(), {}, 0.0)
            for _ in islice(records, start):
                pass
            while some := list(islice(records, _CHUNK)):
                bad: dict[int, str] = {}
                rows = []
                for at, (record, names, _) in enumerate(some):
                    row = self._row(record, names)
                    if isinstance(row, str):
                        bad[at], row = row, {}
                    elif self._wanted is None and (more := row.keys() - set(self.schema.names)):
                        told = f"none of the first {_SAMPLE:,} rows has"
                        bad[at] = f"it has the column {min(more)!r}, which {told}"
                    rows.append(row)
                yield Chunk(self._table(rows, bad), bad, some[-1][2])

    def _table(self, rows: list[dict[str, Any]], bad: dict[int, str]) -> pa.Table:
        import pyarrow as pa

        columns = []
        for field in self.schema:
            values = [row.get(field.name) for row in rows]
            if self._separator and not pa.types.is_string(field.type):
                number = int if pa.types.is_integer(field.type) else float
                values = [_typed(value, number) for value in values]
            misfits: dict[int, str] = {}
            columns.append(array_of(values, misfits, field.type))
            for row, why in misfits.items():
                bad.setdefault(row, f"column {field.name!r}: {why}")
        return pa.table(columns, schema=self.schema)

    def _row(self, record: Record, names: list[str]) -> dict[str, Any] | str:
        """The values by column, or why there are none."""
        if isinstance(record, csv.Error):
            return f"no CSV: {record}"
        if isinstance(record, list):
            if len(record) != len(names):
                return f"expected {len(names)} cells, got {len(record)}"
            try:
                "".join(record).encode()
            except UnicodeEncodeError:
                return "no UTF-8"
            return dict(zip(names, record, strict=True))
        try:
            row = json.loads(record)
        except (ValueError, RecursionError) as error:
            return f"no JSON: {error or type(error).__name__}"
        return row if isinstance(row, dict) else f"expected an object, got {str(row)[:40]!r}"

    def _records(self) -> Generator[tuple[Record, list[str], float], None, None]:
        """Each record with its file's columns, of CSV, and how much of all bytes was read."""
        whole, before = sum(self._files.sizes) or 1, 0
        for path, size in zip(self._files.paths, self._files.sizes, strict=True):
            with self._files.system.open_input_file(path) as raw:
                names: list[str] = []
                records: Any = filter(bytes.strip, _lines(raw, path))
                if self._separator:
                    records = _cells(_lines(raw, path), self._separator)
                    names = next(records, [])
                    if not isinstance(names, list) or len({*names}) < len(names):
                        raise ModelFormatError(f"expected the names of columns, got {names}", path)
                for record in records:
                    yield record, names, (before + min(raw.tell(), size)) / whole
            before += size


def _lines(raw: Any, path: str) -> Iterator[bytes]:
    import pyarrow as pa

    if codec := CODECS.get(PurePosixPath(path).suffix.lower()):
        raw = pa.CompressedInputStream(raw, codec)
    reader, first = BufferedReader(raw), True
    while line := reader.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise ModelFormatError(f"a line of {_LONGEST:,} bytes or more", path)
        yield line.removeprefix(codecs.BOM_UTF8) if first else line
        first = False


def _cells(lines: Iterator[bytes], separator: str) -> Iterator[list[str] | csv.Error]:
    """The records, those with an error in them, too; empty lines are none."""
    csv.field_size_limit(_LONGEST)
    texts = (line.decode(errors="surrogateescape") for line in lines)
    reader = csv.reader(texts, delimiter=separator, strict=True)
    while True:
        try:
            record = next(reader, None)
        except csv.Error as error:
            yield error
            continue
        if record is None:
            return
        if record:
            yield record


def _reads_as(number: type) -> Callable[[str], bool]:
    """Whether a cell is such a number; 007 is a name."""
    more = "" if number is int else r"(\.\d*)?(e[+-]?\d+)?"
    pattern = re.compile(rf"-?(0|[1-9]\d{{0,17}}){more}", re.IGNORECASE)
    return lambda cell: pattern.fullmatch(cell) is not None


def _typed(cell: str | None, number: type) -> Any:
    """The number, None for an empty cell, or the text where it is none."""
    try:
        return number(cell) if cell else None
    except ValueError:
        return cell
