"""Files beside MXNet: what it writes we read to the bit."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from support.graphs import reference
from support.mxnet_ages import old_symbol
from tests.frameworks.mxnet_graphs import numpy_mode, run, save
from tests.frameworks.mxnet_models import contractive, uniform

from onernn import load
from onernn.adapters.mxnet.read import read_params
from onernn.reorders import mxnet as reorders

DTYPES = "float32 float64 float16 uint8 int32 int8 int64".split()
RNG = np.random.default_rng(0)


def same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype and ours[name].shape == array.shape, name
        np.testing.assert_array_equal(ours[name], array)


@pytest.mark.parametrize("numpy", [False, True])
def test_arrays_of_every_dtype_and_rank_are_read_as_they_were(numpy: bool, tmp_path: Path) -> None:
    arrays = {f"arg:{d}": RNG.uniform(0, 100, (2, 3)).astype(d) for d in DTYPES}
    arrays |= {f"r{rank}": RNG.uniform(size=(2,) * rank).astype(np.float32) for rank in (1, 4, 7)}
    file = str(tmp_path / "a.params")
    with numpy_mode(numpy):
        if numpy:
            arrays |= {"scalar": np.array(3, np.float32), "empty": np.empty((0, 2), np.float32)}
            mx.npx.save(file, {k: mx.np.array(a, dtype=a.dtype) for k, a in arrays.items()})
        else:
            mx.nd.save(file, {k: mx.nd.array(a, dtype=a.dtype) for k, a in arrays.items()})
    same(read_params(file), arrays)


def test_sparse_arrays_are_read_dense(tmp_path: Path) -> None:
    dense = np.where(RNG.random((5, 4)) < 0.4, RNG.random((5, 4)), 0).astype(np.float32)
    dense[2] = 0
    made = mx.nd.array(dense)
    mx.nd.save(
        str(tmp_path / "s.params"), {"rows": made.tostype("row_sparse"), "csr": made.tostype("csr")}
    )
    same(read_params(tmp_path / "s.params"), {"rows": dense, "csr": dense})


def test_a_list_without_keys_gets_positions(tmp_path: Path) -> None:
    mx.nd.save(str(tmp_path / "l.params"), [mx.nd.ones((2,)), mx.nd.zeros((3,))])
    found = read_params(tmp_path / "l.params")
    same(found, {"0": np.ones(2, np.float32), "1": np.zeros(3, np.float32)})


@pytest.mark.parametrize("age", ["0.8", "0.11", "1.9"])
def test_symbols_of_every_age_are_read_as_mxnet_reads_them(age: str, tmp_path: Path) -> None:
    (tmp_path / "m-symbol.json").write_text(old_symbol(age))
    symbol = mx.sym.load(str(tmp_path / "m-symbol.json"))
    x = uniform(RNG, 3, 5)
    params = contractive(symbol, {"data": x})
    params.pop("softmax_label")
    params["bn_moving_var"] = np.abs(params["bn_moving_var"])
    save(symbol, params, tmp_path / "theirs")
    want = run(symbol, {"data": x, **params})
    model = load(tmp_path / "m-symbol.json", params=tmp_path / "theirs-0000.params")
    assert [value.name for value in model.inputs] == ["data"]
    (got,) = reference(model, {"data": x}).values()
    np.testing.assert_allclose(got, want[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("both", [False, True])
def test_parts_and_gates_are_named_as_the_legacy_cells_unpack_them(mode: str, both: bool) -> None:
    hidden, layers, channels = 3, 2, 5
    stack = reorders.Stack(mode, hidden, layers, 1 + both)
    flat = np.arange(stack.elements(channels), dtype=np.float32)
    cell = mx.rnn.FusedRNNCell(hidden, layers, mode, bidirectional=both, prefix="")
    theirs = cell.unpack_weights({"parameters": mx.nd.array(flat)})
    ours = reorders.split_gates(reorders.split(flat, stack), stack)
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name].asnumpy())
