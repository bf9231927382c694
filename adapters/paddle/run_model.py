"""A model run by Paddle itself, as documented by paddle.static.Executor."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.paddle.live_layer import tensor_of
from onernn.adapters.paddle.read import find
from onernn.ir.errors import UnsupportedError
from onernn.ir.ragged import Batch, Ragged


def run_model(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs, in order, with nothing fused, on CPU. Raises what Paddle raises."""
    # Paddle 2.6.2 brings its own zlib; whoever loads Python's after it crashes.
    import zlib  # noqa: F401

    files = find(path, params or None)
    # Read by Paddle 3 when it is imported: it runs programs of its own format or of the older one.
    os.environ["FLAGS_enable_pir_api"] = "1" if files.model.suffix == ".json" else "0"
    paddle = require("paddle", "paddle")
    paddle.enable_static()
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
        tensors = {name: tensor_of(feed[name]) for name in names}
        results = executor.run(program, feed=tensors, fetch_list=fetches, return_numpy=False)
    return [
        Ragged.from_lod(np.array(each), each.lod()) if each.lod() else np.array(each)
        for each in results
    ]
