"""The list of frameworks. To add a framework, add its folder to this package and its name to
`ADAPTERS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onernn.adapters import keras, mxnet, onnx, openvino, paddle, torch
from onernn.adapters.common.adapter import Adapter, Runtime, StrPath, Writer

if TYPE_CHECKING:
    from onernn.fuse_passes import Applied

ADAPTERS = (
    keras.ADAPTER,
    mxnet.ADAPTER,
    onnx.ADAPTER,
    openvino.ADAPTER,
    torch.ADAPTER,
    paddle.ADAPTER,
)
"""The first adapter that can read a file reads it. Paddle is last because its files may have any
name.
"""

WRITERS: dict[str, Writer] = {a.writer.suffix: a.writer for a in ADAPTERS if a.writer}
"""The functions that write files, by the suffix of the file."""

RUNTIMES: dict[str, Runtime] = {a.runtime.name: a.runtime for a in ADAPTERS if a.runtime}
"""The frameworks' own runtimes, by the NAME in ``onernn verify --against NAME:PATH``."""

SEMANTICS = ("documented", *(name for adapter in ADAPTERS for name in adapter.semantics))


def pass_name(applied: Applied) -> str:
    """Returns the name that a framework has for an applied fusion pass, "" if no framework has a
    name for it.
    """
    return next(filter(None, (adapter.pass_name(applied) for adapter in ADAPTERS)), "")


def usual_suffix(path: StrPath) -> str:
    """Returns the suffix that files with this file's content usually have, or its own suffix if the
    content is unknown.
    """
    known = (adapter.suffix_of(path) for adapter in ADAPTERS)
    return next(filter(None, known), Path(path).suffix.lower())


def adapter_of(path: StrPath) -> Adapter:
    """Returns the adapter of the framework to which a file or folder belongs."""
    return next(adapter for adapter in ADAPTERS if adapter.reads(path))
