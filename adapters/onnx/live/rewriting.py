"""A model for ONNX Runtime, in which nodes of ours stand where recurrent ones stood."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.onnx.live.replacing import (
    Constants,
    Layer,
    Replacement,
    everywhere,
    fill_small,
    infer_sizes,
    is_recurrent,
    layer_of,
    named,
    overridable,
    parameters,
    tensors,
)
from onernn.adapters.requirements import require
from onernn.backend.choosing import Choice, Kind
from onernn.backend.compiled.library import load_kernels
from onernn.backend.compiled.operator_layers import OperatorLayers
from onernn.backend.onednn.precision import DTYPES, unknown
from onernn.core.errors import OnernnError, Refusal, UnsupportedError
from onernn.core.plugins import DISABLED, plugins_enabled

_RULED = ("auto", "f32")
"""The backend and dtype of which measurements decide; another dtype is a wish."""
_REGISTERED = "onernn.operators"
"""The entry of a SessionOptions that has our library; ONNX Runtime refuses to have it twice."""
_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where ONNX Runtime looks for the data of a model that it gets as bytes."""
_ON_CPU = ("CPUExecutionProvider", "AzureExecutionProvider")
"""Providers beside which our operators run; Azure's has operators of its own only."""


class Rewritten(NamedTuple):
    """A model for ONNX Runtime. ``folder``: of data that are not in it, None where all are."""

    source: Any
    folder: Path | None
    replaced: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def rewritten(
    source: Any, options: Any, providers: Any, layers: OperatorLayers, dtype: str, backend: str
) -> Rewritten:
    """The model in which recurrent nodes are those of ``layers``; what others are to know of it.

    Raises `UnsupportedError` for a dtype or backend that is not known here.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(unknown(dtype))
    if backend not in ("auto", "kernels"):
        raise UnsupportedError(
            f"backend {backend!r}: expected 'auto' or 'kernels', which run inside ONNX Runtime"
        )
    onnx = require("onnx", "onnx")
    try:
        _check_free(options, providers)
        model, folder = _read(onnx, source, options)
        fill_small(onnx, model, folder)
    except Exception as error:  # ONNX Runtime reads it all the same, or tells why not
        return Rewritten(source, None, (), (Refusal(str(error), "model"),))
    threads = options.intra_op_num_threads if options else 0
    rule = partial(_check_gain, load_kernels().isa, threads or len(os.sched_getaffinity(0)))
    add = partial(layers.add, dtype=dtype)
    lines, refusals = _replace(
        onnx, model, folder, add, rule if (backend, dtype) == _RULED else None
    )
    if not lines:
        return Rewritten(source, None, (), refusals)
    outside = any(map(onnx.external_data_helper.uses_external_data, tensors(model)))
    return Rewritten(model.SerializeToString(), folder if outside else None, lines, refusals)


def _check_free(options: Any, providers: Any) -> None:
    """Raises `UnsupportedError` where the model is not to have nodes of ours."""
    if not plugins_enabled():
        raise UnsupportedError(DISABLED)
    if options and options.optimized_model_filepath:
        raise UnsupportedError(
            "optimized_model_filepath asks for a file, in which nobody else could run our nodes"
        )
    names = [each if isinstance(each, str) else each[0] for each in providers or ()]
    names = names or require("onnxruntime", "onnx").get_available_providers()
    if others := [name for name in names if name not in _ON_CPU]:
        raise UnsupportedError(f"it is to run on {others[0]}")


def _read(onnx: Any, source: Any, options: Any) -> tuple[Any, Path]:
    """The model, and the folder of data that are not in it. Raises what onnx raises."""
    if isinstance(source, bytes):
        folder = _entry(options, _FOLDER) if options else ""
        return onnx.load_from_string(source), Path(folder or ".")
    file = Path(source).absolute()
    return onnx.load(file, format="protobuf", load_external_data=False), file.parent


def _entry(options: Any, name: str) -> str:
    """An entry of SessionOptions, "" for none."""
    try:
        return str(options.get_session_config_entry(name))
    except RuntimeError:
        return ""


def _replace(
    onnx: Any,
    model: Any,
    folder: Path,
    add: Callable[..., tuple[int, str]],
    rule: Callable[..., None] | None,
) -> tuple[tuple[str, ...], tuple[Refusal, ...]]:
    """Changes the model; gives a line for each node that is ours now, and why there are no more.

    ``folder``: of data beside the model. ``add`` makes layers; ``rule`` raises `UnsupportedError`
    for one that is not worth it.
    """
    refusals = [
        Refusal("it stands in a function", named(node))
        for function in model.functions
        for node in everywhere(function.node)
        if is_recurrent(node)
    ]
    if not any(map(is_recurrent, everywhere(model.graph.node))):
        return (), tuple(refusals)
    sizes, free, lines = infer_sizes(onnx, model), overridable(model), []
    replacement = Replacement(onnx, model)
    for place in replacement.places:
        node = place.node
        if not is_recurrent(node):
            continue
        try:
            made_of = Constants(place.scope, parameters(node), free)
            layer = layer_of(onnx, model, folder, node, made_of)
            if rule and not layer.only_ours:
                rule(layer, node, sizes.get(node.input[0], ()))
            number, told = add(layer.spec, layer.weights, batch_major=layer.batch_major)
        except OnernnError as error:
            refusals.append(Refusal(str(error).replace("\n", " "), named(node)))
            continue
        replacement.add(place, layer, number, free)
        lines.append(f"{named(node)}: {told}")
    if lines:
        replacement.finish()
    return tuple(lines), tuple(refusals)


def _check_gain(
    isa: str, threads: int, layer: Layer, node: Any, sizes: Sequence[int | None]
) -> None:
    """Raises `UnsupportedError` where ours was not measured as faster than ONNX Runtime's.

    ``sizes``: of X, as far as they are known.
    """
    steps, sentences, _ = sizes if len(sizes) == 3 else (None, None, None)
    kinds: Sequence[Kind] = ("step", "dense")
    if len(node.input) > 4 and node.input[4]:
        kinds = ("ragged",)
    elif steps:
        kinds = ("step",) if steps == 1 else ("dense",)
    spec = layer.spec
    if not Choice("inside", isa, "f32", threads, spec).prefers_all(kinds, sentences):
        raise UnsupportedError(
            f"ours was not measured as faster: {spec.cell.name} of {spec.hidden_size} units,"
            f" {' or '.join(kinds)} batches of {sentences or 'any number of'} sequences,"
            f" {threads} threads, {isa}; backend='kernels' replaces it all the same"
        )


def register(options: Any) -> None:
    """Our operators in the options, once. Raises what ONNX Runtime says where it is too old."""
    if not _entry(options, _REGISTERED):
        library = str(load_kernels().path)
        options.register_custom_ops_library(library)
        options.add_session_config_entry(_REGISTERED, library)


@contextmanager
def data_beside(options: Any, folder: Path | None) -> Iterator[None]:
    """Tells ONNX Runtime the folder of what is not in a model that it gets as bytes."""
    if folder is None or _entry(options, _FOLDER):
        yield
        return
    options.add_session_config_entry(_FOLDER, str(folder))
    try:
        yield
    finally:
        options.add_session_config_entry(_FOLDER, "")
