"""Corpora inside Ray Data, here on one machine: the manual's recipe, and many rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.framework_pages import checked_pages
from support.processes import large, where_weights_are
from support.scoring import INPUTS, MODEL, corpus, files, same_rows, session

TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import ray  # noqa: E402

import onernn  # noqa: E402
from onernn import ModelFormatError, ShapeError, UnsupportedError  # noqa: E402
from onernn.scoring import Scorer, score  # noqa: E402
from onernn.scoring.corpus import Corpus, Window  # noqa: E402
from onernn.scoring.folder import Folder  # noqa: E402
from onernn.scoring.ray import GivenUp, score_windows  # noqa: E402
from onernn.scoring.runner import Work  # noqa: E402

TestPages = checked_pages("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=2, object_store_memory=150 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("model", [MODEL, session()], ids=["path", "session"])
def test_batches_come_back_with_outputs_and_reasons(cluster: None, model: Any) -> None:
    table = corpus(1500)
    made = ray.data.from_arrow(table).map_batches(
        Scorer,
        fn_constructor_args=(model, INPUTS),
        batch_format="pyarrow",
        batch_size=500,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2),
    )
    same_rows(pa.concat_tables(ray.get(made.to_arrow_refs())), table)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Corpora whose windows do not begin and end where files and row groups do."""
    folder = tmp_path_factory.mktemp("sources")
    table = corpus(1500)
    kinds = pa.array([f"{row % 7} of {row // 400}" for row in range(1500)]).dictionary_encode()
    table = table.append_column("kind", kinds)
    for name in ("parquet", "json"):
        (folder / name).mkdir()
    for name, first, end in (("a", 0, 740), ("b", 740, 741), ("c", 741, 741), ("d", 741, 1500)):
        rows = table.slice(first, end - first)
        pq.write_table(rows, folder / "parquet" / f"{name}.parquet", row_group_size=333)
        lines = [json.dumps(row) for row in rows.to_pylist()]
        lines[300:302] = ["", "{", "  "][: len(lines[300:])]
        (folder / "json" / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "empty").mkdir()
    pq.write_table(table.slice(0, 0), folder / "empty" / "a.parquet")
    return {each.name: each for each in folder.iterdir()}


@pytest.mark.parametrize("name, window", [("parquet", 190), ("json", 400), ("empty", 10)])
def test_a_folder_has_the_bytes_of_the_local_engine(
    cluster: None, sources: dict[str, Path], tmp_path: Path, name: str, window: int
) -> None:
    told = []
    for engine in ("local", "ray"):
        how: Any = {"window": window, "engine": engine, "rejected": tmp_path / f"{engine} rejected"}
        told.append(score(MODEL, sources[name], tmp_path / engine, inputs=INPUTS, **how))
    assert told[0]._replace(seconds=0) == told[1]._replace(seconds=0)
    assert files(tmp_path / "local") == files(tmp_path / "ray")
    assert files(tmp_path / "local rejected") == files(tmp_path / "ray rejected")
    assert (told[0].rejected > 0) == (name != "empty")


@pytest.mark.parametrize("engines", [("local", "ray"), ("ray", "local")])
def test_an_engine_goes_on_with_a_folder_of_another(
    cluster: None, sources: dict[str, Path], tmp_path: Path, engines: tuple[str, str]
) -> None:
    first, second = engines
    how: Any = {"inputs": INPUTS, "window": 190}
    score(MODEL, sources["parquet"], tmp_path / "out", **how, engine=first)
    whole = files(tmp_path / "out")
    for window in (2, 3, 7):
        (tmp_path / "out" / f"part-{window:06}.parquet").unlink()
    went_on = score(MODEL, sources["parquet"], tmp_path / "out", **how, engine=second)
    assert went_on.windows_before == 5 and files(tmp_path / "out") == whole


class Deadly:
    """Work that ends its process at one window: always, or the first time."""

    def __init__(self, folder: Path, always: bool) -> None:
        self._folder, self._always = folder, always

    def __call__(self, one: Window) -> tuple[int, list[int]]:
        if one.number == 2:
            attempts = len([*self._folder.iterdir()])
            (self._folder / str(attempts)).touch()
            if self._always or not attempts:
                os._exit(1)
        return one.number, one.table["id"].to_pylist()


def test_a_node_whose_bits_may_differ_is_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    begun = {"onernn": version("onernn"), "instruction_set": "rot13"}
    work = Work(Scorer(MODEL, INPUTS, threads=1), folder, [], False, begun)
    with pytest.raises(UnsupportedError, match="instruction_set rot13"):
        work(Window(0, corpus(30), {}, []))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("always", [False, True])
def test_a_lost_process_costs_no_row_and_a_deadly_window_is_named_after_three_attempts(
    cluster: None, sources: dict[str, Path], tmp_path: Path, always: bool
) -> None:
    source = Corpus(str(sources["parquet"]), ["text"])
    results = dict(score_windows(source, 400, {0}, None, Deadly(tmp_path, always), 1))
    assert len([*tmp_path.iterdir()]) == (3 if always else 2)
    given_up = results.pop(2) if always else None
    assert results == {n: [*range(400 * n, min(400 * n + 400, 1500))] for n in sorted(results)}
    assert {*results} == ({1, 3} if always else {1, 2, 3})
    if always:
        assert given_up == GivenUp("window 2 (d.parquet, row 59 to d.parquet, row 458)")


def test_errors_on_the_nodes_are_raised_here(
    cluster: None, sources: dict[str, Path], tmp_path: Path
) -> None:
    how: Any = {"inputs": INPUTS, "window": 400, "engine": "ray"}
    with pytest.raises(ShapeError, match=r"a.parquet, row 3: .*1000000000"):
        score(MODEL, sources["parquet"], tmp_path / "strict", **how, strict=True, workers=1)
    broken = tmp_path / "in.parquet"
    content = bytearray((sources["parquet"] / "a.parquet").read_bytes())
    content[200:400] = bytes(200)
    broken.write_bytes(content)
    with pytest.raises(ModelFormatError, match="in.parquet"):
        score(MODEL, broken, tmp_path / "broken", **how)


def test_weights_stay_where_the_object_store_has_them(cluster: None) -> None:
    model = ray.put(onernn.Session(large(), threads=1))
    found = ray.get(ray.remote(where_weights_are).remote(model))
    assert len(found) == 8 and all("plasma" in each for each in found)
