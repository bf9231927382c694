"""Corpora inside Ray Data, here on one machine: the manual's recipe, and many rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.framework_pages import checked_pages
from support.processes import large, where_weights_are
from support.scoring import INPUTS, MODEL, corpus, same_rows, session

TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import ray  # noqa: E402

import onernn  # noqa: E402
from onernn import UnsupportedError  # noqa: E402
from onernn.scoring import Scorer, score  # noqa: E402

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


def test_a_folder_has_the_bytes_of_the_local_engine(cluster: None, tmp_path: Path) -> None:
    source = tmp_path / "corpus.parquet"
    pq.write_table(corpus(3000), source)
    for engine in ("local", "ray"):
        result = score(MODEL, source, tmp_path / engine, inputs=INPUTS, window=500, engine=engine)
        assert result.windows == 6 and result.rejected > 0
    files = [
        {file.name: file.read_bytes() for file in (tmp_path / engine).iterdir()}
        for engine in ("local", "ray")
    ]
    assert files[0] == files[1]
    with pytest.raises(UnsupportedError, match="begun with window 500, now it is 700"):
        score(MODEL, source, tmp_path / "ray", inputs=INPUTS, window=700, engine="ray")


def test_weights_stay_where_the_object_store_has_them(cluster: None) -> None:
    model = ray.put(onernn.Session(large(), threads=1))
    found = ray.get(ray.remote(where_weights_are).remote(model))
    assert len(found) == 8 and all("plasma" in each for each in found)
