"""Models whose inputs differ in name or type, and what a comparison costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.command_line import failed
from support.command_line import onernn as command
from support.onnx_models import parsed

import onernn
from onernn.backend.reference import ReferenceKernel
from onernn.ir.budget import TimeLimit, limited_to
from onernn.ir.errors import BudgetError, ModelFormatError, UnsupportedError
from onernn.verification.recording import INPUTS, OUTPUTS, key_arrays

ROWS, SIZE = 9, 4


def write(path: Path, inputs: str, nodes: str, steps: str = "T") -> Path:
    """A file with a GRU over ``e`` (T, N, SIZE), which ``nodes`` make of the inputs."""
    rng = np.random.default_rng(0)
    shapes = {"E": (ROWS, SIZE), "W": (1, 3 * SIZE, SIZE), "R": (1, 3 * SIZE, SIZE)}
    arrays = {k: rng.uniform(-0.5, 0.5, s).astype(np.float32) for k, s in shapes.items()}
    arrays["last"] = np.array([-1])
    text = f"({inputs}) => (float[{steps}, 1, N, {SIZE}] y) {{ {nodes} "
    text += f"y = GRU <hidden_size = {SIZE}> (e, W, R) }}"
    used = {name: array for name, array in arrays.items() if name in text}
    path.write_bytes(parsed(text, used, opset=15).SerializeToString())
    return path


IDS = {
    "int64": ("int64[T, N] ids", "e = Gather (E, ids)"),
    "int32 of another name": ("int32[T, N] words", "e = Gather (E, words)"),
    "float": ("float[T, N] ids", "i = Cast <to = 7> (ids) e = Gather (E, i)"),
    "float of another name": ("float[T, N] data", "i = Cast <to = 7> (data) e = Gather (E, i)"),
    "one more axis": ("int64[T, N, 1] ids", "i = Squeeze (ids, last) e = Gather (E, i)"),
}


@pytest.mark.parametrize("one", IDS)
@pytest.mark.parametrize("other", IDS)
def test_ids_of_any_type_and_name_are_the_same_input(one: str, other: str, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{k}.onnx", *IDS[each]) for k, each in enumerate((one, other))]
    report = onernn.verify(paths[0], against=paths[1])
    names = {IDS[each][0].split()[-1] for each in (one, other)}
    assert report.passed
    assert any("is given" in note for note in report.notes) == (len(names) == 2)


def crossed(folder: Path) -> tuple[Path, Path]:
    """Files of the same model; the second calls x and z p and q, and takes q first."""
    sizes, nodes = "float[T, N, 4] {}, float[T, N, 4] {}", "m = Mul ({1}, {1}) e = Add ({0}, m)"
    mine = write(folder / "mine.onnx", sizes.format("x", "z"), nodes.format("x", "z"))
    return mine, write(folder / "theirs.onnx", sizes.format("q", "p"), nodes.format("p", "q"))


def test_inputs_in_another_order_need_a_map_and_the_report_says_so(tmp_path: Path) -> None:
    mine, theirs = crossed(tmp_path)
    report = onernn.verify(mine, against=theirs)
    assert not report.passed and any("--map" in note for note in report.notes)
    names = {"x": "p", "z": "q"}
    assert onernn.verify(mine, against=theirs, names=names).passed
    for reference in (theirs, f"onnxruntime:{theirs}"):
        done = command("verify", mine, "--against", reference, "--map", "x=p", "--map", "z=q")
        assert done.returncode == 0, done.stdout


def test_a_map_names_the_inputs_and_outputs_of_a_recording(tmp_path: Path) -> None:
    mine, theirs = crossed(tmp_path)
    rng = np.random.default_rng(3)
    feed = {name: rng.uniform(-1, 1, (5, 2, SIZE)).astype(np.float32) for name in "xz"}
    y = onernn.Session(mine, backend="reference").run(feed)["y"]
    other = {"p": feed["x"], "q": feed["z"]}
    data = key_arrays(INPUTS, other) | key_arrays(OUTPUTS, {"result": y})
    names = {"x": "p", "z": "q", "y": "result"}
    assert onernn.verify(mine, data, names=names).passed
    assert onernn.verify(mine, data, against=theirs, names={"x": "p", "z": "q"}).passed
    own = key_arrays(INPUTS, feed)
    assert onernn.verify(mine, own, against=theirs, names={"x": "p", "z": "q"}).passed
    swapped = {"in__x": feed["z"], "in__z": feed["x"], "out__y": y}
    assert onernn.verify(mine, swapped, names={"x": "z", "z": "x"}).passed
    with pytest.raises(ModelFormatError, match="in__x is missing.*--map"):
        onernn.verify(mine, data)


@pytest.mark.parametrize(
    "names, message",
    [
        ({"u": "p"}, "'u' is not one of"),
        ({"x": "u"}, "'u' is not one of"),
        ({"x": "p", "z": "p"}, "expected different names"),
    ],
)
def test_a_map_that_fits_nothing_is_refused(
    names: dict[str, str], message: str, tmp_path: Path
) -> None:
    mine, theirs = crossed(tmp_path)
    with pytest.raises(UnsupportedError, match=message):
        onernn.verify(mine, against=theirs, names=names)
    words = [word for pair in names.items() for word in ("--map", "=".join(pair))]
    assert message in failed(command("verify", mine, "--against", theirs, *words))


def test_inputs_that_fit_in_no_order_say_that_names_are_missing(tmp_path: Path) -> None:
    one = write(tmp_path / "one.onnx", "float[T, N, 4] x", "e = Relu (x)")
    two = write(tmp_path / "two.onnx", "float[T, 4] v, float[T, N, 4] w", "e = Relu (w)")
    with pytest.raises(UnsupportedError, match="--map"):
        onernn.verify(one, against=two)


# --- what it costs


def test_the_numpy_reference_runs_a_model_of_fixed_length_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    run = ReferenceKernel.run

    def counting(self: ReferenceKernel, batch: object) -> object:
        steps.append(len(batch.packing.batch_sizes))  # type: ignore[attr-defined]
        return run(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(ReferenceKernel, "run", counting)
    path = write(tmp_path / "long.onnx", "float[200, N, 4] x", "e = Relu (x)", "200")
    report = onernn.verify(path, against=path)
    assert report.passed and max(each.count for each in report.steps) == 200
    assert sum(steps) <= 2 * 200  # once each for the batch and for a smaller one


def test_after_the_time_limit_there_is_no_verdict_or_no_search(tmp_path: Path) -> None:
    mine, theirs = crossed(tmp_path)
    rng = np.random.default_rng(3)
    feed = {name: rng.uniform(-1, 1, (5, 2, SIZE)).astype(np.float32) for name in "xz"}
    y = onernn.Session(theirs).run({"p": feed["z"], "q": feed["x"]})["y"]
    data = key_arrays(INPUTS, feed) | key_arrays(OUTPUTS, {"y": y})
    over = TimeLimit(3.0, float("-inf"))
    with limited_to(over), pytest.raises(BudgetError, match="3 s.*--seconds"):
        onernn.verify(mine, against=theirs)
    with limited_to(over), pytest.raises(BudgetError, match="3 s"):
        onernn.verify(mine, data, against=f"onnxruntime:{mine}")
    with limited_to(over):
        report = onernn.verify(mine, data)
    assert not report.passed and "3 s" in report.stopped
    report = onernn.verify(mine, data, seconds=0)
    assert not report.passed and not report.stopped and not report.causes


def test_an_inner_time_limit_only_shortens_an_outer_one() -> None:
    with limited_to(TimeLimit.after(5)):
        assert TimeLimit.after(50).seconds == 5 and TimeLimit.after(1).seconds == 1
    assert TimeLimit.after(None) is None
