"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from onernn.adapters.registry import ADAPTERS

Model = Annotated[
    str,
    typer.Argument(help=f"The model: {'; '.join(adapter.files for adapter in ADAPTERS)}."),
]
Params = Annotated[str | None, typer.Option(help="Parameters that are not beside the model.")]
Semantics = Annotated[
    str,
    typer.Option(
        help="What MXNet's RNN means by lengths and clips: documented (they work), or mxnet-cpu"
        " (it ignored them on CPU)."
    ),
]
Dtype = Annotated[str, typer.Option(help="How recurrent layers compute: f32, bf16, f16 or u8.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the backend.")]
Backend = Annotated[
    str,
    typer.Option(help="auto (the faster of the next two), kernels, onednn, or reference."),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="3/4 of the memory",
        help="Memory that the values of one run may take.",
    ),
]
MaxSteps = Annotated[
    int, typer.Option(min=1, help="Operators that the loops of one run may run in all.")
]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance.")]
Rtol = Annotated[float | None, typer.Option(help="Tolerance relative to max|ref|.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Opset = Annotated[int, typer.Option(help="Version of ONNX's operators.")]
