"""Models run by their own frameworks, each in a process of its own: a crash there is a message.

    python -m onernn.verification.frameworks KIND MODEL PARAMS FILE.npz OUT.npz

reads in__ and lod__ keys and writes out__ and outlod__ keys. Sources: the frameworks' own
documentation of inference (paddle.static.Executor, mxnet Symbol.bind, onnxruntime).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.mxnet import read as mxnet_files
from onernn.adapters.paddle import read as paddle_files
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import MissingDependencyError, OnernnError, UnsupportedError
from onernn.core.graph import Value
from onernn.core.ragged import Ragged
from onernn.verification.recording import (
    Batch,
    read_arrays,
    read_given,
    read_outputs,
    write_inputs,
    write_outputs,
)

_SECONDS = 600


def run_framework(
    kind: str, path: str, params: str | None, feed: Mapping[str, Batch], names: list[str]
) -> dict[str, Batch]:
    """What paddle, mxnet or onnxruntime gives for the model, under these output names, in order.

    Raises `MissingDependencyError` where it is not installed, `UnsupportedError` with what it said
    where it does not run the model or crashes.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "in.npz", Path(folder) / "out.npz"
        write_inputs(given, feed)
        command = [sys.executable, "-m", __name__, kind, path, params or "", str(given), str(made)]
        # Read by Paddle 3 when it is imported: without it there is no legacy static graph.
        environ = {"FLAGS_enable_pir_api": "0", **os.environ}
        try:
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"{kind}: {path} took longer than {_SECONDS} s") from error
        said = done.stderr.strip().splitlines()
        if done.returncode == 3:
            raise MissingDependencyError(said[-1])
        if done.returncode:
            how = f"signal {-done.returncode}" if done.returncode < 0 else "an error"
            last = next((line for line in reversed(said) if line.strip()), "nothing on stderr")
            raise UnsupportedError(f"{kind} does not run {path}: {how}: {last}")
        values = tuple(Value(name) for name in names)
        return read_outputs(read_arrays(made), values, f"{kind}'s outputs")


def version_of(kind: str) -> str:
    """The installed version of a framework, "" where it is not installed."""
    from importlib import metadata

    for name in {"paddle": ("paddlepaddle", "paddlepaddle-gpu")}.get(kind, (kind,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _paddle(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """With nothing fused, on CPU."""
    # Paddle 2.6.2 brings its own zlib; whoever loads Python's after it crashes.
    import zlib  # noqa: F401

    import numpy.random  # noqa: F401

    paddle = require("paddle", "paddle")
    paddle.enable_static()
    core = paddle.base.core
    kind = getattr(core, "LoDTensor", None) or core.DenseTensor
    files = paddle_files.find(path, params or None)
    if files.params.is_dir():
        where, named = files.model.parent, {"model_filename": files.model.name}
        if files.params != where:
            raise UnsupportedError("paddle reads parameters from the model's own folder only")
        named["params_filename"] = None  # type: ignore[assignment]
    else:
        where = files.model.parent
        shared = os.path.relpath(files.params, where)
        named = {"model_filename": files.model.name, "params_filename": shared}
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, names, fetches = paddle.static.load_inference_model(str(where), executor, **named)
        tensors = {}
        for name in names:
            value = feed[name]
            made = kind()
            data = value.data if isinstance(value, Ragged) else value
            made.set(np.ascontiguousarray(data), paddle.CPUPlace())
            if isinstance(value, Ragged):
                made.set_lod(value.lod)
            tensors[name] = made
        results = executor.run(program, feed=tensors, fetch_list=fetches, return_numpy=False)
    return [
        Ragged.from_lod(np.array(each), each.lod()) if each.lod() else np.array(each)
        for each in results
    ]


def _mxnet(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    mx = require("mxnet", "mxnet")
    files = mxnet_files.find(path, params or None)
    numpy = mxnet_files.read_symbol(files.symbol).np_shape
    with mx.util.np_shape(numpy):
        return _bound(mx, files, feed)


def _bound(mx: Any, files: mxnet_files.Files, feed: Mapping[str, Batch]) -> list[Batch]:
    symbol = mx.sym.load(str(files.symbol))
    saved = mx.nd.load(str(files.params)) if files.params else {}
    arrays = {key.partition(":")[2] or key: value for key, value in saved.items()}
    arrays |= {name: mx.nd.array(value, dtype=_plain(value)) for name, value in feed.items()}
    taken = {name: arrays[name] for name in symbol.list_arguments() if name in arrays}
    shapes = {name: taken[name].shape for name in feed if name in taken}
    for name, shape in zip(
        symbol.list_arguments(), symbol.infer_shape_partial(**shapes)[0], strict=True
    ):
        if name not in taken and name.endswith("_label"):  # MXNet wants it, and does not read it
            taken[name] = mx.nd.zeros(shape)
        elif name not in taken:
            raise UnsupportedError(f"{files.params} holds no {name!r}: was it unpacked on saving?")
    auxiliary = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    bound = symbol.bind(mx.cpu(), taken, aux_states=auxiliary, grad_req="null")
    return [each.asnumpy() for each in bound.forward(is_train=False)]


def _plain(value: Batch) -> Any:
    if isinstance(value, Ragged):
        raise UnsupportedError("MXNet has no ragged inputs")
    return value.dtype


def _onnxruntime(path: str, _: str, feed: Mapping[str, Batch]) -> list[Batch]:
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feed)))


FRAMEWORKS: dict[str, Callable[[str, str, Mapping[str, Batch]], list[Batch]]] = {
    "paddle": _paddle,
    "mxnet": _mxnet,
    "onnxruntime": _onnxruntime,
}


def main(kind: str, path: str, params: str, given: str, made: str) -> int:
    """Exit status: 0 done, 3 the framework is not installed, 1 anything it says against it."""
    feed = read_given(read_arrays(given))
    try:
        results = FRAMEWORKS[kind](path, params, feed)
    except MissingDependencyError as error:
        print(error, file=sys.stderr)
        return 3
    except Exception as error:  # whatever the framework raises is its answer
        text = str(error) if isinstance(error, OnernnError) else f"{type(error).__name__}: {error}"
        lines = [line for line in text.splitlines() if line.strip()]
        print("\n" + " ".join(lines)[-2000:], file=sys.stderr)
        return 1
    named: dict[str, Array | Ragged] = {str(k): each for k, each in enumerate(results)}
    write_outputs(made, named)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
