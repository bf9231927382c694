"""Real models, as their packages ship them: ours gives ONNX Runtime's and Paddle's own numbers.

``python -m benchmarks.model_files`` gets the list's into out/models. ONERNN_REAL_MODELS is a folder
with more: each .onnx below it runs like these.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interpreters import run_python

import onernn
from onernn import Ragged, Session, UnsupportedError
from onernn.ir.ragged import data_of
from onernn.verification.comparing import TOLERANCES, compare, differences

REPO = Path(__file__).parents[2]
LISTED = tomllib.loads((REPO / "benchmarks" / "models.toml").read_text())["models"]
ONNX = [name for name, told in LISTED.items() if told["kind"] == "onnx"]
PADDLE = [n for n, told in LISTED.items() if told["kind"] == "paddle" and "package" in told]
OTHERS = os.environ.get("ONERNN_REAL_MODELS")
MORE = sorted(Path(OTHERS).rglob("*.onnx")) if OTHERS else []
UNSET = pytest.param(Path("-"), marks=pytest.mark.skip("ONERNN_REAL_MODELS is not set"))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO))
    return import_module("benchmarks.models")


def path_of(name: str) -> Path:
    place = import_module("benchmarks.model_files").found(LISTED[name])
    if place is None:
        pytest.skip(f"{LISTED[name]['package']} is not in out/models")
    return place


@pytest.fixture
def rows(harness: Any, tmp_path: Path) -> Any:
    """The rows of a model, with their numbers."""

    def made(name: str) -> list[Any]:
        path = str(path_of(name))
        return [
            row.with_(path=path).written(tmp_path / f"{at}.npz")
            for at, row in enumerate(harness.rows(name))
        ]

    return made


def session_of(path: Path | str) -> Session:
    """Skips where the model is refused: the error has to name each operator that is in the way."""
    try:
        return Session(str(path), threads=1)
    except UnsupportedError as error:
        assert error.refusals
        pytest.skip(f"{Path(path).name} is refused: {' '.join(str(error).split())[:200]}")


def runtime_of(path: Path | str) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def an_eps_off(feed: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (array * (1 + np.finfo(array.dtype).eps)).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feed.items()
    }


def assert_same(got: list[Any], wanted: list[Any], moved: list[Any] | None = None) -> None:
    """``moved``: what is wanted for inputs that are an eps off; a multiple of that is allowed."""
    assert len(got) == len(wanted) > 0
    for one, other, near in zip(got, wanted, moved or wanted, strict=True):
        tolerance = TOLERANCES["f32"]
        if data_of(other).dtype.kind == "f":
            rounding = 8 * float(differences(data_of(near), data_of(other)).max(initial=0))
            tolerance = replace(tolerance, atol=tolerance.atol + rounding)
        verdict = compare("output", one, other, tolerance)
        assert verdict.passed, verdict.reason


def check_rows(harness: Any, rows: list[Any], run: Callable[[Any], list[Any]]) -> None:
    """``run`` gives ONNX Runtime's numbers for all feeds of the rows, each twice."""
    theirs = runtime_of(rows[0].path)
    for row in rows:
        one = harness.in_turn(row, run)
        other = harness.in_turn(row, lambda feed: theirs.run(None, feed))
        near = harness.in_turn(row, lambda feed: theirs.run(None, an_eps_off(feed)))
        for _ in range(2):
            assert_same(one.call(), other.call(), near.call())


@pytest.mark.parametrize("name", ONNX)
def test_ours_gives_onnxruntimes_numbers_for_clips_of_changing_lengths(
    harness: Any, rows: Any, name: str
) -> None:
    listed = rows(name)
    if known := import_module("benchmarks.real_models").known_faults(Path(listed[0].path)):
        pytest.skip(f"ONNX Runtime computes something else: {known}")
    ours = session_of(listed[0].path)
    check_rows(harness, listed, lambda feed: [*ours.run(feed).values()])


@pytest.mark.parametrize("name", ONNX)
def test_ours_inside_of_onnxruntime_gives_its_numbers(harness: Any, rows: Any, name: str) -> None:
    from onernn.adapters.onnx import optimize

    pytest.importorskip("onnxruntime")
    listed = rows(name)
    both = optimize(listed[0].path, threads=1)
    check_rows(harness, listed, lambda feed: both.run(None, feed))


@pytest.mark.parametrize("name", PADDLE)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_tags_are_those_that_paddle_gave(harness: Any, data: Path, name: str, backend: str) -> None:
    report = onernn.verify(
        path_of(name), data / "real_models" / f"{name}.npz", backend=backend, diagnose=False
    )
    assert report.passed, report
    assert all(output.max_abs == 0 for output in report.outputs)


@pytest.mark.parametrize("name", PADDLE)
def test_a_sentence_has_the_same_tags_alone_and_among_others(
    harness: Any, rows: Any, name: str
) -> None:
    row = rows(name)[-1]
    session = session_of(row.path)
    (feed, *_) = next(row.rounds())
    batches = {key: Ragged(*value) for key, value in feed.items()}
    together = [out.to_list() for out in session.run(batches).values() if isinstance(out, Ragged)]
    split = {key: batch.to_list() for key, batch in batches.items()}
    for n in range(0, len(next(iter(split.values()))), 7):
        one = {key: Ragged.from_list([parts[n]]) for key, parts in split.items()}
        for whole, alone in zip(together, session.run(one).values(), strict=True):
            assert np.array_equal(whole[n], alone.data)


@pytest.mark.parametrize("name", [*ONNX, *PADDLE])
def test_operator_by_operator_and_in_several_threads_the_numbers_are_the_same(
    harness: Any, rows: Any, name: str
) -> None:
    row = rows(name)[-1]
    session = session_of(row.path)

    def run(feed: Any, observe: Any = None) -> list[Any]:
        given = {n: Ragged(*v) if isinstance(v, tuple) else v for n, v in feed.items()}
        return [*session.run(given, observe).values()]

    feeds = [feed for _, calls in zip(range(4), row.rounds(), strict=False) for feed in calls[:2]]
    alone = [run(feed) for feed in feeds]
    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(run, feeds), alone, strict=True):
            assert_same(got, wanted)
    walked = run(feeds[0], lambda *_: None)
    assert_same(alone[0], walked)


@pytest.mark.parametrize("file", MORE or [UNSET], ids=lambda file: file.name)
def test_any_other_model_is_exact_or_refused(file: Path) -> None:
    pytest.importorskip("onnxruntime")
    session_of(file)
    report = onernn.verify(file, against=f"onnxruntime:{file}", diagnose=False)
    assert report.passed, report


HELD = """
import ctypes, sys
import onernn
session = onernn.Session(sys.argv[1], threads=1)
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
ctypes.CDLL(None).malloc_trim(0)
print(before - resident())
"""


def test_a_session_holds_no_memory_that_loading_it_freed(harness: Any) -> None:
    path = path_of("nsnet2-48k")
    held = int(run_python("-c", HELD, path).stdout)
    assert held < path.stat().st_size / 5  # it was more than the file


def feed_for(inputs: list[Any], size: int) -> dict[str, Any]:
    """Numbers for inputs as ONNX Runtime tells them, each open size the same."""
    rng = np.random.default_rng(size)
    feed = {}
    for each in inputs:
        shape = [n if isinstance(n, int) and n > 0 else size for n in each.shape]
        if "float" in each.type or "double" in each.type:
            dtype = {"tensor(float16)": "f2", "tensor(double)": "f8"}.get(each.type, "f4")
            feed[each.name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            kind = each.type.removeprefix("tensor(").removesuffix(")")
            feed[each.name] = np.full(shape, size, kind)
    return feed


@pytest.mark.parametrize("file", MORE or [UNSET], ids=lambda file: file.name)
def test_any_other_model_gives_the_same_inside_of_onnxruntime(file: Path) -> None:
    from onernn.adapters.onnx import optimize

    theirs, both = runtime_of(file), optimize(str(file), threads=1)
    compared = 0
    for size in (1, 2, 16, 512, 576):  # what open sizes stand for is the model's secret
        feed = feed_for(theirs.get_inputs(), size)
        try:
            wanted = theirs.run(None, feed)
        except Exception:  # of many kinds; ours is asked only for what ONNX Runtime runs
            continue
        assert_same(both.run(None, feed), wanted, theirs.run(None, an_eps_off(feed)))
        compared += 1
        if compared == 3:  # the larger ones would take minutes where a smaller one runs
            return
    if not compared:
        pytest.skip(f"ONNX Runtime runs {file.name} with none of the sizes tried")
