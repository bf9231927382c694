"""The command line.

Exit codes: 0 if a command is done, 1 if a comparison failed, 2 if a command cannot run. With exit
code 2 one message on stderr says why.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import onernn
from onernn.adapters.loading import load
from onernn.adapters.registry import RUNTIMES
from onernn.adapters.stacks import read_stacks
from onernn.adapters.weight_conversion import convert_weights
from onernn.commands import (
    FORWARDED,
    AgainstParams,
    Atol,
    Backend,
    CommandGroup,
    Commands,
    Dtype,
    Inputs,
    Json,
    Mapped,
    MaxBytes,
    MaxSteps,
    Model,
    Params,
    Quiet,
    Rtol,
    Rules,
    Seconds,
    Semantics,
    Threads,
    Typed,
    one_of,
    open_pair,
    pairs,
)
from onernn.engine.session import Session
from onernn.ir.arrays import Array
from onernn.ir.budget import STEPS, TimeLimit, limited_to
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError, unforeseen
from onernn.ir.files import is_compiled
from onernn.ir.graph import feed_defaults
from onernn.ir.ragged import data_of
from onernn.model_commands import (
    compile_command,
    convert_command,
    inspect_command,
    join_command,
    plug_command,
    quantize_command,
    repair_command,
    repair_line,
)
from onernn.reorders.layouts import FRAMEWORKS, framework
from onernn.samples_command import samples
from onernn.score_command import score
from onernn.showing import (
    Output,
    complain,
    counted,
    progress,
    section,
    show_audit,
    show_examination,
    show_json,
    show_report,
    show_written,
    stdout,
    watch,
)
from onernn.verification import recording
from onernn.verification.auditing import audit
from onernn.verification.doctor import examine, manual_tables, survey
from onernn.verification.recording import (
    INPUTS,
    input_names,
    read_arrays,
    read_inputs,
    write_outputs,
)
from onernn.verification.report import check_report, explanation, write_report
from onernn.verification.verifying import SECONDS, error_json, verify

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Click's error for wrong usage; recent versions of typer bring their own copy of click."""

app = Commands(
    cls=CommandGroup,
    help="Reads, compares, converts and runs recurrent models of Paddle, MXNet, ONNX, PyTorch and"
    " Keras without these frameworks, on oneDNN and C++ kernels.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

TASKS = {
    "Run a model faster than its framework; see how": """\
onernn inspect MODEL
onernn run MODEL --input in.npz --output out.npz""",
    "Run an old Paddle program without Paddle": "onernn paddle-run SCRIPT.py",
    "Find out why a model's numbers are wrong": "onernn verify MODEL --data recording.npz",
    "Move a model, or its weights, to another framework": """\
onernn convert MODEL model.onnx
onernn weights MODEL --to torch --output weights.npz""",
    "Put a model into a C++ program": "onernn emit MODEL --output FOLDER",
}


@app.callback(invoke_without_command=True)
def without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    if version:
        text = f"onernn {onernn.__version__}"
        show_json("pass", version=onernn.__version__) if json else print(text)
        raise typer.Exit
    if called := context.invoked_subcommand:  # onernn --json COMMAND is onernn COMMAND --json
        context.default_map = {called: {"json": json, "quiet": quiet}}
    elif json:
        tasks = {task: commands.splitlines() for task, commands in TASKS.items()}
        show_json("pass", commands=tasks)
    elif not quiet:
        for task, commands in TASKS.items():
            section(stdout(), task, commands.splitlines())
        print("\nAll commands: onernn --help. One of them, with examples: onernn COMMAND --help")


_SHOWN = 4
"""The number of outputs whose types ``onernn run`` shows."""


@app.command(
    examples=[
        "onernn run lac_model --input in.npz --output out.npz",
        "onernn run model.onnx --input in.npz -o out.npz --dtype bf16 --threads 2",
    ]
)
def run(
    model: Model,
    input: Annotated[
        Path,
        typer.Option(
            metavar="IN.npz",
            help="The file to read: in__NAME is an input, and lod__NAME are its offsets if it is"
            " ragged.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT.npz",
            help="The file to write: out__NAME is an output, and outlod__NAME are its offsets.",
        ),
    ],
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "auto",
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = STEPS,
    params: Params = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
) -> None:
    """Runs MODEL on recorded inputs and writes its outputs."""
    limits: dict[str, Any] = {"max_bytes": max_bytes, "max_steps": max_steps}
    if is_compiled(model):
        session, arrays = Session(model, threads=threads, **limits), read_arrays(input, INPUTS)
    else:
        graph, arrays = load(model, params, semantics, rules=rules), read_arrays(input, INPUTS)
        graph = feed_defaults(graph, input_names(arrays))
        session = Session(graph, dtype=dtype, threads=threads, backend=backend, **limits)
    inputs = read_inputs(arrays, session.inputs, str(input))
    outputs = session.run(inputs)
    write_outputs(output, outputs)
    shown = [f"{name} {data_of(y).dtype} {data_of(y).shape}" for name, y in outputs.items()]
    more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    listed = ", ".join(shown[:_SHOWN])
    show_written(output, [output], [f"{counted(len(outputs), 'output')}: {listed}{more}"])


app.command(
    examples=[
        "onernn score model.onnx corpus/ scores --input x=features --workers 4",
        "onernn score lac_model texts.jsonl scores --input words=ids --keep id",
    ]
)(score)


@app.command(
    "verify",
    examples=[
        "onernn verify model.onnx --data recording.npz",
        "onernn verify new.onnx --against paddle:old_model --report report.html",
        "onernn verify model.onnx --data recording.npz --atol 1e-4 --json",
    ],
)
def verify_command(
    model: Model,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The reference: another model, or FRAMEWORK:PATH to run a model in its framework"
            f" ({', '.join(RUNTIMES)}), which must be installed.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="A recording of inputs, and of outputs unless --against is given. Without it,"
            " inputs are made.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", "--html", metavar="FILE.html", help="The page to write."),
    ] = None,
    json: Json = False,
    atol: Atol = None,
    rtol: Rtol = None,
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "auto",
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = STEPS,
    params: Params = None,
    against_params: AgainstParams = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
    seconds: Seconds = None,
    names: Mapped = None,
) -> None:
    """Compares MODEL's outputs with a reference and names the fault.

    Exit 1: the outputs differ.
    """
    if report is not None:
        check_report(report)
    with progress() as tell, limited_to(TimeLimit.after(seconds or None)):
        graph, reference = open_pair(
            model, params, against, against_params, semantics=semantics, rules=rules
        )
        result = verify(
            graph,
            data,
            against=reference,
            names=pairs("--map", "MINE=THEIRS", names),
            dtype=dtype,
            atol=atol,
            rtol=rtol,
            seconds=seconds,
            progress=tell,
            threads=threads,
            backend=backend,
            max_bytes=max_bytes,
            max_steps=max_steps,
        )
        repairs = ""
        if result.is_repairable:
            repairs = repair_line(
                model,
                against=against,
                data=data,
                map=names,
                params=params,
                against_params=against_params,
                semantics=semantics if semantics != "documented" else None,
                rules=_typed("--rules"),
                atol=atol,
                rtol=rtol,
                seconds=f"{2 * seconds:g}" if seconds and seconds > SECONDS else None,
            )
        if report is not None:
            tell("writing the report", 0, 0)
            write_report(result, report, shlex.join(["onernn", *sys.argv[1:]]), repairs)
    show_report(result, json, repairs)
    if not json:
        for title, lines in explanation(result):
            section(stdout(), title, lines)
        section(stdout(), "to repair it", [repairs])
    if report is not None:
        wrong = sum(not each.passed for each in result.outputs)
        compared = counted(len(result.outputs), "output")
        show_written(report, [report], [f"{compared}, {wrong} differ"])
    raise typer.Exit(0 if result.passed else 1)


app.command(
    "convert",
    examples=[
        "onernn convert paddle_model model.onnx --check recording.npz",
        "onernn convert model.onnx model.pdmodel --fused",
        "onernn convert frame.onnx sequence.onnx --over-time state=new_state",
    ],
)(convert_command)
app.command("join", examples=["onernn join enc.onnx erb_dec.onnx df_dec.onnx -o dfn3.onnx"])(
    join_command
)
app.command(
    "quantize",
    examples=[
        "onernn quantize model.onnx small.onnx --data a.npz --budget 'labels 0.1%'",
        "onernn quantize lac_model lac.onnx --data a.npz --held-out b.npz",
    ],
)(quantize_command)


@app.command(
    examples=[
        "onernn weights model.keras --to torch --output weights.npz",
        "onernn weights weights.pt --to onnx --output lstm.npz --node encoder.lstm",
    ]
)
def weights(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model, or a file of weights of PyTorch or Keras."),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="LAYOUT",
            help=f"The layout to write: {', '.join(FRAMEWORKS)}.",
            autocompletion=one_of(FRAMEWORKS),
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.npz", help="The file to write.")
    ],
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write only one layer: the layer with this name or module, or the layer that"
            " computes this value.",
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="A prefix of all names, such as 'encoder.lstm.'.")
    ] = "",
    recurrent_activation: Annotated[
        str | None,
        typer.Option(
            metavar="FUNCTION",
            help="The gates' function in weights that Keras before 2.3 wrote: sigmoid or"
            " hard_sigmoid, which was the default.",
        ),
    ] = None,
    params: Params = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
) -> None:
    """Writes MODEL's recurrent layers in another framework's layout.

    The arrays of a single layer get the framework's names. If there are several layers, a prefix
    precedes these names: the name of the layer's module, or of the value that the layer computes.
    Consecutive layers become one stack. Weights that several layers share are written once.

    Exit 1: some recurrent layers are not written; each is named with the reason.
    """
    framework(to)  # refuses an unknown framework before any other work
    chosen = read_stacks(model, params, semantics, node, recurrent_activation, rules)
    omitted = [*chosen.omitted]
    several = len(chosen) + len(omitted) > 1
    arrays: dict[str, Array] = {}
    for name, each in chosen.items():
        mark = f"{name}{'.' if to == 'torch' else '/'}" if several else ""
        try:
            result = convert_weights(each, to)
        except UnsupportedError as error:
            advice = chosen.advice if each.spec.activations else ""
            omitted.append(Refusal(f"{error}{advice}", f"layer {name!r}"))
            continue
        arrays |= {f"{prefix}{mark}{key}": array for key, array in result.items()}
    if not arrays:
        raise UnsupportedError(f"{model}: no recurrent layer is written:", omitted)
    recording.write_arrays(output, arrays)
    for key, array in arrays.items():
        stdout().print(f"{key} {array.dtype} {array.shape}")
    layers = counted(len(chosen) + len(chosen.omitted) - len(omitted), "layer")
    show_written(output, [output], [f"{counted(len(arrays), 'array')} of {layers}"])
    for refusal in omitted:
        complain(f"{model}: not written: {refusal}")
    raise typer.Exit(1 if omitted else 0)


app.command(
    "repair",
    examples=[
        "onernn repair converted.onnx --against paddle:original_model -o fixed.onnx",
        "onernn repair broken.onnx --against right.onnx -o fixed.onnx --json",
        "onernn repair broken.onnx --data recording.npz -o fixed.onnx",
    ],
)(repair_command)


@app.command(
    "audit", examples=["onernn audit paddle_model", "onernn audit net-symbol.json --data io.npz"]
)
def audit_command(
    model: Model,
    data: Inputs = None,
    json: Json = False,
    params: Params = None,
    rules: Rules = None,
) -> None:
    """Names known faults of frameworks and exporters that affect MODEL.

    Exit 1: at least one known fault affects MODEL.
    """
    result = audit(model, data, params=params, rules=rules)
    if json:
        print(result.to_json())
    else:
        show_audit(stdout(), result)
    raise typer.Exit(0 if result.passed else 1)


@app.command(
    examples=[
        "onernn emit model.onnx --output generated",
        "onernn emit model.onnx -o generated --static T=25,N=1 --weights f16",
    ]
)
def emit(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write to.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name of files and namespace; by default that of the model's file or folder.",
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="DTYPE",
            help="How matrices are stored: f32, f16, bf16 or int8.",
            autocompletion=one_of(("f32", "f16", "bf16", "int8")),
        ),
    ] = "f32",
    static: Annotated[
        str, typer.Option(metavar="NAME=SIZE,...", help="Sizes to fix, such as T=25,N=1.")
    ] = "",
    input: Typed = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="A recording with the types and sizes of inputs that the model leaves open.",
        ),
    ] = None,
    embed: Annotated[
        bool, typer.Option("--embed", help="Put the weights into the header.")
    ] = False,
    threads: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=64, help="The maximum number of threads of a model, 1 to 64."
        ),
    ] = 1,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite files that were edited, or that emit did not write."
        ),
    ] = False,
    params: Params = None,
    semantics: Semantics = "documented",
    rules: Rules = None,
) -> None:
    """Writes MODEL as C++17 without dependencies.

    It writes a header, the kernels and weights of the model, and an example.
    """
    from onernn.engine.emit.pipeline import read_declared, read_static, write_cpp

    declared = read_declared(input or [])
    graph = load(model, params, semantics, inputs=declared, rules=rules)
    written = write_cpp(
        graph,
        output,
        name=name,
        weights=weights,
        static=read_static(static),
        declared=declared,
        like=read_inputs(read_arrays(data), graph.inputs, str(data)) if data else None,
        embed=embed,
        threads=threads,
        force=force,
    )
    for file in written:
        print(file)
    build = ["c++", "-std=c++17", "-O2", "-pthread", output / "main.cpp", "-o", output / "main"]
    files = counted(len(written), "file")
    show_written(output, written, [files], "build its example", build)


app.command(
    "compile",
    examples=[
        "onernn compile lac_model -o lac.onernn",
        "onernn compile silero_vad.onnx -o silero.onernn --state state=stateN \\\n"
        "    --given sr=16000 --input 'input=float32(1, 576)' \\\n"
        "    --input 'state=float32(2, 1, 128)'",
    ],
)(compile_command)

app.command(examples=["onernn samples samples"])(samples)

app.command("plug", examples=["onernn plug model.onnx -o plugged.onnx"])(plug_command)


app.command(
    "inspect",
    examples=[
        "onernn inspect model.onnx",
        "onernn inspect model.onnx --open",
        "onernn inspect paddle_model --html graph.html --dtype bf16",
    ],
)(inspect_command)


@app.command(
    "paddle-run",
    context_settings=FORWARDED,
    examples=["onernn paddle-run infer.py --batch 8", "onernn paddle-run -m package.module"],
)
def paddle_run(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM [ARGS]...", help="SCRIPT.py or -m MODULE, and its arguments."
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace Paddle even if it is installed.")
    ] = False,
) -> None:
    """Runs a Paddle program unchanged, without Paddle.

    onernn runs the program's predictors and executors. --replace must precede PROGRAM.
    """
    from onernn.paddle import run_program  # no other command needs it

    run_program(["--replace", *program] if replace else program)


@app.command(
    examples=["onernn doctor", "onernn doctor --full", "onernn doctor --full --backend kernels"]
)
def doctor(
    json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Check, and print the manual's tables.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Check every combination, and list kernels and errors.")
    ] = False,
    threads: Threads = None,
    backend: Backend = "auto",
) -> None:
    """Shows versions, kernels and extras of this installation.

    With --full, it compares each supported combination of cell, direction and dtype with a float64
    reference, in about a minute.

    Exit 1: a result is wrong, or a needed package or all kernels are missing. Exit 2: the backend
    to check is missing.
    """
    if full or markdown:
        examination = examine(threads, lambda every: watch("examining", every), backend)
    elif backend == "auto":
        examination = survey(threads)
    else:
        raise UnsupportedError(f"--backend {backend} belongs to --full, which runs the backend")
    if json:
        print(examination.to_json())
    elif markdown:
        print(manual_tables(examination))
    else:
        show_examination(stdout(), examination)
    raise typer.Exit(0 if examination.passed else 1)


def _typed(option: str) -> str | None:
    """Returns the value of an option as the user typed it, None if the option is absent."""
    for word, after in pairwise([*sys.argv, ""]):
        if word == option:
            return after
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def main() -> None:
    """Runs the command line. An error prints one message on stderr, with exit code 2."""
    while (unused := os.open(os.devnull, os.O_RDWR)) < 3:  # no file may become a closed stdout
        pass
    os.close(unused)
    results, messages = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    if isinstance(results, io.TextIOWrapper):  # escapes characters that stdout cannot encode
        results.reconfigure(errors="backslashreplace")
    out, err = (cast(Any, Output(each, each is results)) for each in (results, messages))
    with redirect_stdout(out), redirect_stderr(err):
        sys.exit(_run())


def _run() -> int:
    """Runs the command line; returns the exit code."""
    try:
        code = int(app(standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # head has read enough
        return 141
    except UsageError as error:
        return _refuse(error, error.show)
    except (OnernnError, OSError, ValueError, MemoryError) as error:
        return _refuse(error, partial(complain, error if str(error) else type(error).__name__))
    except Exception as error:
        internal = unforeseen(error, "internal error")
        return _refuse(internal, partial(complain, internal))


def _refuse(error: Exception, complaint: Callable[[], None]) -> int:
    complaint()
    with suppress(OSError):
        if "--json" in sys.argv:  # the error may be that the options cannot be parsed
            print(error_json(error), flush=True)
    return 2


if __name__ == "__main__":
    main()
