"""The command line. Exit 0: done; 1: a comparison failed; 2: cannot run, one message on stderr."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onernn.adapters.loading import load
from onernn.adapters.naming import native_pass
from onernn.core.errors import LibraryError, OnernnError
from onernn.core.graph import Graph
from onernn.fuse_passes import fuse
from onernn.runtime.session import Session, unsupported
from onernn.verification.recording import read_arrays, read_inputs, write_outputs
from onernn.verification.verifying import error_json, verify

app = typer.Typer(
    help="Recurrent models of Paddle, without Paddle, on oneDNN.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Model = Annotated[str, typer.Argument(help="A Paddle folder, .pdmodel or __model__.")]
Params = Annotated[str | None, typer.Option(help="Parameters that are not beside the model.")]
Semantics = Annotated[str, typer.Option(help="documented, or mxnet-cpu.")]
Dtype = Annotated[str, typer.Option(help="How recurrent layers compute: f32, bf16, f16 or u8.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the backend.")]
Backend = Annotated[str, typer.Option(help="onednn, or reference (NumPy).")]


@app.command()
def run(
    model: Model,
    input: Annotated[Path, typer.Option(help="An .npz with in__NAME and lod__NAME.")],
    output: Annotated[Path, typer.Option(help="The .npz to write, with out__NAME.")],
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "onednn",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Runs MODEL on recorded inputs and writes its outputs."""
    graph = _load(model, params, semantics)
    inputs = read_inputs(read_arrays(input), graph.inputs, str(input))
    session = Session(graph, dtype=dtype, threads=threads, backend=backend)
    write_outputs(output, session.run(inputs))


@app.command("verify")
def verify_command(
    model: Model,
    data: Annotated[Path, typer.Option(help="A recording: inputs and expected outputs.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance.")] = None,
    rtol: Annotated[float | None, typer.Option(help="Tolerance relative to max|ref|.")] = None,
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "onednn",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Runs MODEL on a recording and compares the outputs. Exit 1 where they differ."""
    try:
        graph = _load(model, params, semantics)
        options = {"threads": threads, "backend": backend}
        report = verify(graph, data, dtype=dtype, atol=atol, rtol=rtol, **options)
    except (OnernnError, OSError, ValueError) as error:
        if json:
            print(error_json(error))
        raise
    if json:
        print(report.to_json())
    else:
        table = Table("output", "verdict", "max abs", "max rel", "reason")
        for each in report.outputs:
            verdict = "pass" if each.passed else "FAIL"
            table.add_row(
                each.name, verdict, f"{each.max_abs:.3g}", f"{each.max_rel:.3g}", each.reason
            )
        _console().print(table)
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def inspect(
    model: Model,
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "onednn",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Shows MODEL's operators before and after fusion, what fused, what did not and why."""
    graph = _load(model, params, semantics)
    result = fuse(graph)
    console = _console()
    console.print(f"[bold]{graph.name}[/bold]", highlight=False)
    for title, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        _section(console, title, map(str, values))

    before, after = (Counter(node.op for node in g.nodes) for g in (graph, result.model))
    table = Table("operator", "before", "after", title="operators", title_justify="left")
    for op in sorted(before | after):
        table.add_row(op, str(before[op]), str(after[op]))
    console.print(table)

    fired = [
        f"{each.name} -> {each.where}: {'+'.join(op.type for op in each.origin)}"
        + (f" ({name})" if (name := native_pass(each)) else "")
        for each in result.applied
    ]
    _section(console, "fused", fired)
    _section(console, "not fused", map(str, result.refusals))
    refusals = unsupported(result.model)
    _section(console, "unsupported", map(str, refusals))
    if not refusals:
        try:
            session = Session(graph, dtype=dtype, threads=threads, backend=backend)
            _section(console, "kernels", map(str, session.explained))
        except LibraryError as error:
            _section(console, "kernels", [f"unknown: {error}"])
    _section(console, "notes", graph.notes)


def _load(model: str, params: str | None, semantics: str) -> Graph:
    return load(model, params, semantics)  # type: ignore[arg-type]


def _console() -> Console:
    # In a pipe nothing is wrapped: lines stay whole for grep.
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=200)


def _section(console: Console, title: str, lines: object) -> None:
    listed = list(lines)  # type: ignore[call-overload]
    if listed:
        console.print(f"[bold]{title}[/bold]")
        for line in listed:
            console.print(f"  {line}", markup=False, highlight=False)


def main() -> None:
    """Runs the command line; every error is one message on stderr and exit 2."""
    try:
        app()
    except (OnernnError, OSError, ValueError, MemoryError) as error:
        print(f"onernn: {error or type(error).__name__}", file=sys.stderr)
        sys.exit(2)
