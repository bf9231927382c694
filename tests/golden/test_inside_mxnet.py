"""What MXNet's plug-in replaces in every recorded symbol."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.golden import check, describe_plugin, model_files
from support.recorded_operators import read_recorded

mxnet = pytest.importorskip("mxnet")
plugin = pytest.importorskip("onernn.adapters.mxnet")


def plug(symbol: str) -> Any:
    with mxnet.util.np_shape("is_np_shape" in symbol):
        loaded = mxnet.sym.load_json(symbol)
        # This backend replaces what it can, whatever the CPU would run faster.
        return plugin.explain(plugin.optimize(loaded, {}, backend="kernels"))


def test_the_same_operators_are_replaced_inside_mxnet(data: Path) -> None:
    files = model_files(data / "mxnet")
    symbols = {name: path.read_text() for name, path in files.items()}
    symbols |= {case.name: case.text for case in read_recorded() if "RNN" in case.text}
    entries = {name: describe_plugin(partial(plug, text)) for name, text in symbols.items()}
    check("mxnet", entries)
