"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import numpy as np
import typer

from onernn.adapters.registry import ADAPTERS, SEMANTICS
from onernn.backend import BACKENDS
from onernn.backend.onednn.precision import DTYPES
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.graph import Graph


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """A completion for shells that offers these names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help=f"The model: {'; '.join(adapter.files for adapter in ADAPTERS)}."
    ),
]
Params = Annotated[
    str | None, typer.Option(help="The parameters, if they are in another folder than the model.")
]
Semantics = Annotated[
    str,
    typer.Option(
        help="How MXNet's RNN treats lengths and clips: documented (it uses them), or mxnet-cpu (it"
        " ignores them, as MXNet did on the CPU).",
        autocompletion=one_of(SEMANTICS),
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help=f"The dtype in which recurrent layers compute: {', '.join(DTYPES)}.",
        autocompletion=one_of(DTYPES),
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="The number of threads of the backend.")]
Backend = Annotated[
    str,
    typer.Option(
        help="auto (the faster of the next two), kernels, onednn, or reference.",
        autocompletion=one_of(BACKENDS),
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="3/4 of the memory",
        help="The most bytes that the values of one run may take.",
    ),
]
MaxSteps = Annotated[
    int,
    typer.Option(min=1, help="The most operators that the loops and layers of one run may run."),
]
Atol = Annotated[float | None, typer.Option(help="The absolute tolerance.")]
Rtol = Annotated[float | None, typer.Option(help="The tolerance relative to max|ref|.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")
]
Opset = Annotated[int, typer.Option(help="The version of ONNX's operators.")]


def pairs(option: str, form: str, texts: Iterable[str] | None) -> dict[str, str]:
    """``OLD=NEW`` for each, as a dict. Raises `UnsupportedError` naming the option."""
    parts = [each.partition("=") for each in texts or ()]
    if wrong := [before for before, _, after in parts if not (before and after)]:
        raise UnsupportedError(f"{option}: expected {form}, got {wrong}")
    return {before: after for before, _, after in parts}


def numbers(graph: Graph, texts: dict[str, str]) -> dict[str, Array]:
    """A number for each of these inputs, of the input's dtype. Raises `UnsupportedError`."""
    found = {}
    for value in graph.inputs:
        if value.name not in texts:
            continue
        text = texts[value.name]
        try:
            found[value.name] = np.array(float(text) if "." in text else int(text), value.dtype)
        except (ValueError, OverflowError) as error:
            raise UnsupportedError(f"--given {value.name}={text}: {error}") from error
    if unknown := sorted(texts.keys() - found.keys()):
        names = [value.name for value in graph.inputs]
        hint = did_you_mean(unknown[0], names)
        raise UnsupportedError(f"--given {unknown}: the model takes {', '.join(names)}{hint}")
    return found
