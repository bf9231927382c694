"""The command that scores a corpus."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from onernn.adapters.loading import load
from onernn.commands import (
    Backend,
    Dtype,
    Json,
    MaxBytes,
    MaxSteps,
    Model,
    Params,
    Rules,
    Semantics,
    one_of,
    pairs,
)
from onernn.ir.budget import STEPS
from onernn.showing import complain, counted, hide_bar, progress, show_json, show_written


def score(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="A file, folder or URI of Parquet or JSON lines."),
    ],
    output: Annotated[
        str,
        typer.Argument(metavar="OUTPUT", help="A folder or URI for the Parquet files."),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN", help="The column of an input, if it has a different name."
        ),
    ] = None,
    output_column: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME=COLUMN",
            help="An output of MODEL to write, and its column. Without it, all outputs are written."
            " Here -o names no file: the folder is the argument OUTPUT.",
        ),
    ] = None,
    output_type: Annotated[
        list[str] | None,
        typer.Option(
            "--output-type",
            metavar="NAME=TYPE",
            help="The type of an output, if the model leaves it open.",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column to keep; without it, all are kept."),
    ] = None,
    words: Annotated[
        int, typer.Option(metavar="N", min=1, help="The maximum number of steps in a batch.")
    ] = 20_000,
    window: Annotated[
        int, typer.Option(metavar="N", min=1, help="The number of rows in an output file.")
    ] = 4096,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default="one per core", help="The number of threads."
        ),
    ] = None,
    batch_axis: Annotated[
        int, typer.Option(metavar="N", min=0, help="The axis of rows in dense inputs and outputs.")
    ] = 0,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="local scores rows on this machine, ray on the nodes of Ray's cluster.",
            autocompletion=one_of(("local", "ray")),
        ),
    ] = "local",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a row that is rejected.")
    ] = False,
    rejected: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="A folder for the file, line, reason and text of rejected rows."
        ),
    ] = None,
    accept_input: Annotated[
        bool,
        typer.Option("--accept-input", help="Score windows again whose rows changed in INPUT."),
    ] = False,
    json: Json = False,
    dtype: Dtype = "f32",
    backend: Backend = "auto",
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = STEPS,
    params: Params = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
) -> None:
    """Scores the rows of INPUT with MODEL into the folder OUTPUT.

    Rows keep their order, and the outputs become further columns. If the command is killed, type it
    again to continue. A row that cannot be scored has no outputs, and its column "rejected" says
    why.
    """
    from onernn.scoring import score
    from onernn.scoring.runner import stop
    from onernn.scoring.systems import shown

    with _stop_on_signals(stop), progress() as tell:
        result = score(
            load(model, params, semantics, rules=rules),
            corpus,
            output,
            inputs=pairs("--input", "NAME=COLUMN", input),
            outputs=pairs("--output", "NAME=COLUMN", output_column) or None,
            types=pairs("--output-type", "NAME=TYPE", output_type),
            keep=keep,
            words=words,
            window=window,
            workers=workers,
            batch_axis=batch_axis,
            engine=engine,
            strict=strict,
            rejected=rejected,
            accept_input=accept_input,
            dtype=dtype,
            backend=backend,
            max_bytes=max_bytes,
            max_steps=max_steps,
            progress=_Rate(tell),
        )
    for each in result.repaired:
        complain(f"scored anew: {each}")
    output = shown(output)
    if json:
        show_json("pass", **result._asdict(), output=output)
    before = f" ({result.windows_before:,} from before)" if result.windows_before else ""
    contents = [counted(result.windows, "file") + before, counted(result.rows, "row")]
    if result.rejected:
        contents.append(f"{result.rejected:,} of them rejected (column 'rejected')")
    contents.append(f"{result.seconds:,.1f} s")
    files = [*Path(output).glob("*.parquet")]
    show_written(output, files, contents)
    if rejected:
        files = [*Path(rejected).glob("*.parquet")]
        show_written(shown(rejected), files, [counted(result.rejected, "rejected row")])


class _Rate:
    """A function that passes the progress of scoring to the progress bar: the number of rows, the
    rows per second in this run, and the share of finished rows.
    """

    def __init__(self, tell: Callable[[str, float, float], None]) -> None:
        self._tell, self._begun = tell, (0, 0.0)

    def __call__(self, rows: int, rejected: int, total: int) -> None:
        now = time.monotonic()
        if not self._begun[1]:  # called before the first window is scored
            self._begun = rows, now
        rate = (rows - self._begun[0]) / max(now - self._begun[1], 1e-3)
        text = f"{rows:,} rows, {rejected:,} rejected, {rate:,.0f} rows/s"
        self._tell(text, rows / total if total else 0, 1)


@contextmanager
def _stop_on_signals(tell: Callable[[], None]) -> Iterator[None]:
    """Makes Ctrl-C and SIGTERM end the process at once, after a call of ``tell``.

    The windows that were not finished are scored when the user types the same command again.
    """

    def stop(number: int, _: object) -> None:
        hide_bar()
        tell()
        complain("stopped; the same command continues from here")
        os._exit(128 + number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
