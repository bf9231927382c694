"""Building a model takes a bounded number of steps, whatever its file asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.graphs import new_node

from onernn import BudgetError, Graph, ModelFormatError, Session, fuse, load
from onernn.adapters.paddle import messages
from onernn.ir.budget import WORK, working
from onernn.ir.graph import Value
from onernn.ir.types import Size


def of_outputs(count: int) -> Graph:
    """A value that is so many outputs, as readers write it."""
    names = [f"y{at}" for at in range(count)]
    nodes = [new_node("Relu", "x", "r"), *(new_node("Identity", "r", name) for name in names)]
    inputs = (Value("x", "float32", (2,)),)
    return Graph("g", inputs, tuple(map(Value, names)), tuple(nodes), {})


def used(model: Graph) -> int:
    with working() as work:
        fuse(model)
    return work.used


def test_fusing_outputs_of_one_value_takes_work_in_proportion() -> None:
    """It took the square: each output became a copy of the next one's, one after the other."""
    few, many = (used(of_outputs(count)) for count in (100, 400))
    assert many < 6 * few


@pytest.mark.parametrize("levels", [2**28, -1])
def test_a_variable_of_impossible_levels_is_refused(
    levels: int, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "m.pdmodel"
    source = data / "paddle" / "fc_gru_h0_rev0"
    program = messages.message("ProgramDesc")()
    program.ParseFromString((source / "model.pdmodel").read_bytes())
    (x,) = (each for each in program.blocks[0].vars if each.name == "x")
    x.type.lod_tensor.lod_level = levels
    file.write_bytes(program.SerializeToString())
    (tmp_path / "m.pdiparams").write_bytes((source / "model.pdiparams").read_bytes())
    with pytest.raises(ModelFormatError, match=f"'x': expected 0 to 16 LoD levels, got {levels}"):
        load(file)


def test_work_has_a_limit_that_the_environment_raises(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data / "onnx" / "keras3_masked_stack_both" / "model.onnx"
    model = load(path)
    monkeypatch.setenv("ONERNN_MAX_WORK", "1000")
    for build in (lambda: load(path), lambda: fuse(model), lambda: Session(model)):
        with pytest.raises(BudgetError, match="more than 1,000 steps of work; .*ONERNN_MAX_WORK"):
            build()
    monkeypatch.setenv("ONERNN_MAX_WORK", str(WORK))
    fuse(load(path))


def test_the_same_model_takes_the_same_work_each_time_and_little(data: Path) -> None:
    path = data / "onnx" / "keras3_masked_stack_both" / "model.onnx"  # the most of all recorded
    with working() as first:
        fuse(load(path))
    with working() as second:
        fuse(load(path))
    assert first.used == second.used < WORK / 100


def test_sizes_with_many_terms_count_as_work() -> None:
    wide = sum((Size.of(f"n{at}") for at in range(60)), Size.of(0))
    with working() as work, pytest.raises(ValueError, match="expected fewer names"):
        wide * wide
    assert work.used >= 60 * 60


def test_graphs_that_are_built_again_and_again_count_as_work() -> None:
    value = Value("x", "float32", (2,))
    with working() as work:
        for _ in range(10):
            Graph("g", (value,), (Value("y"),), (new_node("Relu", "x", "y"),), {})
    assert work.used >= 10
