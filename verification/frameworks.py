"""Models run by their own frameworks, each in a process of its own: a crash there is a message.

The process reads in__ and lod__ keys from one file and writes out__ and outlod__ keys, or what the
framework said, to others. Sources: the frameworks' own documentation of inference
(paddle.static.Executor, mxnet Symbol.bind, onnxruntime).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.mxnet import read as mxnet_files
from onernn.adapters.mxnet.lower.rules import slots_of_node
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
_MISSING = 3  # the exit status where the framework is not installed


def run_framework(
    kind: str, path: str, params: str | None, feed: Mapping[str, Batch], names: list[str]
) -> dict[str, Batch]:
    """What paddle, mxnet or onnxruntime gives for the model, under these output names, in order.

    Raises `MissingDependencyError` where it is not installed, `UnsupportedError` with what it said
    where it does not run the model or crashes.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, made, said = (str(Path(folder, name)) for name in ("in.npz", "out.npz", "said"))
        write_inputs(given, feed)
        call = f"import os, sys; from {__name__} import main; os._exit(main(*sys.argv[1:]))"
        # Frameworks crash when Python shuts down, too; by then all is written.
        # -P: a file in the working folder, which may be the model's, is no module.
        command = [sys.executable, "-P", "-c", call, kind, path, params or "", given, made, said]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                command,
                env=environ,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"{kind}: {path} took longer than {_SECONDS} s") from error
        text = Path(said).read_text("utf-8") if os.path.exists(said) else ""
        if done.returncode == _MISSING:
            raise MissingDependencyError(text)
        if done.returncode:
            text = text or _crash(kind, done)
            raise UnsupportedError(f"{kind} does not run {path}: {text}")
        values = tuple(Value(name) for name in names)
        return read_outputs(read_arrays(made), values, f"{kind}'s outputs")


def _crash(kind: str, done: subprocess.CompletedProcess[str]) -> str:
    """How a process ended that told nothing, and what it wrote last."""
    how = f"exit status {done.returncode}"
    if done.returncode < 0:
        how = f"signal {-done.returncode}, {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = f"; its last words: {lines[-1][-500:]}" if lines else ""
    version = " ".join(filter(None, (kind, version_of(kind))))
    return f"{version} crashed ({how}) in a process of its own{last}"


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

    files = paddle_files.find(path, params or None)
    # Read by Paddle 3 when it is imported: it runs programs of its own format or of the older one.
    os.environ["FLAGS_enable_pir_api"] = "1" if files.model.suffix == ".json" else "0"
    paddle = require("paddle", "paddle")
    paddle.enable_static()
    core = paddle.base.core
    kind = getattr(core, "LoDTensor", None) or core.DenseTensor
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
    symbol, labels = _without_labels(mx, mx.sym.load(str(files.symbol)))
    saved = mx.nd.load(str(files.params)) if files.params else {}
    arrays = {key.partition(":")[2] or key: value for key, value in saved.items()}
    arrays |= {name: mx.nd.array(value, dtype=_plain(value)) for name, value in feed.items()}
    taken = {name: arrays[name] for name in symbol.list_arguments() if name in arrays}
    shapes = {name: taken[name].shape for name in feed if name in taken}
    for name, shape in zip(
        symbol.list_arguments(), symbol.infer_shape_partial(**shapes)[0], strict=True
    ):
        if name in labels:
            taken[name] = mx.nd.zeros(shape)
        elif name not in taken:
            raise UnsupportedError(f"{files.params} holds no {name!r}: was it unpacked on saving?")
    auxiliary = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    bound = symbol.bind(mx.cpu(), taken, aux_states=auxiliary, grad_req="null")
    return [each.asnumpy() for each in bound.forward(is_train=False)]


def _without_labels(mx: Any, symbol: Any) -> tuple[Any, set[str]]:
    """The symbol with a variable in the place of each label, and these variables' names.

    In inference MXNet reads no label, but wants one. A variable's shape it infers from what it is
    compared with, which it cannot where the symbol computes the label.
    """
    text = symbol.tojson()
    graph, labels = json.loads(text), set()
    for node, read in zip(graph["nodes"], mxnet_files.parse_symbol(text).nodes, strict=False):
        for at, slot in enumerate(slots_of_node(read)):
            if slot == "label":
                labels.add(name := f"the label of {node['name']}")
                node["inputs"][at] = [len(graph["nodes"]), 0, 0]
                graph["nodes"].append({"op": "null", "name": name, "inputs": []})
    return mx.sym.load_json(json.dumps(graph)), labels


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


def main(kind: str, path: str, params: str, given: str, made: str, said: str) -> int:
    """Writes what the framework gives, or says against it. 0: done, 3: it is not installed."""
    feed = read_given(read_arrays(given))
    try:
        results = FRAMEWORKS[kind](path, params, feed)
    except Exception as error:  # whatever the framework raises is its answer
        text = str(error) if isinstance(error, OnernnError) else f"{type(error).__name__}: {error}"
        lines = [line for line in text.splitlines() if line.strip()]
        Path(said).write_text(" ".join(lines)[-2000:], "utf-8", "replace")
        return _MISSING if isinstance(error, MissingDependencyError) else 1
    named: dict[str, Array | Ragged] = {str(k): each for k, each in enumerate(results)}
    write_outputs(made, named)
    return 0
