"""What Paddle's plug-in replaces in every recorded program that this version of Paddle can load."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.golden import check, describe_plugin, model_files

paddle = pytest.importorskip("paddle")
optimize = pytest.importorskip("onernn.adapters.paddle").optimize


def test_the_same_operators_are_replaced_inside_paddle(data: Path) -> None:
    is_pir = not paddle.__version__.startswith("2.")
    suffix = "model.json" if is_pir else ".pdmodel"
    files = {k: v for k, v in model_files(data / "paddle").items() if v.name.endswith(suffix)}

    def plug(path: Path) -> Any:
        prefix = str(path.with_suffix(""))
        if is_pir:
            return optimize(paddle.jit.load(prefix))
        executor = paddle.static.Executor(paddle.CPUPlace())
        program, _, fetches = paddle.static.load_inference_model(prefix, executor)
        return optimize(program, fetch_list=fetches)

    if not is_pir:
        paddle.enable_static()
    entries = {name: describe_plugin(partial(plug, path)) for name, path in files.items()}
    check(f"paddle_{paddle.__version__}", entries)
