"""Corpora on a cluster of Ray: several nodes, here of one machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.processes import large, where_weights_are
from support.scoring import BAD, INPUTS, MODEL, corpus, same_rows, session, written

TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import onernn  # noqa: E402
from onernn.scoring import RayScorer  # noqa: E402

MB = 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    one = {"num_cpus": 2, "object_store_memory": 150 * MB}
    made = Cluster(initialize_head=True, head_node_args=one)
    for _ in range(2):
        made.add_node(**one)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield made
    ray.shutdown()
    made.shutdown()


def scored(
    dataset: Any, model: Any, kind: type = RayScorer, resources: Any = None, **options: Any
) -> Any:
    return dataset.map_batches(
        kind,
        fn_constructor_args=(model,),
        fn_constructor_kwargs={"inputs": INPUTS, **options},
        batch_format="pyarrow",
        batch_size=500,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2),
        resources=resources,
    )


def read(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in folder.glob("*.parquet"))


@pytest.mark.parametrize("how", ["reference", "session", "path"])
def test_batches_come_back_with_outputs_and_reasons(cluster: Any, how: str) -> None:
    table = corpus(1500)
    model: Any = MODEL
    if how != "path":
        model = ray.put(session()) if how == "reference" else session()
    made = scored(ray.data.from_arrow(table), model).to_arrow_refs()
    same_rows(pa.concat_tables(ray.get(made)), table)


def test_strict_stops_at_a_bad_row(cluster: Any) -> None:
    data = ray.data.from_arrow(corpus(100))
    with pytest.raises(Exception, match=f"row {min(BAD)}: "):
        scored(data, MODEL, strict=True).materialize()


def test_weights_stay_where_the_object_store_has_them(cluster: Any) -> None:
    model = ray.put(onernn.Session(large(), threads=1))
    found = ray.get(ray.remote(where_weights_are).remote(model))
    assert len(found) == 8 and all("plasma" in each for each in found)


def test_rows_are_the_same_when_a_node_with_a_scorer_is_lost(cluster: Any, tmp_path: Path) -> None:
    one = {"num_cpus": 2, "object_store_memory": 150 * MB, "resources": {"scorer": 1}}
    lost, _ = cluster.add_node(**one), cluster.add_node(**one)
    cluster.wait_for_nodes()
    table, output = corpus(30_000), tmp_path / "scored"
    where = written(tmp_path / "corpus", table, 30)

    class Logged(RayScorer):
        def __call__(self, batch: pa.Table) -> pa.Table:
            Path(tmp_path, ray.get_runtime_context().get_node_id()).touch()
            return super().__call__(batch)

    data = ray.data.read_parquet(str(where), override_num_blocks=30)
    data = scored(data, ray.put(session()), kind=Logged, resources={"scorer": 1})
    writing = threading.Thread(target=data.write_parquet, args=(str(output),))
    writing.start()
    deadline = time.monotonic() + 600
    while not (Path(tmp_path, lost.node_id).exists() and list(output.glob("*.parquet"))):
        assert writing.is_alive() and time.monotonic() < deadline
        time.sleep(0.05)
    cluster.remove_node(lost, allow_graceful=False)
    assert writing.is_alive()
    writing.join(600)
    assert not writing.is_alive()
    same_rows(read(output), table)
