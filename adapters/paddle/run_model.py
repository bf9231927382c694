"""Runs a saved model with Paddle's own paddle.static.Executor."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from onernn.adapters.paddle.custom_operators import import_paddle
from onernn.adapters.paddle.live_layer import tensor_of
from onernn.adapters.paddle.read import find
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Batch, Ragged


def run_model(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs that Paddle computes on the CPU without fused operators, in the model's
    order.

    Raises Paddle's errors, and `UnsupportedError` if ``params`` is a folder other than the model's.
    """
    # Paddle 2.6.2 contains its own zlib. Python's zlib module crashes if it is imported after
    # Paddle.
    import zlib  # noqa: F401

    files = find(path, params or None)
    # Paddle 3 reads this flag when it is imported: "1" selects Paddle 3's program format, "0"
    # Paddle 2's.
    os.environ["FLAGS_enable_pir_api"] = "1" if files.model.suffix == ".json" else "0"
    paddle = import_paddle()
    paddle.enable_static()
    where, shared = files.model.parent, None
    if not files.params.is_dir():
        shared = os.path.relpath(files.params, where)
    elif files.params != where:
        raise UnsupportedError(
            f"params: expected {where}, the model's own folder, got {files.params}: Paddle reads a"
            " file per parameter from there only"
        )
    named = {"model_filename": files.model.name, "params_filename": shared}
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, names, fetches = paddle.static.load_inference_model(str(where), executor, **named)
        tensors = {name: tensor_of(feed[name]) for name in names}
        results = executor.run(program, feed=tensors, fetch_list=fetches, return_numpy=False)
    return [
        Ragged.from_lod(np.array(each), each.lod()) if each.lod() else np.array(each)
        for each in results
    ]
