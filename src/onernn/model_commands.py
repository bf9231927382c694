"""Commands that write or show models: convert, compile, plug, join, inspect, quantize, repair."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load, plugin_for
from onernn.adapters.registry import ADAPTERS, RUNTIMES, WRITERS
from onernn.commands import (
    AgainstParams,
    AllowFunctions,
    Atol,
    Backend,
    Dtype,
    ExposeStates,
    Given,
    Json,
    Mapped,
    Model,
    Opset,
    Params,
    Rtol,
    Rules,
    Seconds,
    Semantics,
    Threads,
    Typed,
    Written,
    numbers,
    open_pair,
    pairs,
)
from onernn.engine.chunks import expose
from onernn.fuse_passes.bodies import every_node
from onernn.fuse_passes.joined_models import join
from onernn.ir.budget import TimeLimit, limited_to
from onernn.ir.errors import OnernnError, UnsupportedError
from onernn.ir.files import COMPILED, as_argument
from onernn.ir.graph import Graph
from onernn.showing import (
    complain,
    counted,
    progress,
    section,
    show_inspection,
    show_json,
    show_report,
    show_written,
    stdout,
)
from onernn.verification.conversion import (
    UndecidedError,
    WrongFileError,
    convert,
    over_time,
    repair,
)
from onernn.verification.inspecting import inspect_model, write_graph_page
from onernn.verification.verifying import Report


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
        Path | None,
        typer.Option(metavar="FILE.npz", help="A recording that the written file must reproduce."),
    ] = None,
    opset: Opset = None,
    output_dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE",
            help="The dtype in which weights are stored: float32, float16 or bfloat16.",
        ),
    ] = "float32",
    names: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename an input or output.")
    ] = None,
    allow_functions: AllowFunctions = False,
    place: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The operators of Paddle that run a .pdmodel: cpu, or onednn (use_mkldnn on fused"
            " layers).",
        ),
    ] = "cpu",
    fused: Annotated[
        bool | None,
        typer.Option(help="In a .pdmodel, write recurrent layers as fusion_gru and fusion_lstm."),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--over-time",
            metavar="STATE=NEXT",
            help="Turn a model of one frame into a model of sequences. STATE is an input, NEXT the"
            " output with its next value. Every other input and output becomes (T, ...).",
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
    rules: Rules = None,
) -> None:
    """Writes MODEL as another framework's file.

    The command runs the new file on generated inputs, or on the inputs of --check, and compares the
    outputs with MODEL's.

    Exit 1: the outputs differ, and nothing is written.
    """
    declared: dict[str, Any] = {}
    if inputs:
        from onernn.engine.emit.pipeline import read_declared  # imports all of emit

        declared = dict(read_declared(inputs))
    graph = load(model, params, semantics, inputs=declared, rules=rules)
    if states:
        taken = pairs("--over-time", "STATE=NEXT", states)
        step = graph
        try:
            graph = over_time(graph, taken, given=numbers(graph, given), inputs=declared)
        except UndecidedError as error:
            if not error.options:
                raise
            asked = {text.partition("=")[0] for _, text in error.options}
            typed = [("--given", text) for text in given or []]
            typed += [("--input", text) for text in inputs or []]
            said = [("--over-time", f"{name}={after}") for name, after in taken.items()]
            said += [each for each in typed if each[1].partition("=")[0] not in asked]
            words = ["onernn", "convert", str(model), str(out)]
            words += [word for pair in (*said, *error.options) for word in pair]
            error.args = (f"{str(error).rpartition(chr(10))[0]}\n  type: {shlex.join(words)}",)
            raise
        for note in graph.notes[len(step.notes) :]:
            complain(note)
    elif given:
        raise UnsupportedError("--given belongs to --over-time")
    if expose_states:
        stepped = expose(graph)
        graph = stepped.graph
        for note in stepped.notes:
            complain(note)
    report = _convert(
        graph,
        out,
        rules,
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


def _convert(model: Graph, out: Path, rules: Any, **options: Any) -> Report:
    """Writes a model, and returns the comparison of its outputs.

    Prints the written files, or why the model is not written or not verified.
    """
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        complain(text)

    with progress() as tell, _new_files(out) as files:
        try:
            report = convert(model, out, progress=tell, note=note, **options)
        except WrongFileError as error:
            complain(error)
            return error.report
    if report is None or report.passed:
        _show_model(out, files, rules, is_checked=report is not None or bool(notes))
    else:
        complain(f"{out} is not written: its outputs differ from those of the recording")
    return Report((), "") if report is None else report


@contextmanager
def _new_files(out: Path) -> Iterator[list[Path]]:
    """Yields a list, which at the end of the block holds ``out`` and the other files that the block
    wrote with the same stem, such as a .pdiparams.
    """

    def stamps() -> dict[Path, tuple[int, int]]:
        try:
            each = [path for path in out.parent.iterdir() if path.name.startswith(f"{out.stem}.")]
            return {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in each}
        except OSError:  # the writer names the folder that it cannot use
            return {}

    before, files = stamps(), list[Path]()
    yield files
    new = {path for path, stamp in stamps().items() if before.get(path) != stamp} - {out}
    files += [out, *sorted(new)]


def _show_model(out: Path, files: Sequence[Path], rules: Any, *, is_checked: bool) -> None:
    """Prints the name, size and contents of a written model.

    The line ends with a command that verifies the model in its framework. Without the framework,
    with ``rules``, or after a check, the line has no such command.
    """
    step, command = "", list[object]()
    runtime = next(a.runtime for a in ADAPTERS if a.writer and a.writer.suffix == out.suffix)
    if runtime and runtime.version and not is_checked and not rules:
        step = f"check it with {runtime.name}"
        command = ["onernn", "verify", out, "--against", f"{runtime.name}:{out}"]
    name = " and ".join(map(str, files))
    show_written(name, files, _contents_of(files, rules), step, command)


_READ_AGAIN = 10**9
"""Maximum size, in bytes, of written files that are read again to describe them. Reading them takes
as much memory.
"""


def _contents_of(files: Sequence[Path], rules: Any) -> Iterator[str]:
    """Yields texts such as "2 inputs": the number of inputs, outputs and recurrent nodes of a
    written model.

    Other nodes are not counted, because onernn reads some of them as several nodes or as none.
    """
    if sum(each.stat().st_size for each in files) > _READ_AGAIN:
        return
    with suppress(OnernnError):
        graph = load(files[0], rules=rules)
        yield counted(len(graph.inputs), "input")
        yield counted(len(graph.outputs), "output")
        if layers := sum(node.op == "Rnn" for node in every_node(graph)):
            yield counted(layers, "recurrent node")


# --- the command that writes a file which the library runs without Python


def compile_command(
    model: Model,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar=f"FILE{COMPILED}", help="The file to write."),
    ],
    dtype: Dtype = "f32",
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE=NEXT",
            help="A state that a step hands to the next step: STATE is an input, NEXT the output"
            " with its next value.",
        ),
    ] = None,
    expose_states: ExposeStates = False,
    streams: Annotated[
        bool,
        typer.Option(
            "--streams",
            help="Let one run take a frame of each of many clients (onernn_clients_open).",
        ),
    ] = False,
    given: Given = None,
    inputs: Typed = None,
    params: Params = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
) -> None:
    """Writes MODEL as a file for programs in any language.

    The programs run the file with libonernn, without Python.
    """
    from onernn.engine.compiling import compile_model  # other commands start faster without it
    from onernn.engine.emit.pipeline import read_declared

    if output.suffix != COMPILED:
        raise UnsupportedError(f"{output}: expected a name that ends in {COMPILED}")
    declared, carried = read_declared(inputs or []), pairs("--state", "STATE=NEXT", states)
    graph = load(model, params, semantics, inputs=declared, rules=rules)
    constants = numbers(graph, given)
    notes = compile_model(
        graph,
        output,
        dtype=dtype,
        states=carried,
        expose_states=expose_states,
        given=constants,
        inputs=declared,
        streams=streams,
    )
    for note in notes:
        complain(note)
    taken, returned = len(graph.inputs) - len(constants), len(graph.outputs)
    contents = [counted(taken - len(carried), "input"), counted(returned - len(carried), "output")]
    if carried:
        contents.append(counted(len(carried), "state"))
    show_written(output, [output], contents)


# --- the command that puts onernn's layers into a model for ONNX Runtime


def plug_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.onnx", help="The file to write.")
    ],
    dtype: Dtype = "f32",
) -> None:
    """Writes MODEL for ONNX Runtime with layers of libonernn.

    libonernn runs the recurrent layers of the new file. A program in any language must register
    libonernn with ONNX Runtime by RegisterCustomOpsLibrary before it loads the file.
    """
    from onernn.adapters.common.live import stays
    from onernn.adapters.onnx.plugin import HOST, plug  # no other command needs it

    result = plug(model, output, dtype=dtype)
    for line in result.replaced:
        print(line)
    for refusal in result.refusals:
        complain(stays(HOST, refusal))
    nodes = counted(len(result.replaced), "recurrent node")
    show_written(output, [output], [f"{nodes} of libonernn"])


# --- the command that makes one model of several


def join_command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="The models, in any order; onernn --help lists the kinds."
        ),
    ],
    output: Written,
    opset: Opset = None,
    json: Json = False,
    rules: Rules = None,
) -> None:
    """Joins several models into one model and writes it.

    An output of one model becomes the input of the same name of each other model.
    """
    whole = join(*(load(model, rules=rules) for model in models))
    report = _convert(whole, output, rules, opset=opset)
    if not report.passed:
        show_report(report, json)
        raise typer.Exit(1)
    if json:
        inputs, outputs = ([v.name for v in values] for values in (whole.inputs, whole.outputs))
        show_json("pass", inputs=inputs, outputs=outputs)


# --- the command that shows a model, and the result of fusion


def inspect_command(
    model: Model,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            "--report",
            metavar="FILE.html",
            help="The page to write: the graph before and after fusion.",
        ),
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
    rules: Rules = None,
) -> None:
    """Shows MODEL before and after fusion.

    It names the operators, the kernels, and the reasons why layers did not fuse.
    """
    graph = load(model, params, semantics, rules=rules)
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
    if html is not None:
        before, after = (sum(numbers) for numbers in zip(*result.operators.values(), strict=True))
        show_written(html, [html], [f"{counted(before, 'node')}, {after:,} after fusion"])
    if open_page and html is not None:
        webbrowser.open(html.resolve().as_uri())


# --- the command that quantizes recurrent layers


def quantize_command(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .onnx file to write.")],
    data: Annotated[
        list[Path],
        typer.Option(
            metavar="IN.npz",
            help="Inputs to calibrate with, as in__NAME, and lod__NAME if they are ragged.",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT",
            help="The error to allow: 'labels 0.1%', 'max_abs 0.02' or 'rmse 0.001'. Without it,"
            " all layers are u8.",
        ),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="IN.npz",
            help="Inputs to measure the error with; without it, every second sequence of --data.",
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
    opset: Opset = None,
    allow_functions: AllowFunctions = False,
    threads: Threads = 1,
    backend: Backend = "auto",
    params: Params = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
) -> None:
    """Writes MODEL with layers in u8, bf16 or f32, within an error budget."""
    from onernn.verification.quantizing import quantize  # no other command needs it

    writer_for(out)
    graph = load(model, params, semantics, rules=rules)
    result = quantize(
        graph,
        data,
        budget=budget,
        held_out=held_out or None,
        labels_of=labels_of,
        backend=backend,
        threads=threads,
    )
    with _new_files(out) as files:
        write_model(
            result.model,
            out,
            inputs=result.example,
            note=complain,
            opset=opset,
            allow_functions=allow_functions,
        )
    for note in result.notes:
        complain(note)
    _show_model(out, files, rules, is_checked=True)
    if json:
        print(result.to_json())
        return
    section(stdout(), "layers", result.of_layers())
    section(stdout(), "whole model", [result.verdict])


# --- the command that removes the faults that `verify` proved


def repair_command(
    model: Model,
    output: Written,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A correct model, or FRAMEWORK:PATH to run a model in its framework"
            f" ({', '.join(RUNTIMES)}). Without it, the outputs in --data are correct.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="A recording to take inputs from, and outputs unless --against is given.",
        ),
    ] = None,
    names: Mapped = None,
    json: Json = False,
    atol: Atol = None,
    rtol: Rtol = None,
    params: Params = None,
    against_params: AgainstParams = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
    seconds: Seconds = None,
) -> None:
    """Writes MODEL without its faults and shows the diff.

    The new file is verified before it gets its name. With --against the command compares it on
    fresh inputs, otherwise with the recording. The command writes the whole file anew: its opset,
    nodes and metadata may differ from MODEL's. `onernn convert FIXED.onnx NEW.onnx --opset N` sets
    the opset.

    Exit 1: no file is written, because no cause is known, because --against does not prove the
    cause, or because several causes explain the recording.
    """
    with (
        progress() as tell,
        limited_to(TimeLimit.after(seconds or None)),
        _new_files(output) as files,
    ):
        graph, reference = open_pair(
            model, params, against, against_params, semantics=semantics, rules=rules
        )
        outcome = repair(
            graph,
            output,
            reference,
            recording=data,
            names=pairs("--map", "MINE=THEIRS", names),
            atol=atol,
            rtol=rtol,
            seconds=seconds,
            progress=tell,
            note=complain,
        )
    result = outcome.found
    assert result is not None
    if json:
        show_json(
            bool(outcome) or result.passed,
            outputs=(outcome.after or result).outputs,
            cause=result.cause_json(),
            causes=result.causes,
            changes=outcome.changes,
            written=str(output) if outcome else None,
            refused=outcome.refused,
        )
    else:
        section(stdout(), "causes", [f"{cause.text} [{cause.id}]" for cause in result.causes])
        section(stdout(), "diff", outcome.changes)
        if outcome:
            how = f"agrees with {against} on fresh inputs" if against else f"agrees with {data}"
            anew = (
                "the whole file is new: its opset, nodes and metadata may differ from the model's"
            )
            section(stdout(), "written", [f"{output}, which {how}", anew])
    if not outcome:
        complain(outcome.refused)
    else:
        _show_model(output, files, rules, is_checked=True)
        if against is None:
            complain(
                "a recording proves no cause: if you can, compare the new file with the original"
            )
    raise typer.Exit(0 if outcome or result.passed else 1)


def repair_line(model: str, **options: Any) -> str:
    """Returns the command line of ``onernn repair`` for a model.

    The command writes to a new file in the model's folder. ``options``: the values of options by
    name. Options whose value is None or an empty list are left out.
    """
    path = Path(model)
    path = path if path.name.strip(".") else path.resolve()  # "." and ".." have no name to extend
    suffix = path.suffix if path.suffix in WRITERS else ".onnx"
    files = (path.with_name(f"{path.stem}-fixed{k or ''}{suffix}") for k in count())
    parts = ["onernn", "repair", as_argument(model)]
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            parts += [] if each is None else [f"--{name.replace('_', '-')}", str(each)]
    return shlex.join([*parts, "-o", str(next(file for file in files if not file.exists()))])
