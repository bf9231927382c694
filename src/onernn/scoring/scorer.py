"""Scores the rows of a table, in batches of rows with similar lengths. A row that cannot be scored
gets a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from onernn.engine.session import Session
from onernn.fuse_passes import Pass
from onernn.fuse_passes.ragged_inputs import LENGTHS, padded_inputs, with_ragged_inputs
from onernn.fuse_passes.row_independence import Independence, independence
from onernn.ir.arrays import Int64
from onernn.ir.budget import STEPS
from onernn.ir.errors import LibraryError, OnernnError, ShapeError, UnsupportedError, did_you_mean
from onernn.ir.files import is_compiled
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.scoring.columns import Column, OpenTypeError, Result, batch_size, parse_type

WORDS = 20_000
"""Maximum number of steps of a batch. The kernels are fast with so many steps, and the values of
the batch take little memory.
"""
REJECTED = "rejected"
"""The column with the reason why a row was not scored. It is null for all scored rows."""
_SPARSE = 100
"""If rows may depend on each other, one in this many rows also runs by itself, to compare results.
"""
_CLOSE, _NEAR = 1e-3, 0.05
"""Largest allowed differences between a row's outputs by itself and in a batch, relative to the
largest value, for float32 and for narrower dtypes. Rounding causes smaller differences. If rows
depend on each other, the differences are far larger."""


class Scorer:
    """A model that scores tables: see `__call__`. A scorer can be pickled.

    ``model``: a `Session`, or a model, for which the arguments from ``dtype`` on are the options of
    `Session`. ``inputs``: the column of each input; by default a column with the input's name.
    ``outputs``: the column of each output; by default each output gets a column with its name.
    Outputs that are not listed are left out. ``words``: the maximum number of steps of a batch; a
    row with more steps is a batch by itself. ``batch_axis``: the axis of dense inputs and outputs
    that counts rows, as one integer for all of them or by name. An array with fewer axes has its
    rows on the last axis. For most outputs the graph shows the axis, and ``batch_axis`` is not
    used. ``types``: the types of the outputs' columns by output, as pyarrow's types or as names
    such as "list<float>". If the model leaves the type of an output open, and no row was scored
    yet, this output needs a type. ``keep``: the columns of the table that the result keeps, before
    the outputs; by default all.

    Raises `ShapeError` for names that the model does not have, and if two outputs have the same
    column. Raises `UnsupportedError` for a compiled file.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> import pyarrow as pa
    >>> from onernn.scoring import Scorer
    >>> Scorer(model)(pa.table({"x": [[-1.0, 2.0]]})).to_pydict()
    {'x': [[-1.0, 2.0]], 'y': [[0.0, 2.0]], 'rejected': [None]}
    """

    def __init__(
        self,
        model: Session | Graph | str | Path,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        *,
        words: int = WORDS,
        batch_axis: int | Mapping[str, int] = 0,
        types: Mapping[str, Any] | None = None,
        keep: Collection[str] | None = None,
        dtype: str = "f32",
        threads: int | None = None,
        backend: str = "auto",
        strict: bool = False,
        passes: tuple[Pass, ...] | None = None,
        max_bytes: int | None = None,
        max_steps: int = STEPS,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        if is_compiled(model):
            raise UnsupportedError(
                f"{model}: a compiled file does not say which rows its outputs belong to; pass the"
                " model that it was compiled from"
            )
        if not isinstance(model, Session):
            model = Session(
                model,
                dtype,
                threads,
                backend,
                strict,
                passes=passes,
                max_bytes=max_bytes,
                max_steps=max_steps,
                rules=rules,
            )
        self.session = model
        graph = self.session.graph
        self._words = words
        self.keep = None if keep is None else [*dict.fromkeys(keep)]
        self._tolerance = _NEAR if any(e.dtype != "f32" for e in self.session.explained) else _CLOSE
        names = {value.name: value.name for value in graph.inputs}
        self.columns = names | _check_known(inputs or {}, names, "input")
        names = {value.name: value.name for value in graph.outputs}
        self.outputs = names if outputs is None else _check_known(outputs, names, "output")
        for name, times in Counter([*self.outputs.values(), REJECTED]).items():
            if times > 1:
                raise ShapeError(f"outputs: expected different columns, got column {name!r} twice")
        border = {value.name: value.shape for value in (*graph.inputs, *graph.outputs)}
        if isinstance(batch_axis, int):
            batch_axis = dict.fromkeys(border, batch_axis)
        self.axes = dict.fromkeys(border, 0) | _check_known(batch_axis, border, "input or output")
        for name, shape in border.items():
            if shape and self.axes[name] >= len(shape):
                self.axes[name] = len(shape) - 1
        self._fixed = _find_fixed_rows(graph.inputs, self.axes)
        self._types = {
            name: parse_type(kind)
            for name, kind in _check_known(types or {}, self.outputs, "output").items()
        }
        self._known: dict[tuple[Value, ...], tuple[Independence, list[Result]]] = {}
        if any(layer.layer.mixes_rows for layer in self.session.layers.values()):
            self.session = self.session.with_graph(graph, rows_apart=True)

    def __call__(
        self, rows: pa.Table | pa.RecordBatch, known_bad: Mapping[int, str] | None = None
    ) -> pa.Table:
        """Returns a table of the same rows in the same order: the kept columns, the outputs, and
        the column `REJECTED`. Columns that are not inputs may have any type.

        A column of scalars is an array of the shape (N,). Lists are sequences if the input is
        ragged; otherwise each level of lists is an axis. Nothing is padded: rows of a dense input
        with different sizes run in separate batches. A row that cannot be scored has null outputs.
        ``known_bad``: reasons to reject rows, by the row's number.

        Raises `ShapeError` if a column is missing, or if its type does not fit the input. Raises
        `UnsupportedError` if an output does not have one entry per row, or if the outputs of a row
        depend on the other rows of its batch. Also raises `UnsupportedError` if the type of an
        output is not known and no row was scored.
        """
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        self.check_columns(table.column_names)
        count = table.num_rows
        columns = {
            value.name: Column(value, name, table.column(name), self.axes[value.name])
            for value in self.session.graph.inputs
            for name in [self.columns[value.name]]
        }
        known, results = self._results_for(tuple(column.value for column in columns.values()))
        bad = dict(known_bad or {})
        for name, column in columns.items():
            for row, reason in column.bad.items():
                bad.setdefault(row, f"column {self.columns[name]!r}: {reason}")
        for one, other in known.same_lengths:
            names = f"columns {self.columns[one]!r} and {self.columns[other]!r}"
            for row in np.flatnonzero(columns[one].lengths_differ(columns[other])).tolist():
                bad.setdefault(row, f"{names}: sequences of different lengths")
        places: list[Int64] = [np.zeros(0, np.int64)]
        outputs: list[list[Batch]] = [[] for _ in results]
        for batch in self._batches(columns, bad, count, bool(known.doubt)):
            for rows, values in self._run(columns, batch, bad, known, results):
                places.append(rows)
                for into, output in zip(outputs, values, strict=True):
                    into.append(output)
        where = np.concatenate(places)
        if self.keep is not None:
            table = table.select(self.keep)
        for result, batches in zip(results, outputs, strict=True):
            try:
                array = result.array(batches, where, count, self._types.get(result.name))
            except OpenTypeError as error:
                why = f"; row {min(bad)} was rejected: {bad[min(bad)]}" if bad else ""
                raise OpenTypeError(f"{error}{why}") from error
            table = table.append_column(self.outputs[result.name], array)
        reasons = [bad.get(row) for row in range(count)]
        return table.append_column(REJECTED, pa.array(reasons, pa.string()))

    def check_columns(self, names: Collection[str]) -> None:
        """Raises `ShapeError` if needed columns are missing, or if kept columns have the names of
        the outputs' columns.

        If the lengths of a padded input have no column, later calls read the input from a column of
        lists with different lengths.
        """
        graph = self.session.graph
        ragged = [n for n in padded_inputs(graph) if self.columns[n + LENGTHS] not in names]
        if ragged := [n for n in ragged if self.columns[n] in names]:
            for name in ragged:
                del self.columns[name + LENGTHS]
            self.session = self.session.with_graph(with_ragged_inputs(graph, ragged))
            self._known.clear()
        for name, column in self.columns.items():
            if column not in names:
                raise ShapeError(
                    f"input {name!r}: expected column {column!r}, got {[*names]}; pass its column"
                    f" (inputs={{{name!r}: COLUMN}}, --input {name}=COLUMN)"
                )
        kept = names if self.keep is None else self.keep
        if missing := [name for name in kept if name not in names]:
            raise ShapeError(f"column {missing[0]!r}: expected one of {[*names]}")
        if taken := {*self.outputs.values(), REJECTED}.intersection(kept):
            raise ShapeError(
                f"column {min(taken)!r} exists already: leave it out (keep=, --keep), or rename"
                " the output (outputs={NAME: COLUMN}, --output NAME=COLUMN)"
            )

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Returns the schema of `__call__`'s result for tables with these columns. Raises the
        errors of `__call__` for a table without rows.
        """
        return self(pa.Table.from_batches([], columns)).schema

    def expect(self, schema: pa.Schema) -> None:
        """Sets the types of outputs, if unknown, to their types in a table that was scored before.

        ``schema``: the schema of this table.
        """
        for name, column in self.outputs.items():
            # The names inside of a list must be the first run's names, not Parquet's.
            self._types.setdefault(name, parse_type(str(schema.field(column).type)))

    def _results_for(self, inputs: tuple[Value, ...]) -> tuple[Independence, list[Result]]:
        """Returns whether the rows of a batch are independent, and a `Result` for each output.

        ``inputs``: the model's inputs with the dtypes and axes of their columns. Raises
        `UnsupportedError` if the model certainly combines the rows of a batch.
        """
        if inputs not in self._known:
            graph = replace(self.session.graph, inputs=inputs)
            called = {batch_size(value, self.axes[value.name]) for value in inputs} - {None}
            results = [
                Result(graph, value, called, self.axes[value.name])
                for value in graph.outputs
                if value.name in self.outputs
            ]
            known = independence(graph, self.axes, [each.name for each in results])
            if (self._fixed or self._words) == 1:  # no batch has more than one row
                known = Independence({}, frozenset())
            self._known[inputs] = known, results
        known, results = self._known[inputs]
        if known.certain:
            raise _dependent(known.doubt)
        return known, results

    def _batches(
        self, columns: Mapping[str, Column], bad: Mapping[int, str], count: int, doubted: bool
    ) -> Iterator[Int64]:
        """Yields batches, as indices of rows. The rows of a batch have equal shapes and similar
        lengths, and together at most the scorer's maximum number of steps.

        ``count``: the number of rows of the table. ``doubted``: whether rows may depend on each
        other. If so, a row whose ragged inputs have different lengths runs by itself. Together, two
        such rows could have equally many steps in both inputs, and an operator would combine steps
        of different rows without an error.
        """
        if not count:
            return
        inputs = list(columns.values())
        shapes = np.concatenate(
            [np.zeros((count, 1), np.int64), *(c.shapes for c in inputs)], axis=1
        )
        words = np.max([np.ones(count, np.int64), *(c.words for c in inputs)], axis=0)
        order = np.lexsort((words, *shapes.T))
        order = order[~np.isin(order, list(bad))]
        new = np.ones(len(order), bool)
        new[1:] = (shapes[order][1:] != shapes[order][:-1]).any(axis=1)
        if doubted:
            ragged = [column for column in inputs if column.value.lod_depth]
            differs = [one.lengths_differ(other) for one, other in pairwise(ragged)]
            apart = np.any([np.zeros(count, bool), *differs], axis=0)[order]
            new |= apart
            new[1:] |= apart[:-1]
        start = taken = 0
        for index, row in enumerate(order):
            full = taken + words[row] > self._words or index - start == self._fixed
            if index > start and (new[index] or full):
                yield order[start:index]
                start, taken = index, 0
            taken += words[row]
        if len(order):
            yield order[start:]

    def _run(
        self,
        columns: Mapping[str, Column],
        rows: Int64,
        bad: dict[int, str],
        known: Independence,
        results: list[Result],
    ) -> Iterator[tuple[Int64, list[Batch]]]:
        """Runs a batch, and yields rows with their outputs. If the model refuses the batch, each
        half runs by itself, until one row is left. This row is added to ``bad``.
        """
        try:
            outputs = self._outputs_of(columns, rows, known, results)
        except _Refused as error:
            if len(rows) == 1:
                empty = [self.columns[n] for n, each in columns.items() if not each.filled[rows[0]]]
                why = f"column {empty[0]!r} has no steps: " if empty else ""
                bad[int(rows[0])] = f"{why}{error}"
                return
            for half in np.array_split(rows, 2):
                yield from self._run(columns, half, bad, known, results)
            return
        if known.doubt and len(rows) > 1:
            self._check_sample(columns, rows, outputs, known, results)
        yield rows, outputs

    def _outputs_of(
        self,
        columns: Mapping[str, Column],
        rows: Int64,
        known: Independence,
        results: list[Result],
    ) -> list[Batch]:
        count = self._fixed or len(rows)
        filled = np.concatenate([rows, np.repeat(rows[-1:], count - len(rows))])
        try:
            outputs = self.session.run({n: column.batch(filled) for n, column in columns.items()})
        except LibraryError:
            raise
        except OnernnError as error:
            raise _Refused(str(error)) from error
        arrays = (
            result.by_rows(outputs[result.name], count, known.axes.get(result.name))
            for result in results
        )
        return [_cut(each, 0, len(rows)) for each in arrays]

    def _check_sample(
        self,
        columns: Mapping[str, Column],
        rows: Int64,
        outputs: list[Batch],
        known: Independence,
        results: list[Result],
    ) -> None:
        """Runs some rows of a batch one at a time, and compares the outputs with the outputs of the
        batch.

        Raises `UnsupportedError` if the outputs of a row differ. Empty rows are not compared.
        """
        filled = np.all([column.filled[rows] for column in columns.values()], axis=0)
        indices = np.flatnonzero(filled)
        chosen = np.linspace(0, len(indices) - 1, min(3 + len(rows) // _SPARSE, len(indices)))
        for index in map(int, indices[np.unique(chosen.astype(int))]):
            row = f"row {rows[index]}"
            try:
                single = self._outputs_of(columns, rows[index : index + 1], known, results)
            except _Refused as error:
                raise _dependent(f"{known.doubt}; {row} runs only in a batch: {error}") from error
            for result, one, all_of in zip(results, single, outputs, strict=True):
                if _differ(one, _cut(all_of, index, index + 1), self._tolerance):
                    raise _dependent(
                        f"{known.doubt}; {row} by itself has different values of {result.name!r}"
                    )


class _Refused(Exception):
    """An error of the model for a batch of rows."""


def _dependent(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"the rows of a batch change each other's results: {why}. Pass the inputs' axis of rows"
        " (batch_axis=, --batch-axis), or score each row by itself (words=1, --words 1)"
    )


def _cut(batch: Batch, first: int, last: int) -> Batch:
    if not isinstance(batch, Ragged):
        return batch[first:last]
    levels = []
    for level in (*batch.outer, batch.offsets):
        levels.append(level[first : last + 1] - level[first])
        first, last = int(level[first]), int(level[last])
    return Ragged(batch.data[first:last], levels[-1], tuple(levels[:-1]))


def _differ(alone: Batch, together: Batch, tolerance: float) -> bool:
    """Returns whether values differ by more than rounding. Integers must be equal."""
    one, other = data_of(alone), data_of(together)
    if one.shape != other.shape or one.dtype.kind != "f":
        return not np.array_equal(one, other)
    if not one.size:
        return False
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return True
    one, other = (np.nan_to_num(each.astype(np.float64)) for each in (one, other))
    return bool(np.abs(one - other).max() > tolerance * max(np.abs(one).max(), 1e-3))


T = TypeVar("T")


def _check_known(named: Mapping[str, T], names: Collection[str], what: str) -> dict[str, T]:
    for name in named:
        if name not in names:
            hint = did_you_mean(name, names)
            raise ShapeError(f"{what} {name!r}: expected one of {', '.join(names)}{hint}")
    return dict(named)


def _find_fixed_rows(inputs: Sequence[Value], axes: Mapping[str, int]) -> int | None:
    """Returns the number of rows of a batch if the model fixes it, None otherwise.

    Raises `UnsupportedError` if an input has no axis of rows, or if inputs fix different numbers.
    """
    result: set[int] = set()
    for value in inputs:
        if value.lod_depth or value.shape is None:
            continue
        axis = axes[value.name]
        if axis >= len(value.shape):
            raise UnsupportedError(
                f"input {value}: expected an axis {axis} for rows; pass batch_axis=, --batch-axis"
            )
        if (size := value.shape[axis]) is not None:
            result.add(size)
    if len(result) > 1:
        raise UnsupportedError(
            f"inputs {'; '.join(map(str, inputs))}: expected one number of rows, got"
            f" {sorted(result)}; pass their axes of rows (batch_axis=, --batch-axis)"
        )
    return result.pop() if result else None
