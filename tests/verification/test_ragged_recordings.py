"""The recording and the table of a ragged model serve the padded file that is written of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.command_line import onernn as command
from support.recordings import RECORDED
from support.scoring import INPUTS, MODEL

import onernn
from onernn import Graph, Ragged
from onernn.fuse_passes.ragged_inputs import padded_inputs, with_ragged_inputs
from onernn.ir.graph import Value
from onernn.ir.ragged import data_of
from onernn.scoring import Scorer
from onernn.verification.recording import read_arrays, read_inputs

TAGS = "save_infer_model/scale_1.tmp_0"
MODELS = ("attention", "embedding_crf", "lstm_states_reverse", "normalized")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("padded")
    for name in MODELS:
        onernn.convert(onernn.load(RECORDED[f"paddle/{name}"]), folder / f"{name}.onnx")
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_the_recording_of_the_ragged_model_runs_and_verifies_the_written_file(
    name: str, written: Path, tmp_path: Path
) -> None:
    recorded, file = RECORDED[f"paddle/{name}"] / "io.npz", written / f"{name}.onnx"
    for words in ((), ("--against", recorded.parent)):
        done = command("verify", file, "--data", recorded, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    done = command("run", file, "--input", recorded, "--output", tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    with np.load(recorded) as arrays, np.load(tmp_path / "out.npz") as out:
        both = {**{k: arrays[k] for k in arrays if k.startswith(("in__", "lod__"))}, **out}
    assert onernn.verify(file, both).passed


@pytest.mark.parametrize("name", MODELS)
def test_a_table_of_sequences_has_the_same_outputs_with_the_written_file(
    name: str, written: Path
) -> None:
    model = onernn.load(RECORDED[f"paddle/{name}"])
    inputs = read_inputs(read_arrays(RECORDED[f"paddle/{name}"] / "io.npz"), model.inputs)
    columns = {}
    for key, value in inputs.items():
        ragged = isinstance(value, Ragged)
        ends = value.offsets if ragged else range(len(value) + 1)
        rows = [data_of(value)[a:b].tolist() for a, b in zip(ends, ends[1:], strict=False)]
        columns[key] = rows if ragged else [row for (row,) in rows]
    want, got = (Scorer(each)(pa.table(columns)) for each in (model, written / f"{name}.onnx"))
    assert want.schema == got.schema
    for one, other in zip(want.columns, got.columns, strict=True):
        for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True):
            assert (a is None) == (b is None)
            if a is not None and not isinstance(a, str):
                np.testing.assert_allclose(np.array(b), np.array(a), atol=1e-5)


def test_a_batch_without_steps_runs_only_in_the_ragged_model_and_the_reason_names_the_column(
    tmp_path: Path,
) -> None:
    onernn.convert(onernn.load(MODEL), tmp_path / "padded.onnx")
    empty = pa.table({"text": pa.array([[]], pa.list_(pa.int64()))})
    for model, reason in ((MODEL, None), (tmp_path / "padded.onnx", "column 'text' has no steps:")):
        scorer = Scorer(model, INPUTS, {TAGS: "tags"}, types={TAGS: "list<int64>"})
        (got,) = scorer(empty)["rejected"].to_pylist()
        assert got == reason or got.startswith(f"{reason} node ")


def test_only_inputs_of_any_size_with_integer_lengths_become_ragged() -> None:
    def found(x: Value, *others: Value) -> list[str]:
        return padded_inputs(Graph("g", (x, *others), (), (), {}))

    lengths = Value("x_lengths", "int32", (None,))
    assert found(Value("x", "float32", (None, None, 4)), lengths) == ["x"]
    for shape in ((None, 9, 4), (2, None, 4), (None,), None):
        assert not found(Value("x", "float32", shape), lengths)
    assert not found(Value("x", "float32", (None, None)), Value("x_lengths", "float32", (None,)))
    assert not found(Value("x", "float32", (None, None)))


def test_an_input_that_is_an_output_is_the_ragged_value_itself() -> None:
    x = Value("x", "float32", (None, None, 4))
    model = Graph("g", (x, Value("x_lengths", "int32", (None,))), (x,), (), {})
    batch = Ragged(np.ones((3, 4), np.float32), np.array([0, 1, 1, 3]))
    session = onernn.Session(with_ragged_inputs(model, ["x"]))
    assert session.run({"x": batch})["x"].lod == batch.lod
