"""The frameworks. Adding one is a folder here and a name in `ADAPTERS`."""

from __future__ import annotations

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
"""The first that reads a file gets it. Paddle is last: its files may have any name."""

WRITERS: dict[str, Writer] = {a.writer.suffix: a.writer for a in ADAPTERS if a.writer}
"""By the suffix of the file to write."""

RUNTIMES: dict[str, Runtime] = {a.runtime.name: a.runtime for a in ADAPTERS if a.runtime}
"""By the name in ``NAME:PATH``."""

SEMANTICS = ("documented", *(name for adapter in ADAPTERS for name in adapter.semantics))


def pass_name(applied: Applied) -> str:
    """Returns what a framework calls a pass that fired on its operators, "" where none has a
    name.
    """
    return next(filter(None, (adapter.pass_name(applied) for adapter in ADAPTERS)), "")


def adapter_of(path: StrPath) -> Adapter:
    """Returns the framework of a file or folder."""
    return next(adapter for adapter in ADAPTERS if adapter.reads(path))
