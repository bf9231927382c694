"""Commands from a model to a model or a page: convert, inspect, quantize, repair."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load, plugin_for
from onernn.adapters.registry import RUNTIMES, WRITERS
from onernn.commands import (
    AgainstParams,
    AllowFunctions,
    Atol,
    Backend,
    Dtype,
    ExposeStates,
    Given,
    Inputs,
    Json,
    Model,
    Opset,
    Params,
    Rtol,
    Seconds,
    Semantics,
    Threads,
    Typed,
    Written,
    numbers,
    pairs,
)
from onernn.engine.chunks import expose
from onernn.fuse_passes.joined_models import join
from onernn.ir.errors import UnsupportedError
from onernn.ir.files import COMPILED
from onernn.ir.graph import Graph
from onernn.showing import (
    complain,
    progress,
    section,
    show_inspection,
    show_json,
    show_report,
    stdout,
)
from onernn.verification.conversion import Repair, WrongFileError, convert, over_time, repair
from onernn.verification.inspecting import inspect_model, write_graph_page
from onernn.verification.references import open_against
from onernn.verification.verifying import SECONDS, Report, verify


def convert_command(
    model: Model,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help=f"The file to write; its suffix sets the format: {', '.join(WRITERS)}.",
        ),
    ],
    check: Annotated[
        Path | None, typer.Option(help="A recording that the written file must reproduce.")
    ] = None,
    opset: Opset = WRITERS[".onnx"].options["opset"],
    output_dtype: Annotated[
        str,
        typer.Option(help="The dtype in which weights are stored: float32, float16 or bfloat16."),
    ] = "float32",
    names: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW: rename an input or output; repeatable.")
    ] = None,
    allow_functions: AllowFunctions = False,
    place: Annotated[
        str,
        typer.Option(help="Where a .pdmodel runs: cpu, or onednn (use_mkldnn on fused layers)."),
    ] = "cpu",
    fused: Annotated[
        bool | None,
        typer.Option(help="In a .pdmodel, write recurrent layers as fusion_gru and fusion_lstm."),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--over-time",
            help="STATE=NEXT, an input and an output: turn a model of one frame into a model of"
            " sequences; every other input and output becomes (T, ...); repeatable.",
        ),
    ] = None,
    given: Given = None,
    inputs: Typed = None,
    expose_states: ExposeStates = False,
    json: Json = False,
    atol: Atol = None,
    rtol: Rtol = None,
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Writes MODEL as another framework's file.

    The file gets its name only if its outputs match those of MODEL, on generated inputs or the
    inputs of --check. Exit 1: they differ, and nothing is written.
    """
    graph = load(model, params, semantics)
    if states:
        from onernn.engine.emit.pipeline import read_declared  # with all of emit

        graph = over_time(
            graph,
            pairs("--over-time", "STATE=NEXT", states),
            given=numbers(graph, pairs("--given", "NAME=NUMBER", given)),
            inputs=read_declared(inputs or []),
        )
    elif given or inputs:
        raise UnsupportedError("--given and --input belong to --over-time")
    if expose_states:
        stepped = expose(graph)
        graph = stepped.graph
        for note in stepped.notes:
            complain(note)
    report = _convert(
        graph,
        out,
        check=check,
        atol=atol,
        rtol=rtol,
        names=pairs("--names", "OLD=NEW", names),
        output_dtype=output_dtype,
        opset=opset,
        allow_functions=allow_functions,
        place=place,
        fused=fused,
    )
    show_report(report, json)
    raise typer.Exit(0 if report.passed else 1)


def _convert(model: Graph, out: Path, **options: Any) -> Report:
    """Writes a model, and says why it is not written or not verified."""
    with progress() as tell:
        try:
            report = convert(model, out, progress=tell, note=complain, **options)
        except WrongFileError as error:
            complain(error)
            return error.report
    if report is not None and not report.passed:
        complain(f"{out} is not written: its outputs differ from those of the recording")
    return Report((), "") if report is None else report


# --- the command that writes a file which the library runs without Python


def compile_command(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help=f"The file to write, such as model{COMPILED}.")
    ],
    dtype: Dtype = "f32",
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            help="STATE=NEXT, an input and an output: what a step hands to the next; repeatable.",
        ),
    ] = None,
    expose_states: ExposeStates = False,
    given: Given = None,
    inputs: Typed = None,
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Writes MODEL as a file that programs in any language run with libonernn, without Python."""
    from onernn.engine.compiling import compile_model  # no other command's
    from onernn.engine.emit.pipeline import read_declared

    if output.suffix != COMPILED:
        raise UnsupportedError(f"{output}: the name of a compiled file ends in {COMPILED}")
    graph = load(model, params, semantics)
    notes = compile_model(
        graph,
        output,
        dtype=dtype,
        states=pairs("--state", "STATE=NEXT", states),
        expose_states=expose_states,
        given=numbers(graph, pairs("--given", "NAME=NUMBER", given)),
        inputs=read_declared(inputs or []),
    )
    for note in notes:
        complain(note)


# --- the command that puts this package's layers into a model for ONNX Runtime


def plug_command(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .onnx file to write.")],
    dtype: Dtype = "f32",
) -> None:
    """Writes MODEL for ONNX Runtime of any language, with recurrent layers of libonernn inside."""
    from onernn.adapters.common.live import stays
    from onernn.adapters.onnx.plugin import HOST, plug  # no other command's

    result = plug(model, output, dtype=dtype)
    for line in result.replaced:
        print(line)
    for refusal in result.refusals:
        complain(stays(HOST, refusal))


# --- the command that makes one model of several


def join_command(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="The models, in any order.")
    ],
    output: Written,
    opset: Opset = WRITERS[".onnx"].options["opset"],
    json: Json = False,
) -> None:
    """Writes models that feed each other as one: an output feeds the inputs of its name."""
    whole = join(*map(load, models))
    report = _convert(whole, output, opset=opset)
    if not report.passed:
        show_report(report, json)
        raise typer.Exit(1)
    if json:
        inputs, outputs = ([v.name for v in values] for values in (whole.inputs, whole.outputs))
        show_json("pass", inputs=inputs, outputs=outputs)


# --- the command that shows what a model is, and what becomes of it


def inspect_command(
    model: Model,
    html: Annotated[
        Path | None, typer.Option(help="The page to write: the graph before and after fusion.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open this page, or a temporary one, in the browser.")
    ] = False,
    json: Json = False,
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "auto",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Shows MODEL before and after fusion, and why layers did not fuse."""
    graph = load(model, params, semantics)
    result = inspect_model(graph, dtype=dtype, threads=threads, backend=backend)
    if open_page and html is None:
        html = Path(mkdtemp(prefix="onernn-")) / "graph.html"
    drawn = [] if html is None else [str(html)]
    if html is not None:
        write_graph_page(result, html)
    if json:
        show_json("pass", **result.as_json(), drawn=drawn)
    else:
        show_inspection(stdout(), result, plugin_for(graph) if result.unsupported else "")
        section(stdout(), "drawn", drawn)
    if open_page and html is not None:
        webbrowser.open(html.resolve().as_uri())


# --- the command that quantizes recurrent layers


def quantize_command(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .onnx to write.")],
    data: Annotated[
        list[Path],
        typer.Option(help="An .npz to calibrate with, with in__NAME and lod__NAME; repeatable."),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            help="'labels 0.1%', 'max_abs 0.02' or 'rmse 0.001'; without it all layers are u8."
        ),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            help="An .npz to measure the error with; else every other of --data; repeatable."
        ),
    ] = None,
    labels_of: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The output whose labels count; by default the only one, or the only one of"
            " integers.",
        ),
    ] = "",
    json: Json = False,
    opset: Opset = WRITERS[".onnx"].options["opset"],
    allow_functions: AllowFunctions = False,
    threads: Threads = 1,
    backend: Backend = "auto",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Writes MODEL with layers in u8, bf16 or f32, within a budget."""
    from onernn.verification.quantizing import quantize  # no other command's

    writer_for(out)
    graph = load(model, params, semantics)
    result = quantize(
        graph,
        data,
        budget=budget,
        held_out=held_out or None,
        labels_of=labels_of,
        backend=backend,
        threads=threads,
    )
    options: dict[str, Any] = {"opset": opset, "allow_functions": allow_functions}
    write_model(result.model, out, inputs=result.example, note=complain, **options)
    for note in result.notes:
        complain(note)
    if json:
        print(result.to_json())
        return
    section(stdout(), "layers", result.of_layers())
    section(stdout(), "whole model", [result.verdict])


# --- the command that removes the faults that `verify` proved


def repair_command(
    model: Model,
    against: Annotated[
        str,
        typer.Option(help=f"A correct model, or FRAMEWORK:PATH of one: {', '.join(RUNTIMES)}."),
    ],
    output: Written,
    data: Inputs = None,
    json: Json = False,
    atol: Atol = None,
    rtol: Rtol = None,
    params: Params = None,
    against_params: AgainstParams = None,
    semantics: Semantics = "documented",
    seconds: Seconds = SECONDS,
) -> None:
    """Writes MODEL without its proved faults and shows the diff.

    The new file is verified on fresh inputs before it gets its name. Exit 1, and no file: a
    cause is only a candidate, or no cause is known.
    """
    graph = load(model, params, semantics)
    reference = open_against(against, against_params, semantics)
    with progress() as tell:
        result = verify(
            graph, data, against=reference, atol=atol, rtol=rtol, seconds=seconds, progress=tell
        )
        outcome = Repair(refused="nothing to repair: the outputs agree")
        if not result.passed:
            outcome = repair(
                result, output, reference, progress=tell, note=complain, atol=atol, rtol=rtol
            )
    causes = [cause.as_json() for cause in result.causes]
    if json:
        outputs = [each.as_json() for each in (outcome.after or result).outputs]
        show_json(
            bool(outcome) or result.passed,
            outputs=outputs,
            cause=result.cause_json(),
            causes=causes,
            changes=list(outcome.changes),
            written=str(output) if outcome else None,
            refused=outcome.refused,
        )
    else:
        section(stdout(), "causes", [f"{cause.text} [{cause.id}]" for cause in result.causes])
        section(stdout(), "diff", outcome.changes)
        if outcome:
            section(stdout(), "written", [f"{output}, which agrees with {against} on fresh inputs"])
    if not outcome:
        complain(outcome.refused)
    raise typer.Exit(0 if outcome or result.passed else 1)
