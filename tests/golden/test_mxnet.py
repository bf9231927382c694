"""What MXNet's plug-in replaces in every recorded symbol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.golden import check, describe_plugin, model_files
from support.recorded_operators import read_recorded

mxnet = pytest.importorskip("mxnet")
plugin = pytest.importorskip("onernn.adapters.mxnet")


def plug(symbol: str, numpy: bool) -> Any:
    with mxnet.util.np_shape(numpy):
        loaded = mxnet.sym.load_json(symbol)
        # This backend replaces what it can, whatever the CPU would run faster.
        return plugin.explain(plugin.optimize(loaded, {}, backend="kernels"))


def test_the_same_operators_are_replaced_inside_mxnet(data: Path) -> None:
    files = model_files(data / "mxnet")
    symbols = {name: path.read_text() for name, path in files.items()}
    symbols |= {case.name: case.text for case in read_recorded() if "RNN" in case.text}
    check(
        "mxnet",
        {
            name: describe_plugin(lambda: plug(text, "is_np_shape" in text))
            for name, text in symbols.items()
        },
    )
