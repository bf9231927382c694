"""A CRNN that MXNet exported: the same inside and outside of MXNet, for any batch and width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from tests.frameworks.mxnet_crnn import Crnn
from tests.frameworks.mxnet_graphs import operators_of, optimize

from onernn import Session, fuse, load

SIZES = [(1, 20), (3, 20), (5, 33), (2, 7)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: Any) -> tuple[Any, Path]:
    """The block, and its files; a training step has given its BatchNorms their statistics."""
    mx.random.seed(3)
    block = Crnn(hidden=24, labels=11)
    block.initialize(mx.init.Xavier())
    block.hybridize()
    with mx.autograd.record():
        block(mx.nd.random.uniform(-1, 1, (4, 1, 16, 30))).sum().backward()
    prefix = tmp_path_factory.mktemp("crnn") / "m"
    block(images(1, 20))
    block.export(str(prefix))
    return block, prefix


def images(count: int, width: int) -> Any:
    values = np.random.default_rng((count, width)).uniform(-1, 1, (count, 1, 16, width))
    return mx.nd.array(values.astype(np.float32))


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_its_file_runs_without_mxnet(exported: tuple[Any, Path], backend: str) -> None:
    block, prefix = exported
    graph = load(f"{prefix}-symbol.json")
    assert [node.op for node in fuse(graph).model.nodes].count("Rnn") == 1
    session = Session(graph, backend=backend)
    for size in SIZES:
        (ours,) = session.run({"data": images(*size).asnumpy()}).values()
        close(ours, block(images(*size)).asnumpy())


def test_it_runs_inside_of_mxnet_with_our_layer(exported: tuple[Any, Path]) -> None:
    block, prefix = exported
    symbol = optimize(mx.sym.load(f"{prefix}-symbol.json"))
    assert {"Custom", "Convolution"} < operators_of(symbol)
    imported = mx.gluon.SymbolBlock(symbol, mx.sym.var("data"))
    imported.load_parameters(f"{prefix}-0000.params")
    for size in SIZES:
        close(imported(images(*size)).asnumpy(), block(images(*size)).asnumpy())
