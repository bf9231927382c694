"""The command that scores a corpus."""

from __future__ import annotations

import json as json_text
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from onernn.adapters.loading import load
from onernn.core.budget import STEPS
from onernn.core.errors import UnsupportedError
from onernn.options import Backend, Dtype, Json, MaxBytes, MaxSteps, Model, Params, Semantics
from onernn.showing import complain, errors_as_json, stdout

if TYPE_CHECKING:
    from onernn.batch import scoring


def score(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file, folder, glob or URI: Parquet, JSON lines, CSV, Arrow, ORC or recordings.",
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT", help="The folder of Parquet files to write; Ray: or a URI."
        ),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COLUMN, where the column has another name; repeatable."),
    ] = None,
    output_column: Annotated[
        list[str] | None,
        typer.Option("--output", help="NAME=COLUMN, only these outputs; repeatable."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to keep; all by default. Repeatable.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Of the input, where names of files do not tell it.")
    ] = None,
    words: Annotated[int, typer.Option(min=1, help="Words of a batch, at most.")] = 20_000,
    window: Annotated[int, typer.Option(min=1, help="Rows of an output file.")] = 4096,
    workers: Annotated[
        int | None, typer.Option(min=1, show_default="one a core", help="Processes.")
    ] = None,
    batch_axis: Annotated[
        list[str] | None,
        typer.Option(help="AXIS or NAME=AXIS of dense inputs' and outputs' rows; repeatable."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: the cluster at RAY_ADDRESS or on this machine.")
    ] = "local",
    id: Annotated[
        str | None,
        typer.Option(help="Ray: a column of values that differ; Parquet needs none."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    json: Json = False,
    dtype: Dtype = "f32",
    backend: Backend = "auto",
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = STEPS,
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Scores the rows of INPUT with MODEL into the folder OUTPUT.

    Rows keep their order; outputs are further columns. Killed and started again, it goes on. Rows
    that cannot be scored have no outputs, and OUTPUT/rejected tells why. On Ray rows come in any
    order.
    """
    with errors_as_json(json), _ended_by_signals():
        with _on(engine, id, quiet or json) as run:
            found = run(
                load(model, params, semantics),
                corpus,
                output,
                inputs=_pairs("--input", input),
                outputs=_pairs("--output", output_column) if output_column else None,
                keep=keep,
                format=format,
                words=words,
                window=window,
                workers=workers,
                batch_axis=_axes(batch_axis),
                strict=strict,
                dtype=dtype,
                backend=backend,
                max_bytes=max_bytes,
                max_steps=max_steps,
            )
    speed = found.words / max(found.seconds, 1e-9)
    if json:
        told_as = {**found._asdict(), "words_per_second": speed, "output": str(output)}
        print(json_text.dumps(told_as))
    elif not quiet:
        went_on = f", {found.windows_before:,} of them before" if found.windows_before else ""
        stdout().print(
            f"{output}: rows {found.rows:,}, files {found.windows:,}{went_on};"
            + (
                f" {found.words:,} words in {found.seconds:,.1f} s, {speed:,.0f} a second"
                if found.words
                else f" {found.seconds:,.1f} s"
            )
        )
        if found.rejected:
            stdout().print(f"rows rejected: {found.rejected:,}, see {output}/rejected")


@contextmanager
def _on(engine: str, id: str | None, hidden: bool) -> Iterator[Callable[..., scoring.Summary]]:
    """What scores on an engine, while its progress is shown."""
    from onernn.batch import scoring

    match engine:
        case "local":
            if id is not None:
                raise UnsupportedError("--id is for --engine ray: here rows are known by numbers")
            with _bar(hidden) as told:
                yield partial(scoring.score, progress=told)
        case "ray":
            from onernn.batch.ray_scoring import score_on_ray

            yield partial(score_on_ray, id=id, show_progress=not hidden)
        case _:
            raise UnsupportedError(f"--engine {engine}: expected local or ray")


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """NAME=VALUE; names of values hold = in no framework, columns may."""
    pairs = [each.partition("=") for each in given or ()]
    if wrong := [name for name, equals, value in pairs if not (name and equals and value)]:
        raise UnsupportedError(f"{option}: expected NAME=COLUMN, got {wrong[0]!r}")
    return {name: value for name, _, value in pairs}


def _axes(given: list[str] | None) -> int | dict[str, int]:
    try:
        if given and len(given) == 1 and "=" not in given[0]:
            return int(given[0])
        return {name: int(axis) for name, axis in _pairs("--batch-axis", given).items()}
    except ValueError as error:
        raise UnsupportedError(f"--batch-axis: {error}") from error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end workers, and leave what a second start goes on with."""

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise _Stopped(number)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Stopped as stopped:
        complain("stopped; the same command goes on where it ended")
        raise typer.Exit(128 + stopped.number) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _bar(hidden: bool) -> Iterator[Callable[[scoring.Progress], None]]:
    """Rows, words a second and the time left, on a terminal's stderr."""
    console = Console(stderr=True)
    columns: tuple[Any, ...] = (
        BarColumn(),
        TextColumn("{task.percentage:.0f}%  {task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    shown = console.is_terminal and not hidden
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=1.0)

        def tell(found: scoring.Progress) -> None:
            refused = f", {found.rejected:,} rejected" if found.rejected else ""
            speed = found.words / max(found.seconds, 1e-9)
            told = f"{found.rows:,} rows{refused}  {speed:,.0f} words/s"
            bar.update(task, completed=found.share, description=told)

        yield tell
